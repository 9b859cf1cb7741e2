// Elapsed time. Every wait is bounded by a Deadline, never by a count of polls (invariant I6).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace rocenante {

using Milliseconds = std::chrono::milliseconds;

inline uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

class Deadline {
 public:
  explicit Deadline(Milliseconds budget)
      : budget_(budget), end_(std::chrono::steady_clock::now() + std::min(budget, kForever)) {}
  bool passed() const { return std::chrono::steady_clock::now() >= end_; }
  Milliseconds budget() const { return budget_; }
  Milliseconds left() const {
    auto d = std::chrono::duration_cast<Milliseconds>(end_ - std::chrono::steady_clock::now());
    return d.count() > 0 ? d : Milliseconds(0);
  }

 private:
  // Keeps the sum above within the clock's 64 bits of nanoseconds.
  static constexpr Milliseconds kForever = std::chrono::hours(24 * 365 * 50);
  Milliseconds budget_;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace rocenante
