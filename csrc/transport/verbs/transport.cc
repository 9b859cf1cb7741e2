#include "transport/verbs/transport.h"

#include <cstddef>
#include <cstring>

#include "core/error.h"
#include "exchange/digest.h"

namespace rocenante::verbs {

Notice& VerbsTransport::notice_from(int rank) {
  return *reinterpret_cast<Notice*>(window() + layout_.notice_from(rank));
}

void VerbsTransport::publish(const Publication& p) {
  ShmTransport::publish(p);
  const uint32_t line_digest = p.in_line ? digest(inline_data(p.step & 1), p.bytes) : 0;
  const std::lock_guard lock(mutex_);
  // Starting behind this rank spreads the senders over the receivers.
  for (int k = 1; k < size_; ++k)
    if (const int r = (rank_ + k) % size_; pushed(r)) push(r, p, line_digest);
}

// A staged part must stay as it is until the NIC has read it. It does, without waiting for a
// completion: the slot is staged anew two steps later, and by then (I1) this rank has seen the
// peer's signal of the step between, which the peer published after it had received this part.
void VerbsTransport::push(int rank, const Publication& p, uint32_t line_digest) {
  if (!make_room(rank)) return;
  Peer& to = peer(rank);
  QueuePair& queue_pair = *to.queue_pair;
  const uint64_t epoch = p.step & 1;
  const uint64_t line = to.window + layout_.line_from(rank_, epoch);
  const Part part = p.parts.of(rank);
  if (p.in_line && part.bytes > 0) {
    // Contribution and signal in one write; see exchange/digest.h.
    struct {
      uint64_t signal;
      char data[kInlineBytes];
    } image;
    image.signal = p.signal ^ uint64_t{line_digest} << 32;
    std::memcpy(image.data, inline_data(epoch), p.bytes);
    queue_pair.write(Kind::signal, &image, sizeof image.signal + p.bytes, line);
    post(rank);
    return;
  }
  const size_t most = devices_->max_message(to.port);
  for (size_t at = 0; at < part.bytes;) {
    const size_t bytes = std::min(part.bytes - at, most), offset = part.offset + at;
    queue_pair.write(Kind::payload, slot(epoch) + offset, bytes,
                     to.window + layout_.slot_from(rank_, epoch) + offset);
    at += bytes;
    if (at == part.bytes) break;  // the last one goes together with the signal
    post(rank);
    if (!make_room(rank)) return;
  }
  // I3: on one reliable connection writes take effect in the order in which they were posted.
  queue_pair.write(Kind::signal, &p.signal, sizeof p.signal, line);
  post(rank);
}

void VerbsTransport::push_fragment(int rank, uint64_t number, const Fragment& f,
                                   const void* payload) {
  if (!pushed(rank)) return ShmTransport::push_fragment(rank, number, f, payload);
  // The staged copy is reused four fragments later, when the peer has given credit for this one.
  auto& staged = *reinterpret_cast<Fragment*>(window() + layout_.fragment_to(rank, number));
  staged.message_bytes = f.message_bytes;
  staged.bytes = f.bytes;
  staged.tag = f.tag;
  staged.dtype = f.dtype;
  staged.first = f.first;
  if (f.bytes > 0) std::memcpy(staged.payload, payload, f.bytes);
  const std::lock_guard lock(mutex_);
  if (!make_room(rank)) return;
  Peer& to = peer(rank);
  const uint64_t remote = to.window + layout_.fragment(rank_, number);
  constexpr size_t begin = offsetof(Fragment, message_bytes);
  to.queue_pair->write(Kind::fragment, &staged.message_bytes,
                       offsetof(Fragment, payload) - begin + f.bytes, remote + begin);
  to.queue_pair->write(Kind::fragment, &number, sizeof number, remote);  // I3, as in push()
  post(rank);
}

void VerbsTransport::push_credit(int rank, uint64_t consumed) {
  if (!pushed(rank)) return ShmTransport::push_credit(rank, consumed);
  const std::lock_guard lock(mutex_);
  if (!make_room(rank)) return;
  Peer& to = peer(rank);
  to.queue_pair->write(Kind::credit, &consumed, sizeof consumed,
                       to.window + offsetof(WindowHeader, credits) +
                           static_cast<size_t>(rank_) * sizeof(WindowHeader::Credit));
  post(rank);
}

// As in push(), the bytes need no completion before they are overwritten.
void VerbsTransport::push_region(int rank, const RegionWrite& w) {
  if (!pushed(rank)) return ShmTransport::push_region(rank, w);
  const std::lock_guard lock(mutex_);
  if (!make_room(rank)) return;
  Peer& to = peer(rank);
  const uint64_t theirs = to.window + layout_.region();
  if (w.bytes > 0) to.queue_pair->write(Kind::payload, region() + w.from, w.bytes, theirs + w.to);
  if (w.signal)  // I3, as in push()
    to.queue_pair->write(Kind::signal, &*w.signal, sizeof *w.signal, theirs + w.signal_to);
  post(rank);
}

// The peers elsewhere learn of it in their own windows: first what there is to say, then the state.
void VerbsTransport::leave(const std::string& reason) {
  if (!end(reason)) return;
  const Notice& mine = header().notice;
  const auto state = mine.state.load(std::memory_order_relaxed);
  constexpr size_t begin = offsetof(Notice, reason);
  std::unique_lock lock(mutex_);
  for (int r = 0; r < size_; ++r) {
    if (!pushed(r) || peer(r).window == 0 || !make_room(r)) continue;
    QueuePair& queue_pair = *peer(r).queue_pair;
    const uint64_t remote = peer(r).window + layout_.notice_from(rank_);
    queue_pair.write(Kind::notice, mine.reason, sizeof(Notice) - begin, remote + begin);
    queue_pair.write(Kind::notice, &state, sizeof state, remote);
    post(r, true);
  }
  // What was published last may still be on its way, and goes no further without this process.
  constexpr Milliseconds kInGoodOrder{1000}, kAfterFailure{100};
  wait_for_completions(reason.empty() ? kInGoodOrder : kAfterFailure,
                       [](const Peer& p) { return p.queue_pair->quiet(); });
}

std::optional<CallRecord> VerbsTransport::call_of(int rank, uint64_t epoch) {
  if (!pushed(rank)) return ShmTransport::call_of(rank, epoch);
  if (!ask(rank)) return std::nullopt;
  return notice_from(rank).calls[epoch];
}

std::optional<uint64_t> VerbsTransport::operations_of(int rank) {
  if (!pushed(rank)) return ShmTransport::operations_of(rank);
  if (!ask(rank)) return std::nullopt;
  return notice_from(rank).operations.load(std::memory_order_relaxed);
}

// Reads what the peer's notice says of its calls into this rank's copy. So calls cost nothing to
// tell, and the peer need not listen.
bool VerbsTransport::ask(int rank) {
  Notice& copy = notice_from(rank);
  if (end_in(copy)) return true;  // it sent everything when it left
  const std::lock_guard lock(mutex_);
  if (!make_room(rank)) return false;
  Peer& p = peer(rank);
  constexpr size_t begin = offsetof(Notice, operations);
  p.queue_pair->read(Kind::question, &copy.operations, sizeof(Notice) - begin,
                     p.window + offsetof(WindowHeader, notice) + begin);
  post(rank, true);
  constexpr Milliseconds kPatience{1000};
  wait_for_completions(kPatience, [&](const Peer& q) { return &q != &p || q.queue_pair->quiet(); });
  return (p.error.empty() && p.queue_pair->quiet()) || end_in(copy);
}

}  // namespace rocenante::verbs
