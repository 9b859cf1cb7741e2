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
// `elsewhere`: the peer may still be reached over another rail.
std::string advice(ibv_wc_status status, bool elsewhere) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      if (elsewhere)
        return "this way there does not answer: check the ports at both ends, cable and switch "
               "(rdma link, ip link), the addresses, and loss counters (rdma statistic show, "
               "ethtool -S)";
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
  std::map<ibv_context*, int> queue_pairs;
  for (int r = 0; r < size_; ++r) {
    if (!pushed(r)) continue;
    const int low = std::min(rank_, r), high = std::max(rank_, r);
    const auto all = routes(group_.hello(low).ports, group_.hello(high).ports);
    const size_t mine = rank_ == low ? 0 : 1;
    Peer& p = peer(r);
    // What is written to a region is not kept to be sent again, so it goes over one rail.
    const size_t most = group_.region_bytes > 0 ? 1 : group_.config.rails;
    p.rails.resize(std::min(all.size(), most));
    for (size_t i = 0; i < p.rails.size(); ++i) {
      // Each pair starts with another one: so what a rank sends to its peers in one step is spread
      // over its ports also where nothing is large enough for stripes.
      const Route& route = all[(static_cast<size_t>(low + high) + i) % all.size()];
      Rail& rail = p.rails[i];
      rail.port = route.port[mine];
      rail.gid = route.gid[mine];
      rail.remote_port = route.port[1 - mine];
      rail.remote_gid = route.gid[1 - mine];
      rail.mtu = std::min(local_port(rail).mtu, remote_port(r, rail).mtu);
      p.live.push_back(static_cast<uint8_t>(i));
      ++queue_pairs[devices_->context(rail.port)];
    }
  }
  for (int r = 0; r < size_; ++r)
    for (size_t i = 0; i < peer(r).rails.size(); ++i) {
      Rail& rail = peer(r).rails[i];
      Memory& memory = memory_of(rail.port, queue_pairs[devices_->context(rail.port)]);
      rail.queue_pair = std::make_unique<QueuePair>(memory, r, i, local_port(rail).number);
    }
}

const Port& VerbsTransport::remote_port(int rank, const Rail& rail) const {
  return group_.hello(rank).ports[rail.remote_port];
}

Memory& VerbsTransport::memory_of(size_t port, int queue_pairs) {
  auto& memory = memories_[devices_->context(port)];
  if (!memory)
    memory = std::make_unique<Memory>(devices_->context(port), devices_->ports()[port].device,
                                      window(), layout_.bytes(),
                                      queue_pairs * static_cast<int>(QueuePair::kDepth));
  return *memory;
}

// "rxe0:1 (10.77.0.1) to rxe1:1 (10.77.0.2) on spark-2"
std::string VerbsTransport::way_to(int rank, const Rail& rail) {
  return place_of(local_port(rail), local_port(rail).gids[rail.gid]) + " to " +
         place_of(remote_port(rank, rail), remote_port(rank, rail).gids[rail.remote_gid]) + " on " +
         group_.hello(rank).hostname;
}

Address VerbsTransport::address() {
  Address a = ShmTransport::address();
  a.window_base = reinterpret_cast<uint64_t>(window());
  for (size_t port = 0; port < devices_->ports().size(); ++port) {
    const auto found = memories_.find(devices_->context(port));
    a.keys.push_back(found == memories_.end() ? 0 : found->second->remote_key());
  }
  for (const Peer& p : peers_) {
    auto& addresses = a.queue_pairs.emplace_back();
    for (const Rail& rail : p.rails) addresses.push_back(rail.queue_pair->address());
  }
  return a;
}

void VerbsTransport::attach(int rank, const Address& theirs) {
  if (!pushed(rank)) return ShmTransport::attach(rank, theirs);
  Peer& p = peer(rank);
  if (theirs.queue_pairs.size() != static_cast<size_t>(size_) ||
      theirs.queue_pairs[static_cast<size_t>(rank_)].size() != p.rails.size() ||
      theirs.keys.size() != group_.hello(rank).ports.size() ||
      theirs.window_bytes != layout_.bytes())
    throw Error(ErrorKind::system,
                "rank " + std::to_string(rank) + " announced a window that does not fit the group");
  p.window = theirs.window_base;
  for (size_t i = 0; i < p.rails.size(); ++i) connect(rank, i, theirs);
  if (!p.error.empty()) throw Error(ErrorKind::system, p.error);
  for (uint64_t epoch : {0u, 1u}) {
    views_[rank].line[epoch] =
        reinterpret_cast<SignalLine*>(window() + layout_.line_from(rank, epoch));
    views_[rank].slot[epoch] = window() + layout_.slot_from(rank, epoch);
  }
  views_[rank].pushed = true;
  for (const uint8_t i : p.live)
    log(LogLevel::info, "rank " + std::to_string(rank_) + " reaches rank " + std::to_string(rank) +
                            " from " + way_to(rank, p.rails[i]) + " in packets of " +
                            std::to_string(128 << p.rails[i].mtu) + " bytes");
}

void VerbsTransport::connect(int rank, size_t index, const Address& theirs) {
  Rail& rail = peer(rank).rails[index];
  QueuePair::Ends ends;
  ends.there = theirs.queue_pairs[static_cast<size_t>(rank_)][index];
  ends.remote_gid = remote_port(rank, rail).gids[rail.remote_gid];
  ends.local_gid_index = devices_->gid_index(rail.port, rail.gid);
  ends.mtu = rail.mtu;
  ends.traffic_class = group_.config.ib_traffic_class;
  ends.timeout = group_.config.ib_timeout;
  ends.key = theirs.keys[rail.remote_port];
  try {
    rail.queue_pair->connect(ends);
  } catch (const Error& e) {
    give_up(rank, index,
            "cannot connect to rank " + std::to_string(rank) + " from " + way_to(rank, rail) +
                ": " + e.what() + ": check that the two addresses can ping each other");
  }
}

