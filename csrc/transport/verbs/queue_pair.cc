#include "transport/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace rocenante::verbs {

namespace {

// A line or a notice's parts always go inline; more is welcome: it saves the NIC a read of memory.
constexpr uint32_t kWantedInline = 192, kNeededInline = 64;
// 7 would mean without end on some devices, and a dead peer would never become an error.
constexpr uint8_t kRetries = 6;
constexpr uint64_t kNumberMask = (uint64_t{1} << 48) - 1;

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::payload:
      return "contribution";
    case Kind::signal:
      return "signal";
    case Kind::fragment:
      return "message";
    case Kind::credit:
      return "credit";
    case Kind::notice:
      return "notice";
    case Kind::question:
      return "question";
    case Kind::keep_alive:
      return "keep-alive";
    case Kind::probe:
      return "first contact";
    case Kind::rail_end:
      return "note of a lost rail";
  }
  return "?";
}

QueuePair::QueuePair(Memory& memory, int peer, size_t rail, uint8_t port)
    : whose_(static_cast<uint64_t>(peer) << 56 | uint64_t{rail} << 52),
      port_(port),
      local_key_(memory.local_key()) {
  const Library& library = Library::get();
  for (uint32_t wanted : {kWantedInline, kNeededInline}) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = memory.completions();
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = kDepth;
    init.cap.max_recv_wr = 1;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = wanted;
    handle_.reset(library.ibv_create_qp(memory.domain(), &init));
    if (!handle_) continue;
    max_inline_ = init.cap.max_inline_data;
    break;
  }
  if (!handle_) throw Error(ErrorKind::system, with_errno("cannot make a queue pair", errno));
  mine_.number = handle_->qp_num;
  // Any number does; taking it from the queue pair's lets a stale packet's be recognised.
  mine_.first_packet = (mine_.number * 2654435761u) >> 8;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = port_;
  a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (const int error = library.ibv_modify_qp(
          handle_.get(), &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
    throw Error(ErrorKind::system, with_errno("cannot prepare a queue pair", error));
}

void QueuePair::connect(const Ends& ends) {
  const Library& library = Library::get();
  remote_key_ = ends.key;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = static_cast<ibv_mtu>(ends.mtu);
  a.dest_qp_num = ends.there.number;
  a.rq_psn = ends.there.first_packet;
  a.max_dest_rd_atomic = 1;
  a.min_rnr_timer = 12;
  a.ah_attr.is_global = 1;
  a.ah_attr.port_num = port_;
  a.ah_attr.grh.hop_limit = 64;
  a.ah_attr.grh.traffic_class = ends.traffic_class;
  a.ah_attr.grh.sgid_index = ends.local_gid_index;
  std::memcpy(a.ah_attr.grh.dgid.raw, ends.remote_gid.bytes.data(), ends.remote_gid.bytes.size());
  if (const int error = library.ibv_modify_qp(handle_.get(), &a,
                                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                                  IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
    throw Error(ErrorKind::system, with_errno("cannot find a way there", error));
  a = {};
  a.qp_state = IBV_QPS_RTS;
  a.sq_psn = mine_.first_packet;
  a.timeout = ends.timeout;
  a.retry_cnt = kRetries;
  a.rnr_retry = kRetries;
  a.max_rd_atomic = 1;
  if (const int error =
          library.ibv_modify_qp(handle_.get(), &a,
                                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
    throw Error(ErrorKind::system, with_errno("cannot connect a queue pair", error));
}

bool QueuePair::stop() {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  return Library::get().ibv_modify_qp(handle_.get(), &a, IBV_QP_STATE) == 0;
}

ibv_send_wr& QueuePair::queue(Kind kind, const void* memory, size_t bytes, uint64_t remote) {
  ibv_sge& piece = pieces_[queued_];
  ibv_send_wr& request = requests_[queued_];
  piece = {reinterpret_cast<uint64_t>(memory), static_cast<uint32_t>(bytes), local_key_};
  request = {};
  // Every request has an id, also those that ask for no completion: they get one if they fail.
  const uint64_t number = posted_ + ++queued_;
  request.wr_id = whose_ | static_cast<uint64_t>(kind) << 48 | (number & kNumberMask);
  request.sg_list = &piece;
  request.num_sge = bytes > 0 ? 1 : 0;
  request.wr.rdma = {remote, remote_key_};
  return request;
}

void QueuePair::write(Kind kind, const void* from, size_t bytes, uint64_t remote) {
  ibv_send_wr& request = queue(kind, from, bytes, remote);
  request.opcode = IBV_WR_RDMA_WRITE;
  if (bytes > 0 && bytes <= max_inline_) request.send_flags = IBV_SEND_INLINE;
}

void QueuePair::read(Kind kind, void* to, size_t bytes, uint64_t remote) {
  queue(kind, to, bytes, remote).opcode = IBV_WR_RDMA_READ;
}

int QueuePair::post(bool complete) {
  for (uint32_t i = 0; i + 1 < queued_; ++i) requests_[i].next = &requests_[i + 1];
  ibv_send_wr& last = requests_[queued_ - 1];
  const uint64_t number = posted_ + std::exchange(queued_, 0);
  const bool asks = complete || number - asked_ >= kSignalEvery;
  if (asks) last.send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(handle_.get(), requests_, &bad)) return error;
  posted_ = number;
  if (asks) asked_ = number;
  return 0;
}

// Requests complete in order: the completion of one stands for all before it.
void QueuePair::reap(uint64_t id) { reaped_ = std::max(reaped_, id & kNumberMask); }

}  // namespace rocenante::verbs
