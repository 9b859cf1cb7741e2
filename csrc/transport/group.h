// The ranks that have found each other, as one of them sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"
#include "transport/address.h"
#include "window/layout.h"

namespace rocenante {

struct Group {
  int rank = 0;
  std::vector<Hello> hellos;  // by rank
  uint64_t generation = 0;
  Config config;
  std::vector<bool> pushed;  // by rank: reached over RDMA; else over shared memory
  bool any_pushed = false;   // between any two ranks: every rank has the same layout
  size_t region_bytes = 0;   // of the region for GPU kernels; the same on every rank

  int size() const { return static_cast<int>(hellos.size()); }
  Layout layout() const { return {size(), config.slot_bytes, any_pushed, region_bytes}; }
  const Hello& hello(int r) const { return hellos[static_cast<size_t>(r)]; }
};

// Whether two ranks reach each other over RDMA (else over shared memory). Throws
// Error(ErrorKind::system), naming both and saying why, if they have neither in common.
bool reached_by_push(const Config& config, const Hello& a, const Hello& b);

}  // namespace rocenante