void VerbsTransport::open() {
  ShmTransport::open();
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    for (const uint8_t i : std::vector(peer(r).live)) {
      const size_t packet = size_t{128} << peer(r).rails[i].mtu;
      peer(r).rails[i].queue_pair->write(Kind::probe, window(), packet,
                                         peer(r).window + layout_.probe());
      post(r, i, true);
    }
  // The retry limit turns silence into an error before this is over.
  constexpr Milliseconds kPatience{20'000};
  wait_for_completions(kPatience, quiet);
  for (int r = 0; r < size_; ++r) {
    const Peer& p = peer(r);
    // A quick one may have come and gone.
    if (!pushed(r) || end_in(notice_from(r)) || (p.error.empty() && quiet(p))) continue;
    const Rail& rail = p.rails[p.live.empty() ? 0 : p.live[0]];
    throw Error(ErrorKind::system, "packets of " + std::to_string(128 << rail.mtu) +
                                       " bytes do not reach rank " + std::to_string(r) + " from " +
                                       way_to(r, rail) +
                                       " (is the MTU as large all along the way?): " +
                                       (p.error.empty() ? "no answer" : p.error));
  }
}

void VerbsTransport::post(int rank, size_t index, bool complete) {
  Rail& rail = peer(rank).rails[index];
  if (const int error = rail.queue_pair->post(complete))
    give_up(rank, index,
            with_errno("cannot post to the queue pair from " + way_to(rank, rail), error));
}

// Waits until the rail's send queue has room; false if it is dead.
bool VerbsTransport::make_room(int rank, size_t index) {
  Rail& rail = peer(rank).rails[index];
  if (rail.error.empty() && rail.queue_pair->full()) {
    reap();
    // An acknowledgement comes from the peer's NIC, whatever its process does.
    const Deadline deadline(Milliseconds(10'000));
    while (rail.error.empty() && rail.queue_pair->full()) {
      if (deadline.passed()) {
        give_up(rank, index,
                "nothing was acknowledged for " + std::to_string(deadline.budget().count()) +
                    " ms on the way from " + way_to(rank, rail));
        break;
      }
      sched_yield();
      reap();
    }
  }
  return rail.error.empty();
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
  const size_t index = QueuePair::rail_of(completion.wr_id);
  const Kind kind = QueuePair::kind_of(completion.wr_id);
  Peer& p = peer(rank);
  Rail& rail = p.rails[index];
  rail.queue_pair->reap(completion.wr_id);
  if (!rail.error.empty()) return;
  if (completion.status == IBV_WC_SUCCESS) {
    if (kind == Kind::rail_end) report(rank);
    return;
  }
  give_up(rank, index,
          "the " + std::string(name_of(kind)) + " sent from " + way_to(rank, rail) +
              " failed with \"" + Library::get().ibv_wc_status_str(completion.status) +
              "\" (status " + std::to_string(completion.status) + "): " +
              advice(completion.status, p.live.size() > 1) + devices_->port_trouble(rail.port));
}

bool VerbsTransport::quiet(const Peer& p) {
  return std::all_of(p.live.begin(), p.live.end(),
                     [&](uint8_t rail) { return p.rails[rail].queue_pair->quiet(); });
}

bool VerbsTransport::wait_for_completions(Milliseconds budget,
                                          const std::function<bool(const Peer&)>& done) {
  const Deadline deadline(budget);
  for (;;) {
    reap();
    attend();
    bool all = true;
    for (int r = 0; r < size_; ++r)
      if (const Peer& p = peer(r); !p.live.empty() && !end_in(notice_from(r))) all &= done(p);
    if (all || deadline.passed()) return all;
    sched_yield();
  }
}

// An idle queue pair never notices that its peer has died. So whoever has waited for a while writes
// nothing at all to the peer it misses, which only a live one acknowledges.
std::optional<Loss> VerbsTransport::lost(int rank) {
  const std::lock_guard lock(mutex_);
  reap();
  attend();
  if (!pushed(rank)) return ShmTransport::lost(rank);
  // Looked at after the completions: what a peer pushed before it left had been acknowledged.
  if (auto end = end_in(notice_from(rank))) return end;
  Peer& p = peer(rank);
  for (const uint8_t i : std::vector(p.live)) {
    QueuePair& queue_pair = *p.rails[i].queue_pair;
    if (!queue_pair.quiet() || queue_pair.full()) continue;
    queue_pair.write(Kind::keep_alive, nullptr, 0, p.window);
    post(rank, i, true);
  }
  if (!p.error.empty()) return Loss{p.error};
  return std::nullopt;
}

std::string VerbsTransport::about(int rank) {
  if (!pushed(rank)) return ShmTransport::about(rank);
  const std::lock_guard lock(mutex_);
  const Peer& p = peer(rank);
  const char* answers = !p.error.empty() ? ", which does not answer"
                        : quiet(p)       ? ", which answers"
                                         : ", which acknowledges late or not at all";
  return "pid " + std::to_string(group_.hello(rank).pid) + " on " + group_.hello(rank).hostname +
         answers;
}

}  // namespace rocenante::verbs
