// Several rails between two ranks: what goes over which, and what is sent again when one is lost.
//
// A rail is a port of either end and a reliable connection between them. Contributions of
// kStripeFrom bytes and more are cut into stripes, one for each rail; everything else goes whole.
// Nothing orders two rails, so whatever goes over a rail is followed there by its own word
// (exchange/signal.h).
//
// A rail that fails is given up by both ends, and what may be lost with it goes over another. The
// danger is that it was not lost: a packet still in the network that lands after its place has
// been filled anew is a wrong number. Hence, in this order,
//  1. the rank that finds the rail dead moves its queue pair into the error state, so that nothing
//     more can land from it, and only then notes what had come over it (RailEnd),
//  2. it sends that note to the peer over a rail that lives; the peer does 1 and 2 in its turn,
//  3. with the peer's note in hand it sends again what went over the dead rail and is not in the
//     note, and nothing else.
// So whatever is sent again cannot come twice: by 1 the first copy lands no more. And what is not
// sent again has come, or goes over a rail that lives. In both cases I1 holds as ever, with nothing
// to wait for: the peer publishes its next step only when it has all of this one, whichever way it
// came, and nobody fills its place before that. For fragments the credit does what the signal does
// here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/transport.h"
#include "window/layout.h"

namespace rocenante {

// A second doorbell and word cost well under a microsecond; half of this takes more than that on a
// link of 100 Gbit/s.
inline constexpr size_t kStripeFrom = 32 << 10;

// Stripe `index` of `count`; the last one is the shortest.
Part stripe_of(const Part& whole, int count, int index);

// What was published to a peer in one step, and over which rail each stripe of it went.
struct SentStep {
  uint64_t step = 0;  // 0: none
  uint64_t signal = 0;
  Part part;
  size_t in_line = 0;  // bytes that went in the signal's own line
  int stripes = 1;
  uint8_t rail[kMaxRails] = {};
};

struct SentFragment {
  uint64_t number = 0;  // 0: none
  uint8_t rail = 0;
};

// Whether it went over `rail` and, as the peer's note of that rail says, did not come.
bool lost_with(size_t rail, const RailEnd& theirs, const SentStep& sent, size_t stripe);
bool lost_with(size_t rail, const RailEnd& theirs, const SentFragment& sent);

// Notes in `end` what has come from a peer into its lines.
void note_steps(RailEnd& end, const SignalLine* const lines[2]);

}  // namespace rocenante
