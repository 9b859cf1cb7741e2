// all_reduce in two exchanges: every rank reduces one piece of what a round carries, then sends the
// result to all. The bits are those of one shot.
#pragma once

#include "device/channel.h"
#include "device/reduce_op.h"

namespace rocenante::device {

// args.count: elements.
template <class T, class Op>
ROCENANTE_DEVICE void two_shot_all_reduce(const KernelArgs& args) {
  constexpr size_t k = kPerVector<T>;
  const unsigned ranks = args.layout.ranks;
  Channel channel(args);
  if (!channel.open()) return;
  const Reducer<T, Op> reducer(args);
  const size_t most = args.layout.slot_bytes / sizeof(T) * ranks;
  ROCENANTE_ROLLED
  for (Rounds round(share_of<T>(args.count), most); round.more(); round.next()) {
    const T* const in = static_cast<const T*>(args.in) + round.at();
    T* const out = static_cast<T*>(args.out) + round.at();
    const size_t n = round.count();
    // Pieces are of whole vectors and equal but for the last ones, which may be short or empty. All
    // are sent at full length: what lies beyond the end is not looked at.
    const size_t piece = (vectors<T>(n) + ranks - 1) / ranks;
    const auto end_of = [&](unsigned p) {
      const size_t end = (p + 1) * piece;
      return end < vectors<T>(n) ? end : vectors<T>(n);
    };
    const auto own = [&](size_t i) { return reducer.own(in + i * k, n - i * k); };

    const Lane scatter = channel.begin();
    ROCENANTE_ROLLED
    for (unsigned p = 0; p < ranks; ++p) {
      if (p == args.rank) continue;
      Vector* const sent = scatter.sent(p);
      ROCENANTE_ROLLED
      for (size_t i = p * piece + thread(); i < end_of(p); i += threads())
        store(sent + i - p * piece, own(i));
    }
    channel.publish(Payload::per_peer, piece * sizeof(Vector));
    if (!channel.await()) return;

    // The results go into the other epoch's slot while this one's are still being read.
    const Lane gather = channel.begin();
    Vector* const reduced = gather.sent();
    const size_t begin = args.rank * piece;
    ROCENANTE_ROLLED
    for (size_t i = begin + thread(); i < end_of(args.rank); i += threads()) {
      const Vector sum = reducer.reduce(own(i), scatter.received(0) + i - begin);
      store(reduced + i - begin, sum);
      reducer.write_result(out + i * k, n - i * k, sum);
    }
    channel.publish(Payload::to_all, piece * sizeof(Vector));
    if (!channel.await()) return;
    ROCENANTE_ROLLED
    for (unsigned p = 0; p < ranks; ++p) {
      if (p == args.rank) continue;
      const Vector* const received = gather.received(p);
      ROCENANTE_ROLLED
      for (size_t i = p * piece + thread(); i < end_of(p); i += threads())
        reducer.write_result(out + i * k, n - i * k, load(received + i - p * piece));
    }
  }
  channel.close();
}

}  // namespace rocenante::device
