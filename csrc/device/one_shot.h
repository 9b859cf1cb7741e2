// Reductions in one exchange. all_reduce: every rank sends all it has to everyone and reduces all
// of it. reduce_scatter: every rank sends each peer that peer's piece.
#pragma once

#include "device/channel.h"
#include "device/reduce_op.h"

namespace rocenante::device {

// args.count: elements.
template <class T, class Op>
ROCENANTE_DEVICE void one_shot_all_reduce(const KernelArgs& args) {
  constexpr size_t k = kPerVector<T>;
  Channel channel(args);
  if (!channel.open()) return;
  const Reducer<T, Op> reducer(args);
  ROCENANTE_ROLLED
  for (Rounds round(share_of<T>(args.count), args.layout.slot_bytes / sizeof(T)); round.more();
       round.next()) {
    const T* const in = static_cast<const T*>(args.in) + round.at();
    T* const out = static_cast<T*>(args.out) + round.at();
    const size_t n = round.count();
    const auto own = [&](size_t i) { return reducer.own(in + i * k, n - i * k); };

    const Lane lane = channel.begin();
    Vector* const sent = lane.sent();
    ROCENANTE_ROLLED
    for (size_t i = thread(); i < vectors<T>(n); i += threads()) store(sent + i, own(i));
    channel.publish(Payload::to_all, vectors<T>(n) * sizeof(Vector));
    if (!channel.await()) return;
    ROCENANTE_ROLLED
    for (size_t i = thread(); i < vectors<T>(n); i += threads()) {
      const Vector sum = reducer.reduce(own(i), lane.received(0) + i);
      reducer.write_result(out + i * k, n - i * k, sum);
    }
  }
  channel.close();
}

// args.count: elements of the result; `in` holds as many for each rank.
template <class T, class Op>
ROCENANTE_DEVICE void one_shot_reduce_scatter(const KernelArgs& args) {
  constexpr size_t k = kPerVector<T>;
  Channel channel(args);
  if (!channel.open()) return;
  const Reducer<T, Op> reducer(args);
  ROCENANTE_ROLLED
  for (Rounds round(share_of<T>(args.count), args.layout.slot_bytes / sizeof(T)); round.more();
       round.next()) {
    const T* const in = static_cast<const T*>(args.in) + round.at();
    T* const out = static_cast<T*>(args.out) + round.at();
    const size_t n = round.count();
    const auto own = [&](unsigned p, size_t i) {
      return reducer.own(in + p * args.count + i * k, n - i * k);
    };

    const Lane lane = channel.begin();
    ROCENANTE_ROLLED
    for (unsigned p = 0; p < args.layout.ranks; ++p) {
      if (p == args.rank) continue;
      Vector* const sent = lane.sent(p);
      ROCENANTE_ROLLED
      for (size_t i = thread(); i < vectors<T>(n); i += threads()) store(sent + i, own(p, i));
    }
    channel.publish(Payload::per_peer, vectors<T>(n) * sizeof(Vector));
    if (!channel.await()) return;
    ROCENANTE_ROLLED
    for (size_t i = thread(); i < vectors<T>(n); i += threads()) {
      const Vector sum = reducer.reduce(own(args.rank, i), lane.received(0) + i);
      reducer.write_result(out + i * k, n - i * k, sum);
    }
  }
  channel.close();
}

}  // namespace rocenante::device
