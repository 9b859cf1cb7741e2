// When a rail dies: see transport/rails.h for what both ends do about it, and why in this order.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/log.h"
#include "transport/verbs/transport.h"

namespace rocenante::verbs {

RailEnd& VerbsTransport::end_from(int rank, size_t rail) {
  return *reinterpret_cast<RailEnd*>(window() + layout_.rail_end_from(rank, rail));
}

RailEnd& VerbsTransport::end_to(int rank, size_t rail) {
  return *reinterpret_cast<RailEnd*>(window() + layout_.rail_end_to(rank, rail));
}

void VerbsTransport::give_up(int rank, size_t index, const std::string& why) {
  Peer& p = peer(rank);
  Rail& rail = p.rails[index];
  if (!rail.error.empty()) return;
  rail.error = why;
  std::erase(p.live, static_cast<uint8_t>(index));
  const bool stopped = rail.queue_pair->stop();
  if (!stopped) p.live.clear();  // it may still receive, so nothing can take its place
  if (p.live.empty()) {
    p.error = why;
    if (!stopped)
      p.error += "; and its device does not stop it";
    else if (p.rails.size() > 1)
      p.error += "; no other of its " + std::to_string(p.rails.size()) + " rails is left";
    p.ailing = false;
    return;
  }
  RailEnd& end = end_to(rank, index);
  const SignalLine* lines[2];
  for (uint64_t epoch : {0u, 1u})
    lines[epoch] = reinterpret_cast<SignalLine*>(window() + layout_.line_from(rank, epoch));
  note_steps(end, lines);
  for (uint64_t i = 0; i < kRingSlots; ++i)
    end.fragments[i] = fragment_from(rank, i).number.load(std::memory_order_acquire);
  end.dropped.store(1, std::memory_order_release);
  // Also the notes of earlier ones: they may have been under way on this one.
  for (Rail& dead : p.rails) dead.told = false;
  p.ailing = ailing_ = true;
}

// Does what can be done now about rails that died. Whoever waits, whomever for, has to call this:
// the peer it waits for may be waiting for another, and that one for this rank.
void VerbsTransport::attend() {
  for (int r = 0; r < size_; ++r) tend(r);
  ailing_ = std::any_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.ailing; });
}

void VerbsTransport::tend(int rank) {
  Peer& p = peer(rank);
  if (p.rails.size() < 2) return;
  for (const uint8_t i : std::vector(p.live))
    if (end_from(rank, i).dropped.load(std::memory_order_acquire) != 0)
      give_up(rank, i,
              "rank " + std::to_string(rank) + " gave up the rail from " +
                  way_to(rank, p.rails[i]) + " (its log says why)" +
                  devices_->port_trouble(p.rails[i].port));
  if (!p.ailing) return;
  for (size_t i = 0; i < p.rails.size() && !p.live.empty(); ++i) {
    Rail& rail = p.rails[i];
    if (rail.error.empty()) continue;
    if (!rail.told) tell(rank, i);
    if (!rail.mended && end_from(rank, i).dropped.load(std::memory_order_acquire) != 0)
      mend(rank, i);
  }
  p.ailing = !p.live.empty() && std::any_of(p.rails.begin(), p.rails.end(), [](const Rail& rail) {
    return !rail.error.empty() && !(rail.told && rail.reported && rail.mended);
  });
}

void VerbsTransport::tell(int rank, size_t index) {
  Peer& p = peer(rank);
  const size_t over = p.live[0];
  if (!make_room(rank, over)) return;  // the next time
  const RailEnd& end = end_to(rank, index);
  const uint64_t remote = p.window + layout_.rail_end_from(rank_, index);
  constexpr size_t begin = offsetof(RailEnd, steps);
  QueuePair& queue_pair = *p.rails[over].queue_pair;
  queue_pair.write(Kind::rail_end, end.steps, sizeof(RailEnd) - begin, remote + begin);
  queue_pair.write(Kind::rail_end, &end.dropped, sizeof end.dropped, remote);
  p.rails[index].told = true;
  post(rank, over, true);
}

// Sends again what was lost with a rail that both ends have given up.
void VerbsTransport::mend(int rank, size_t index) {
  Peer& p = peer(rank);
  p.rails[index].mended = true;
  const RailEnd& theirs = end_from(rank, index);
  for (uint64_t epoch : {0u, 1u})
    for (size_t k = 0; k < kMaxRails && !p.live.empty(); ++k) {
      if (!lost_with(index, theirs, p.steps[epoch], k)) continue;
      p.steps[epoch].rail[k] = p.live[k % p.live.size()];
      send_stripe(rank, epoch, k);
    }
  for (SentFragment& sent : p.fragments) {
    if (p.live.empty() || !lost_with(index, theirs, sent)) continue;
    sent.rail = p.live[sent.number % p.live.size()];
    send_fragment(rank, sent.number);
  }
  // Only the last credit counts, and one from before may have landed after it until now.
  if (p.credit > 0) send_credit(rank);
}

// Once something has reached the peer over another rail: else it is the peer that died.
void VerbsTransport::report(int rank) {
  Peer& p = peer(rank);
  for (Rail& rail : p.rails) {
    if (rail.error.empty() || !rail.told || std::exchange(rail.reported, true)) continue;
    log(LogLevel::warn, "rank " + std::to_string(rank_) + " goes on over " +
                            std::to_string(p.live.size()) + " of " +
                            std::to_string(p.rails.size()) + " rails to rank " +
                            std::to_string(rank) + ": " + rail.error);
  }
}

}  // namespace rocenante::verbs
