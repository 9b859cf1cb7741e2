// Connections to the ranks on other hosts: made at init, watched ever after.
#include <sched.h>

#include <algorithm>
#include <cstddef>

#include "core/error.h"
#include "core/log.h"
#include "transport/verbs/transport.h"

namespace rocenante::verbs {

namespace {

// What a failed completion means to a person.
std::string advice(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return "it does not answer: its process or its host died (see its log and its kernel's), or "
             "the network between lost everything: check links, addresses, that UDP port 4791 is "
             "open, and loss counters (rdma statistic show, ethtool -S)";
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      return "it refuses access to its window: it ended, or runs another build of rocenante";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "it is not ready to receive, which it need not be: report this";
    case IBV_WC_WR_FLUSH_ERR:
      return "the connection was broken by an earlier error";
    default:
      return "see the kernel's log (dmesg) for the device";
  }
}

std::string place_of(const Port& port, const Gid& gid) {
  return port.device + ":" + std::to_string(port.number) + " (" + text_of(gid) + ")";
}

}  // namespace

VerbsTransport::VerbsTransport(const Group& group, std::shared_ptr<Devices> devices)
    : ShmTransport(group), devices_(std::move(devices)), peers_(static_cast<size_t>(size_)) {
  for (int r = 0; r < size_; ++r) {
    if (!pushed(r)) continue;
    const int low = std::min(rank_, r), high = std::max(rank_, r);
    const auto all = routes(group_.hello(low).ports, group_.hello(high).ports);
    // Pairs spread over what there is.
    const Route& route = all[static_cast<size_t>(low + high) % all.size()];
    const size_t mine = rank_ == low ? 0 : 1;
    Peer& p = peer(r);
    p.port = route.port[mine];
    p.gid = route.gid[mine];
    p.remote_port = route.port[1 - mine];
    p.remote_gid = route.gid[1 - mine];
    p.mtu = std::min(local_port(p).mtu, remote_port(r).mtu);
    p.queue_pair = std::make_unique<QueuePair>(memory_of(p.port), r, local_port(p).number);
  }
}

const Port& VerbsTransport::remote_port(int rank) const {
  return group_.hello(rank).ports[peers_[static_cast<size_t>(rank)].remote_port];
}

Memory& VerbsTransport::memory_of(size_t port) {
  auto& memory = memories_[devices_->context(port)];
  if (!memory)
    memory =
        std::make_unique<Memory>(devices_->context(port), devices_->ports()[port].device, window(),
                                 layout_.bytes(), size_ * static_cast<int>(QueuePair::kDepth));
  return *memory;
}

// "rxe0:1 (10.77.0.1) to rxe1:1 (10.77.0.2) on spark-2"
std::string VerbsTransport::way_to(int rank) {
  const Peer& p = peer(rank);
  return place_of(local_port(p), local_port(p).gids[p.gid]) + " to " +
         place_of(remote_port(rank), remote_port(rank).gids[p.remote_gid]) + " on " +
         group_.hello(rank).hostname;
}

Address VerbsTransport::address() {
  Address a = ShmTransport::address();
  a.window_base = reinterpret_cast<uint64_t>(window());
  for (size_t port = 0; port < devices_->ports().size(); ++port) {
    const auto found = memories_.find(devices_->context(port));
    a.keys.push_back(found == memories_.end() ? 0 : found->second->remote_key());
  }
  for (const Peer& p : peers_)
    a.queue_pairs.push_back(p.queue_pair ? p.queue_pair->address() : QueuePairAddress{});
  return a;
}

void VerbsTransport::attach(int rank, const Address& theirs) {
  if (!pushed(rank)) return ShmTransport::attach(rank, theirs);
  Peer& p = peer(rank);
  if (theirs.queue_pairs.size() != static_cast<size_t>(size_) ||
      theirs.keys.size() <= p.remote_port || theirs.window_bytes != layout_.bytes())
    throw Error(ErrorKind::system,
                "rank " + std::to_string(rank) + " announced a window that does not fit the group");
  QueuePair::Ends ends;
  ends.there = theirs.queue_pairs[static_cast<size_t>(rank_)];
  ends.remote_gid = remote_port(rank).gids[p.remote_gid];
  ends.local_gid_index = devices_->gid_index(p.port, p.gid);
  ends.mtu = p.mtu;
  ends.traffic_class = group_.config.ib_traffic_class;
  ends.timeout = group_.config.ib_timeout;
  ends.key = theirs.keys[p.remote_port];
  try {
    p.queue_pair->connect(ends);
  } catch (const Error& e) {
    throw Error(ErrorKind::system, "cannot connect to rank " + std::to_string(rank) + " from " +
                                       way_to(rank) + ": " + e.what() +
                                       ": check that the two addresses can ping each other");
  }
  p.window = theirs.window_base;
  for (uint64_t epoch : {0u, 1u}) {
    views_[rank].line[epoch] =
        reinterpret_cast<SignalLine*>(window() + layout_.line_from(rank, epoch));
    views_[rank].slot[epoch] = window() + layout_.slot_from(rank, epoch);
  }
  views_[rank].pushed = true;
  log(LogLevel::info, "rank " + std::to_string(rank_) + " reaches rank " + std::to_string(rank) +
                          " from " + way_to(rank) + " in packets of " +
                          std::to_string(128 << p.mtu) + " bytes");
}

