// How a message is cut: into pieces that fit a slot, and a slot into one lane per rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "window/layout.h"

namespace rocenante {

// Cuts `total` bytes into pieces of at most `most`, in whole elements and cache lines where they
// matter. A message of no bytes is one empty piece: every operation takes at least one step, so
// that it is checked and ordered like any other.
class Pieces {
 public:
  Pieces(size_t total, size_t most) : total_(total), most_(most) {}
  template <class F>
  void for_each(F&& f) const {
    size_t at = 0;
    do {
      const size_t bytes = std::min(total_ - at, most_);
      f(at, bytes);
      at += bytes;
    } while (at < total_);
  }

 private:
  size_t total_, most_;
};

// The most that each of `size` ranks' lanes of a slot holds; a multiple of a line, so that no lane
// shares one and elements (at most 16 bytes) are never cut.
inline size_t lane_bytes(size_t slot_bytes, int size) {
  return std::max(slot_bytes / static_cast<size_t>(size) / kLine, size_t{1}) * kLine;
}

// memmove that also takes the null pointers of empty tensors.
inline void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// The part of `bytes` that rank r of `size` reduces: [begin(r), begin(r + 1)), cut at lines.
class Shares {
 public:
  Shares(size_t bytes, int size)
      : bytes_(bytes),
        share_((bytes + static_cast<size_t>(size) * kLine - 1) /
               (static_cast<size_t>(size) * kLine) * kLine) {}
  size_t stride() const { return share_; }
  size_t begin(int r) const { return std::min(share_ * static_cast<size_t>(r), bytes_); }
  size_t length(int r) const { return begin(r + 1) - begin(r); }

 private:
  size_t bytes_, share_;
};

}  // namespace rocenante
