// 16-byte vectors over tensors of any alignment and length: the only functions that know of tails.
#pragma once

#include "device/dialect.h"
#include "device/planted.h"

namespace rocenante::device {

template <class T>
inline constexpr unsigned kPerVector = sizeof(Vector) / sizeof(T);

template <class T>
ROCENANTE_HOST_DEVICE constexpr size_t vectors(size_t elements) {
  return (elements + kPerVector<T> - 1) / kPerVector<T>;
}

template <class T>
union VectorOf {
  Vector vector;
  T element[kPerVector<T>];
};

ROCENANTE_DEVICE bool is_aligned(const void* p) {
  if (planted(Bug::alignment_ignored)) return true;
  return reinterpret_cast<uintptr_t>(p) % sizeof(Vector) == 0;
}

// The vector that begins at `p`, of which `left` elements exist; the others are zero.
template <class T>
ROCENANTE_DEVICE Vector read(const T* p, size_t left) {
  constexpr unsigned k = kPerVector<T>;
  if (left >= k && is_aligned(p)) return load(reinterpret_cast<const Vector*>(p));
  VectorOf<T> v{Vector{}};
  ROCENANTE_UNROLL
  for (unsigned i = 0; i < k; ++i) {
    if (i < left) v.element[i] = load(p + i);
  }
  return v.vector;
}

// Writes as much of the vector as there is room for.
template <class T>
ROCENANTE_DEVICE void write(T* p, size_t left, const Vector& value) {
  constexpr unsigned k = kPerVector<T>;
  if (left >= k && is_aligned(p)) {
    store(reinterpret_cast<Vector*>(p), value);
    return;
  }
  VectorOf<T> v{value};
  if (planted(Bug::tail_off_by_one) && left < k) ++left;
  ROCENANTE_UNROLL
  for (unsigned i = 0; i < k; ++i) {
    if (i < left) store(p + i, v.element[i]);
  }
}

// A block's part of `count` elements: whole vectors, so that slots are always aligned.
struct Share {
  size_t begin, end;
};
template <class T>
ROCENANTE_DEVICE Share share_of(size_t count) {
  const size_t each = (vectors<T>(count) + blocks() - 1) / blocks() * kPerVector<T>;
  const size_t begin = each * block() < count ? each * block() : count;
  return {begin, count - begin < each ? count : begin + each};
}

// What one exchange carries of a share, exchange after exchange. The first block has at least one,
// even for nothing at all, so that every call is checked against the peers'.
class Rounds {
 public:
  ROCENANTE_DEVICE Rounds(Share share, size_t most)
      : at_(share.begin),
        end_(share.end),
        most_(most),
        more_(share.begin < share.end || block() == 0) {}
  ROCENANTE_DEVICE bool more() const { return more_; }
  ROCENANTE_DEVICE size_t at() const { return at_; }
  ROCENANTE_DEVICE size_t count() const { return end_ - at_ < most_ ? end_ - at_ : most_; }
  ROCENANTE_DEVICE void next() {
    at_ += count();
    more_ = at_ < end_;
  }

 private:
  size_t at_, end_;
  const size_t most_;
  bool more_;
};

}  // namespace rocenante::device
