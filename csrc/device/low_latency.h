// all_reduce in one exchange by the LL protocol, for the smallest messages: every 8-byte word
// carries 4 bytes of data and the sequence number, so a word announces itself and no signal
// follows. Twice the bytes, one crossing less.
//
// It rests on 8-byte words being placed whole by the NIC and loaded whole by the GPU.
#pragma once

#include "device/channel.h"
#include "device/reduce_op.h"

namespace rocenante::device {

// The words of a slot that come before the data.
struct LineHeader {
  static constexpr size_t kPairs = WindowLayout::kLineHeader / sizeof(LinePair);
  // I5: the first word carries the fingerprint as its data.
};

class Lines {
 public:
  ROCENANTE_DEVICE Lines(const KernelArgs& args, uint64_t sequence)
      : flag_(sequence << 32), patience_(args) {}

  ROCENANTE_DEVICE void write(LinePair* to, const Vector& v) const {
    store(to, LinePair{flag_ | v.word[0], flag_ | v.word[1]});
    store(to + 1, LinePair{flag_ | v.word[2], flag_ | v.word[3]});
  }
  ROCENANTE_DEVICE void write_header(LinePair* to, uint32_t fingerprint) const {
    store(to, LinePair{flag_ | fingerprint, flag_});
  }

  // False if patience ran out before *pair, loaded from `from`, was new. A slot's words of two
  // exchanges ago carry another flag; one that was last written exactly 2^32 exchanges ago would
  // pass for new, which takes a message of this length 2^32 exchanges ago and none of at least this
  // length in between.
  ROCENANTE_DEVICE bool await(const LinePair* from, LinePair* pair) {
    while (!are_new(*pair)) {
      const bool last = !patience_.lasts();
      *pair = load_lines(from);
      if (last)
        return are_new(*pair);  // what was loaded before may be older than the others' delay
    }
    return true;
  }

 private:
  ROCENANTE_DEVICE bool are_new(const LinePair& pair) const {
    const bool first = (pair.first ^ flag_) >> 32 == 0;
    const bool second = (pair.second ^ flag_) >> 32 == 0 || planted(Bug::half_of_the_flags);
    return first && second;
  }

  const uint64_t flag_;
  Patience patience_;
};

// args.count: elements.
template <class T, class Op>
ROCENANTE_DEVICE void low_latency_all_reduce(const KernelArgs& args) {
  constexpr size_t k = kPerVector<T>;
  const unsigned ranks = args.layout.ranks;
  Channel channel(args);
  if (!channel.open()) return;
  const Reducer<T, Op> reducer(args);
  ROCENANTE_ROLLED
  for (Rounds round(share_of<T>(args.count), args.layout.line_bytes / sizeof(T)); round.more();
       round.next()) {
    const T* const in = static_cast<const T*>(args.in) + round.at();
    T* const out = static_cast<T*>(args.out) + round.at();
    const size_t n = round.count();
    const auto own = [&](size_t i) { return reducer.own(in + i * k, n - i * k); };

    const Lane lane = channel.begin();
    Lines lines(args, channel.sequence());
    LinePair* const sent = lane.sent_lines();
    if (thread() == 0) lines.write_header(sent, args.fingerprint);
    ROCENANTE_ROLLED
    for (size_t i = thread(); i < vectors<T>(n); i += threads())
      lines.write(sent + LineHeader::kPairs + 2 * i, own(i));
    channel.publish(Payload::lines, WindowLayout::kLineHeader + vectors<T>(n) * 2 * sizeof(Vector));

    bool ok = true;
    ROCENANTE_ROLLED
    for (unsigned peer = thread(); peer < ranks; peer += threads()) {
      if (peer == args.rank) continue;
      LinePair header = load_lines(lane.received_lines(peer));
      if (!lines.await(lane.received_lines(peer), &header)) {
        blame_missing(args, peer);
        ok = false;
      } else {
        ok &= check_fingerprint(args, peer, uint32_t(header.first));
      }
    }
    struct Loaded {
      LinePair low, high;
    };
    ROCENANTE_ROLLED
    for (size_t i = thread(); ok && i < vectors<T>(n); i += threads()) {
      const Vector mine = own(i);
      const auto from = [&](unsigned r) {
        return lane.received_lines(r) + LineHeader::kPairs + 2 * i;
      };
      const Vector sum = reducer.template reduce<2>(
          [&](unsigned r) {
            if (r == args.rank) return Loaded{};
            return Loaded{load_lines(from(r)), load_lines(from(r) + 1)};
          },
          [&](unsigned r, Loaded& v) {
            if (r == args.rank) return mine;
            if (!lines.await(from(r), &v.low) || !lines.await(from(r) + 1, &v.high)) {
              blame_missing(args, r);
              ok = false;
            }
            return Vector{{uint32_t(v.low.first), uint32_t(v.low.second), uint32_t(v.high.first),
                           uint32_t(v.high.second)}};
          });
      if (ok) reducer.write_result(out + i * k, n - i * k, sum);
    }
    // The words were loaded relaxed, and data came with each, so nothing had to be ordered until
    // here. But that they have come also proves that peers have read what this rank sent before
    // (I1), and staging the exchange after the next must not pass that proof: the fence makes these
    // loads acquire, the barrier in settle() carries the order to the other threads.
    fence();
    if (!channel.settle(ok)) return;
  }
  channel.close();
}

}  // namespace rocenante::device
