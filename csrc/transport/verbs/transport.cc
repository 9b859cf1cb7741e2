#include "transport/verbs/transport.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/error.h"
#include "exchange/digest.h"
#include "exchange/signal.h"

namespace rocenante::verbs {

Notice& VerbsTransport::notice_from(int rank) {
  return *reinterpret_cast<Notice*>(window() + layout_.notice_from(rank));
}

void VerbsTransport::publish(const Publication& p) {
  ShmTransport::publish(p);
  const uint32_t line_digest = p.in_line ? digest(inline_data(p.step & 1), p.bytes) : 0;
  const std::lock_guard lock(mutex_);
  if (ailing_) attend();
  // Starting behind this rank spreads the senders over the receivers.
  for (int k = 1; k < size_; ++k)
    if (const int r = (rank_ + k) % size_; pushed(r)) push(r, p, line_digest);
}

// A staged part must stay as it is until the NIC has read it. It does, without waiting for a
// completion: the slot is staged anew two steps later, and by then (I1) this rank has seen the
// peer's signal of the step between, which the peer published after it had received this part.
void VerbsTransport::push(int rank, const Publication& p, uint32_t line_digest) {
  Peer& to = peer(rank);
  if (!to.error.empty()) return;
  SentStep& sent = to.steps[p.step & 1];
  sent.step = p.step;
  sent.part = p.parts.of(rank);
  const size_t stripes = sent.part.bytes >= kStripeFrom ? to.live.size() : 1;
  sent.stripes = static_cast<int>(stripes);
  sent.signal = striped(p.signal, sent.stripes);
  sent.in_line = p.in_line && sent.part.bytes > 0 ? p.bytes : 0;
  if (sent.in_line > 0) sent.signal ^= uint64_t{line_digest} << 32;  // see exchange/digest.h
  for (size_t k = 0; k < stripes && k < kMaxRails; ++k) sent.rail[k] = to.live[k];
  // The signal, which the peer waits for first, goes last.
  for (size_t k = stripes; k-- > 0;) send_stripe(rank, p.step & 1, k);
}

void VerbsTransport::send_stripe(int rank, uint64_t epoch, size_t stripe) {
  Peer& to = peer(rank);
  const SentStep& sent = to.steps[epoch];
  const size_t rail = sent.rail[stripe];
  if (!make_room(rank, rail)) return;
  QueuePair& queue_pair = *to.rails[rail].queue_pair;
  const uint64_t line = to.window + layout_.line_from(rank_, epoch);
  if (sent.in_line > 0) {
    // Contribution and signal in one write; see exchange/digest.h.
    struct {
      uint64_t signal;
      char data[kInlineBytes];
    } image;
    image.signal = sent.signal;
    std::memcpy(image.data, inline_data(epoch), sent.in_line);
    queue_pair.write(Kind::signal, &image, sizeof image.signal + sent.in_line, line);
    post(rank, rail);
    return;
  }
  const Part part = stripe_of(sent.part, sent.stripes, static_cast<int>(stripe));
  const size_t most = devices_->max_message(to.rails[rail].port);
  for (size_t at = 0; at < part.bytes;) {
    const size_t bytes = std::min(part.bytes - at, most), offset = part.offset + at;
    queue_pair.write(Kind::payload, slot(epoch) + offset, bytes,
                     to.window + layout_.slot_from(rank_, epoch) + offset);
    at += bytes;
    if (at == part.bytes) break;  // the last one goes together with the word
    post(rank, rail);
    if (!make_room(rank, rail)) return;
  }
  // I3: on one reliable connection writes take effect in the order in which they were posted.
  if (stripe == 0)
    queue_pair.write(Kind::signal, &sent.signal, sizeof sent.signal, line);
  else
    queue_pair.write(
        Kind::signal, &sent.step, sizeof sent.step,
        line + offsetof(SignalLine, stripes) + (stripe - 1) * sizeof(SignalLine::stripes[0]));
  post(rank, rail);
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
  if (ailing_) attend();
  Peer& to = peer(rank);
  if (!to.error.empty()) return;
  // In turn: the receiver takes them by their numbers, in whichever order they come.
  to.fragments[number % kRingSlots] = {number, to.live[number % to.live.size()]};
  send_fragment(rank, number);
}

void VerbsTransport::send_fragment(int rank, uint64_t number) {
  Peer& to = peer(rank);
  const size_t rail = to.fragments[number % kRingSlots].rail;
  if (!make_room(rank, rail)) return;
  const auto& staged = *reinterpret_cast<Fragment*>(window() + layout_.fragment_to(rank, number));
  QueuePair& queue_pair = *to.rails[rail].queue_pair;
  const uint64_t remote = to.window + layout_.fragment(rank_, number);
  constexpr size_t begin = offsetof(Fragment, message_bytes);
  queue_pair.write(Kind::fragment, &staged.message_bytes,
                   offsetof(Fragment, payload) - begin + staged.bytes, remote + begin);
  queue_pair.write(Kind::fragment, &number, sizeof number, remote);  // I3, as in send_stripe()
  post(rank, rail);
}

void VerbsTransport::push_credit(int rank, uint64_t consumed) {
  if (!pushed(rank)) return ShmTransport::push_credit(rank, consumed);
  const std::lock_guard lock(mutex_);
  if (ailing_) attend();
  Peer& to = peer(rank);
  to.credit = consumed;
  send_credit(rank);
}

// All over one rail: a credit must not be overtaken by the one after it.
void VerbsTransport::send_credit(int rank) {
  Peer& to = peer(rank);
  if (!to.error.empty() || !make_room(rank, to.live[0])) return;
  const size_t rail = to.live[0];
  to.rails[rail].queue_pair->write(Kind::credit, &to.credit, sizeof to.credit,
                                   to.window + offsetof(WindowHeader, credits) +
                                       static_cast<size_t>(rank_) * sizeof(WindowHeader::Credit));
  post(rank, rail);
}

// As in push(), the bytes need no completion before they are overwritten.
void VerbsTransport::push_region(int rank, const RegionWrite& w) {
  if (!pushed(rank)) return ShmTransport::push_region(rank, w);
  const std::lock_guard lock(mutex_);
  constexpr size_t kRail = 0;  // the only one of a group with a region
  if (!make_room(rank, kRail)) return;
  Peer& to = peer(rank);
  QueuePair& queue_pair = *to.rails[kRail].queue_pair;
  const uint64_t theirs = to.window + layout_.region();
  if (w.bytes > 0) queue_pair.write(Kind::payload, region() + w.from, w.bytes, theirs + w.to);
  if (w.signal)  // I3, as in send_stripe()
    queue_pair.write(Kind::signal, &*w.signal, sizeof *w.signal, theirs + w.signal_to);
  post(rank, kRail);
}

// The peers elsewhere learn of it in their own windows: first what there is to say, then the state.
void VerbsTransport::leave(const std::string& reason) {
  if (!end(reason)) return;
  const std::lock_guard lock(mutex_);
  // What was published last may still be on its way, and goes no further without this process.
  constexpr Milliseconds kInGoodOrder{1000}, kAfterFailure{100};
  if (reason.empty()) finish_deliveries(kInGoodOrder);
  const Deadline deadline(reason.empty() ? kInGoodOrder : kAfterFailure);
  std::vector<const Rail*> took(peers_.size());
  for (bool all_sent = false; !all_sent;) {  // anew over another rail where one died
    all_sent = true;
    for (int r = 0; r < size_; ++r) {
      const Rail*& rail = took[static_cast<size_t>(r)];
      if (peer(r).live.empty() || peer(r).window == 0 || (rail && rail->error.empty())) continue;
      all_sent = false;
      rail = &peer(r).rails[peer(r).live[0]];
      send_notice(r);
    }
    wait_for_completions(deadline.left(), delivered);
  }
}

// A peer that knows this rank to have left waits for nothing more from it, and no order holds
// between rails: so what went over them must have arrived before.
void VerbsTransport::finish_deliveries(Milliseconds patience) {
  bool several = false;
  for (int r = 0; r < size_; ++r) {
    if (peer(r).rails.size() < 2 || peer(r).window == 0) continue;
    several = true;
    for (const uint8_t rail : std::vector(peer(r).live)) {
      if (!make_room(r, rail)) continue;
      peer(r).rails[rail].queue_pair->write(Kind::keep_alive, nullptr, 0, peer(r).window);
      post(r, rail, true);
    }
  }
  if (several) wait_for_completions(patience, delivered);
}

void VerbsTransport::send_notice(int rank) {
  Peer& p = peer(rank);
  const size_t rail = p.live[0];
  if (!make_room(rank, rail)) return;
  const Notice& mine = header().notice;
  const auto state = mine.state.load(std::memory_order_relaxed);
  constexpr size_t begin = offsetof(Notice, reason);
  const uint64_t remote = p.window + layout_.notice_from(rank_);
  QueuePair& queue_pair = *p.rails[rail].queue_pair;
  queue_pair.write(Kind::notice, mine.reason, sizeof(Notice) - begin, remote + begin);
  queue_pair.write(Kind::notice, &state, sizeof state, remote);
  post(rank, rail, true);
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
  Peer& p = peer(rank);
  constexpr Milliseconds kPatience{1000};
  // Each round takes another rail, or is the last.
  while (p.error.empty() && !end_in(copy)) {
    const size_t rail = p.live[0];
    if (!make_room(rank, rail)) continue;
    constexpr size_t begin = offsetof(Notice, operations);
    p.rails[rail].queue_pair->read(Kind::question, &copy.operations, sizeof(Notice) - begin,
                                   p.window + offsetof(WindowHeader, notice) + begin);
    post(rank, rail, true);
    const bool in_time = wait_for_completions(kPatience, [&](const Peer& q) {
      return &q != &p || !p.rails[rail].error.empty() || p.rails[rail].queue_pair->quiet();
    });
    if (p.rails[rail].error.empty()) return in_time || end_in(copy);
  }
  return end_in(copy).has_value();
}

}  // namespace rocenante::verbs
