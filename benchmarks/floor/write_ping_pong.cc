// The floor of every exchange over RDMA: two processes, a device each, that write to each other in
// turns and do nothing else. No library of ours; the last word of a message says which round it is.
//   write_ping_pong BYTES ROUNDS DEVICE DEVICE [SPINS]
// prints half of each round trip in microseconds, one a line. A wait gives its processor away after
// every SPINS polls (1), as two processes on one processor must.
#include <infiniband/verbs.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kWarmups = 200;
constexpr uint64_t kPatience = 10'000'000'000;  // nanoseconds without an answer
constexpr uint32_t kWantedInline = 192, kSignalEvery = 32, kDepth = 128;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "write_ping_pong: %s: %s\n", what, std::strerror(errno));
  _exit(1);
}

template <class T>
T* made(T* thing, const char* what) {
  if (thing == nullptr) fail(what);
  return thing;
}

void done(int error, const char* what) {
  errno = error;
  if (error != 0) fail(what);
}

uint64_t nanoseconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1'000'000'000 + uint64_t(t.tv_nsec);
}

struct End {
  ibv_gid gid;
  uint32_t queue_pair, key;
  uint64_t inbox;
};

// Both processes' ends, in memory that they share.
struct Meeting {
  End ends[2];
  std::atomic<int> ready;
};

class Player {
 public:
  Player(Meeting& meeting, int me, const char* device, size_t bytes, int spins)
      : me_(me), bytes_(bytes), spins_(spins) {
    open(device);
    memory_.resize(2 * room());
    region_ = made(ibv_reg_mr(domain_, memory_.data(), memory_.size() * sizeof(uint64_t),
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
                   "ibv_reg_mr");
    completions_ = made(ibv_create_cq(context_, kDepth, nullptr, nullptr, 0), "ibv_create_cq");
    make_queue_pair();
    meeting.ends[me] = {gid_, queue_pair_->qp_num, region_->rkey,
                        reinterpret_cast<uint64_t>(inbox())};
    wait_for(meeting, 2);
    connect(meeting.ends[1 - me]);
    wait_for(meeting, 4);
  }

  void play(int rounds) {
    std::vector<double> times;
    for (int i = 1; i <= kWarmups + rounds; ++i) {
      const uint64_t start = nanoseconds();
      if (me_ == 0) send(uint64_t(i));
      await(uint64_t(i));
      if (me_ == 1) send(uint64_t(i));
      if (i > kWarmups) times.push_back(double(nanoseconds() - start) / 2e3);
    }
    if (me_ == 0)
      for (double t : times) std::printf("%.3f\n", t);
    std::fflush(stdout);
  }

 private:
  size_t room() const { return (bytes_ + 7) / 8; }
  uint64_t* inbox() { return memory_.data(); }
  uint64_t* outbox() { return memory_.data() + room(); }

  static void wait_for(Meeting& meeting, int all) {
    ++meeting.ready;
    for (const uint64_t start = nanoseconds(); meeting.ready < all; sched_yield())
      if (nanoseconds() - start > kPatience) done(ETIMEDOUT, "waiting for the other process");
  }

  void open(const char* name) {
    int count = 0;
    ibv_device** devices = made(ibv_get_device_list(&count), "ibv_get_device_list");
    for (int i = 0; i < count; ++i)
      if (std::string(name) == ibv_get_device_name(devices[i]))
        context_ = made(ibv_open_device(devices[i]), "ibv_open_device");
    if (context_ == nullptr) done(ENODEV, name);
    domain_ = made(ibv_alloc_pd(context_), "ibv_alloc_pd");
    // The IPv4 address of RoCE v2; GIDs are filled in order, and end with the first empty one.
    for (ibv_gid_entry entry{}; ibv_query_gid_ex(context_, 1, gid_index_, &entry, 0) == 0;
         ++gid_index_)
      if (entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.gid.raw[10] == 0xff) {
        gid_ = entry.gid;
        return;
      }
    done(EADDRNOTAVAIL, name);
  }

  void make_queue_pair() {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = completions_;
    init.qp_type = IBV_QPT_RC;
    init.cap = {kDepth, 1, 1, 1, kWantedInline};
    queue_pair_ = made(ibv_create_qp(domain_, &init), "ibv_create_qp");
    max_inline_ = init.cap.max_inline_data;
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    done(ibv_modify_qp(queue_pair_, &a,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
         "ibv_modify_qp to INIT");
  }

  void connect(const End& there) {
    there_ = there;
    ibv_port_attr port{};
    done(ibv_query_port(context_, 1, &port), "ibv_query_port");
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = port.active_mtu;
    a.dest_qp_num = there.queue_pair;
    a.max_dest_rd_atomic = 1;
    a.min_rnr_timer = 12;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh = {there.gid, 0, gid_index_, 64, 0};
    done(ibv_modify_qp(queue_pair_, &a,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "ibv_modify_qp to RTR");
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 14;
    a.retry_cnt = a.rnr_retry = 6;
    a.max_rd_atomic = 1;
    done(ibv_modify_qp(queue_pair_, &a,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
         "ibv_modify_qp to RTS");
  }

  void send(uint64_t round) {
    outbox()[room() - 1] = round;
    ibv_sge piece{reinterpret_cast<uint64_t>(outbox()), uint32_t(room() * 8), region_->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.wr.rdma = {there_.inbox, there_.key};
    if (piece.length <= max_inline_) request.send_flags |= IBV_SEND_INLINE;
    if (round % kSignalEvery == 0) request.send_flags |= IBV_SEND_SIGNALED;
    done(ibv_post_send(queue_pair_, &request, &bad), "ibv_post_send");
  }

  // All but rxe may show the last word before the others: this measures, it does not use the rest.
  void await(uint64_t round) {
    const std::atomic_ref<uint64_t> last(inbox()[room() - 1]);
    const uint64_t start = nanoseconds();
    for (int polls = 0; last.load(std::memory_order_acquire) != round;) {
      if (++polls < spins_) continue;
      sched_yield();
      polls = 0;
      if (nanoseconds() - start > kPatience) done(ETIMEDOUT, "waiting for a message");
    }
    ibv_wc completion{};
    while (ibv_poll_cq(completions_, 1, &completion) > 0)
      if (completion.status != IBV_WC_SUCCESS) done(EIO, ibv_wc_status_str(completion.status));
  }

  const int me_;
  const size_t bytes_;
  const int spins_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_qp* queue_pair_ = nullptr;
  ibv_gid gid_{};
  uint8_t gid_index_ = 0;
  uint32_t max_inline_ = 0;
  End there_{};
  std::vector<uint64_t> memory_;
};

}  // namespace

int main(int count, char** words) {
  if (count != 5 && count != 6) {
    std::fprintf(stderr, "write_ping_pong BYTES ROUNDS DEVICE DEVICE [SPINS]\n");
    return 2;
  }
  const size_t bytes = std::strtoull(words[1], nullptr, 10);
  const int rounds = std::atoi(words[2]), spins = count == 6 ? std::atoi(words[5]) : 1;
  if (bytes < 1 || rounds < 1) return 2;
  auto& meeting = *static_cast<Meeting*>(
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const pid_t child = fork();
  const int me = child == 0;
  Player(meeting, me, words[3 + me], bytes, spins).play(rounds);
  if (me == 1) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
