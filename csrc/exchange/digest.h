// What makes a line that a peer writes from another host recognisable as complete. Contribution and
// signal travel in one write, whose bytes may become visible in any order; so the signal's high
// half holds fingerprint ^ digest of the contribution, and a reader who sees the signal before the
// bytes finds that they do not fit yet. Nothing is assumed of the NIC but that the 8 bytes of the
// signal come as one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rocenante {

// Never 0, so that it differs from "nothing was sent along".
inline uint32_t digest(const char* data, size_t bytes) {
  uint64_t hash = bytes;
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, std::min(sizeof word, bytes - at));
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  const auto result = static_cast<uint32_t>(hash);
  return result ? result : 1;
}

}  // namespace rocenante