void VerbsTransport::open() {
  ShmTransport::open();
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r) {
    if (!pushed(r)) continue;
    Peer& p = peer(r);
    // Into a slot that nobody fills before the second step, which no rank can reach before this
    // rank's first.
    const size_t packet = size_t{128} << p.mtu;
    p.queue_pair->write(Kind::probe, slot(0), packet, p.window + layout_.slot_from(rank_, 0));
    post(r, true);
  }
  // The retry limit turns silence into an error before this is over.
  constexpr Milliseconds kPatience{20'000};
  wait_for_completions(kPatience, [](const Peer& p) { return p.queue_pair->quiet(); });
  for (int r = 0; r < size_; ++r)
    if (pushed(r) && !end_in(notice_from(r)) &&  // a quick one may have come and gone
        (!peer(r).error.empty() || !peer(r).queue_pair->quiet()))
      throw Error(ErrorKind::system, "packets of " + std::to_string(128 << peer(r).mtu) +
                                         " bytes do not reach rank " + std::to_string(r) +
                                         " from " + way_to(r) +
                                         " (is the MTU as large all along the way?): " +
                                         (peer(r).error.empty() ? "no answer" : peer(r).error));
}

void VerbsTransport::post(int rank, bool complete) {
  Peer& p = peer(rank);
  if (const int error = p.queue_pair->post(complete); error != 0 && p.error.empty())
    p.error = with_errno("cannot post to the queue pair for " + way_to(rank), error);
}

// Waits until the send queue has room; false if nothing can be sent to the peer any more.
bool VerbsTransport::make_room(int rank) {
  Peer& p = peer(rank);
  if (p.error.empty() && p.queue_pair->full()) {
    reap();
    // An acknowledgement comes from the peer's NIC, whatever its process does.
    const Deadline deadline(Milliseconds(10'000));
    while (p.error.empty() && p.queue_pair->full()) {
      if (deadline.passed()) {
        p.error = "nothing was acknowledged for " + std::to_string(deadline.budget().count()) +
                  " ms on the way from " + way_to(rank);
        break;
      }
      sched_yield();
      reap();
    }
  }
  return p.error.empty();
}

void VerbsTransport::reap() {
  ibv_wc completions[16];
  for (auto& [context, memory] : memories_)
    for (;;) {
      const int count = ibv_poll_cq(memory->completions(), 16, completions);
      for (int i = 0; i < count; ++i) take_completion(completions[i]);
      if (count < 16) break;
    }
}

void VerbsTransport::take_completion(const ibv_wc& completion) {
  const int rank = QueuePair::peer_of(completion.wr_id);
  Peer& p = peer(rank);
  p.queue_pair->reap(completion.wr_id);
  if (completion.status == IBV_WC_SUCCESS || !p.error.empty()) return;
  p.error = "the " + std::string(name_of(QueuePair::kind_of(completion.wr_id))) + " sent from " +
            way_to(rank) + " failed with \"" + Library::get().ibv_wc_status_str(completion.status) +
            "\" (status " + std::to_string(completion.status) + "): " + advice(completion.status) +
            devices_->port_trouble(p.port);
}

// True if every peer that can still be reached is `done`.
bool VerbsTransport::wait_for_completions(Milliseconds budget,
                                          const std::function<bool(const Peer&)>& done) {
  const Deadline deadline(budget);
  for (;;) {
    reap();
    bool all = true;
    for (int r = 0; r < size_; ++r)
      if (const Peer& p = peer(r); p.queue_pair && p.error.empty() && !end_in(notice_from(r)))
        all &= done(p);
    if (all || deadline.passed()) return all;
    sched_yield();
  }
}

// An idle queue pair never notices that its peer has died. So whoever has waited for a while writes
// nothing at all to the peer it misses, which only a live one acknowledges.
std::optional<Loss> VerbsTransport::lost(int rank) {
  if (!pushed(rank)) return ShmTransport::lost(rank);
  const std::lock_guard lock(mutex_);
  reap();
  // Looked at after the completions: what a peer pushed before it left had been acknowledged.
  if (auto end = end_in(notice_from(rank))) return end;
  Peer& p = peer(rank);
  if (!p.error.empty()) return Loss{p.error};
  if (p.queue_pair->quiet() && !p.queue_pair->full()) {
    p.queue_pair->write(Kind::keep_alive, nullptr, 0, p.window);
    post(rank, true);
  }
  return std::nullopt;
}

std::string VerbsTransport::about(int rank) {
  if (!pushed(rank)) return ShmTransport::about(rank);
  const std::lock_guard lock(mutex_);
  const Peer& p = peer(rank);
  const char* answers = !p.error.empty()        ? ", which does not answer"
                        : p.queue_pair->quiet() ? ", which answers"
                                                : ", which acknowledges late or not at all";
  return "pid " + std::to_string(group_.hello(rank).pid) + " on " + group_.hello(rank).hostname +
         answers;
}

}  // namespace rocenante::verbs
