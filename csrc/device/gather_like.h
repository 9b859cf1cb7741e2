// Exchanges that only move bytes. Every rank waits for every rank, also where it needs nothing from
// it: that is what makes two epochs enough (I1) without acknowledgements, and every call checked
// (I5).
#pragma once

#include "device/channel.h"
#include "device/vector.h"

namespace rocenante::device {

// Copies `n` bytes, by vectors; `out` may be `in`.
ROCENANTE_DEVICE void copy_bytes(char* out, const char* in, size_t n) {
  constexpr size_t k = kPerVector<char>;
  ROCENANTE_ROLLED
  for (size_t i = thread(); i < vectors<char>(n); i += threads())
    write(out + i * k, n - i * k, read(in + i * k, n - i * k));
}

// args.count: bytes of each rank; `out` holds as many of every rank.
ROCENANTE_DEVICE void one_shot_all_gather(const KernelArgs& args) {
  Channel channel(args);
  if (!channel.open()) return;
  ROCENANTE_ROLLED
  for (Rounds round(share_of<char>(args.count), args.layout.slot_bytes); round.more();
       round.next()) {
    const char* const in = static_cast<const char*>(args.in) + round.at();
    char* const out = static_cast<char*>(args.out) + round.at();
    const size_t n = round.count();

    const Lane lane = channel.begin();
    copy_bytes(lane.sent<char>(), in, n);
    channel.publish(Payload::to_all, vectors<char>(n) * sizeof(Vector));
    if (!channel.await()) return;
    ROCENANTE_ROLLED
    for (unsigned p = 0; p < args.layout.ranks; ++p)
      copy_bytes(out + p * args.count, p == args.rank ? in : lane.received<char>(p), n);
  }
  channel.close();
}

// args.count: bytes of each pair of ranks.
ROCENANTE_DEVICE void one_shot_all_to_all(const KernelArgs& args) {
  Channel channel(args);
  if (!channel.open()) return;
  ROCENANTE_ROLLED
  for (Rounds round(share_of<char>(args.count), args.layout.slot_bytes); round.more();
       round.next()) {
    const char* const in = static_cast<const char*>(args.in) + round.at();
    char* const out = static_cast<char*>(args.out) + round.at();
    const size_t n = round.count();

    const Lane lane = channel.begin();
    ROCENANTE_ROLLED
    for (unsigned p = 0; p < args.layout.ranks; ++p) {
      if (p != args.rank) copy_bytes(lane.sent<char>(p), in + p * args.count, n);
    }
    channel.publish(Payload::per_peer, vectors<char>(n) * sizeof(Vector));
    if (!channel.await()) return;
    ROCENANTE_ROLLED
    for (unsigned p = 0; p < args.layout.ranks; ++p) {
      const char* const from = p == args.rank ? in + p * args.count : lane.received<char>(p);
      copy_bytes(out + p * args.count, from, n);
    }
  }
  channel.close();
}

// args.count: bytes. The root sends them, the others a signal alone.
ROCENANTE_DEVICE void one_shot_broadcast(const KernelArgs& args) {
  const bool is_root = args.rank == args.root;
  Channel channel(args);
  if (!channel.open()) return;
  ROCENANTE_ROLLED
  for (Rounds round(share_of<char>(args.count), args.layout.slot_bytes); round.more();
       round.next()) {
    const char* const in = static_cast<const char*>(args.in) + round.at();
    char* const out = static_cast<char*>(args.out) + round.at();
    const size_t n = round.count();

    const Lane lane = channel.begin();
    if (is_root) copy_bytes(lane.sent<char>(), in, n);
    channel.publish(Payload::to_all, is_root ? vectors<char>(n) * sizeof(Vector) : 0);
    if (!channel.await()) return;
    copy_bytes(out, is_root ? in : lane.received<char>(args.root), n);
  }
  channel.close();
}

}  // namespace rocenante::device
