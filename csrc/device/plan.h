// How a call becomes a launch. Everything here is a pure function of what all ranks know alike (the
// call, the world size, the agreed configuration), never of pointers or timing: every rank must use
// the same channels for the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.h"
#include "device/args.h"

namespace rocenante::device {

inline constexpr unsigned kMaxThreads = 512;

struct Call {
  Collective collective = Collective::all_reduce;
  DType dtype = DType::float32;
  Reduction reduction = {};  // of all_reduce and reduce_scatter
  int root = 0;              // of broadcast
  // Elements: of the tensor (all_reduce, broadcast), of the result (reduce_scatter), of one rank's
  // part (all_gather), of one pair's part (all_to_all).
  size_t count = 0;
};

// Bytes of an all_reduce up to which an algorithm is used; two_shot takes the rest.
struct Thresholds {
  size_t low_latency_max_bytes = 0;
  size_t one_shot_max_bytes = 0;
};

struct Plan {
  Algorithm algorithm = Algorithm::one_shot;
  bool low_latency = false;
  unsigned blocks = 1;  // channels 0 .. blocks - 1 are used
  unsigned threads = kMaxThreads;
};

// What a kernel is known by.
struct KernelId {
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::one_shot;
  bool low_latency = false;
  DType dtype = DType::float32;  // computed in: complex numbers are pairs of floats
  ReduceOp op = ReduceOp::sum;
};

// Whether kernels do this collective at all, in this type. Throws Error(ErrorKind::usage) where the
// operation is not defined for the type.
bool is_supported(Collective collective, DType dtype, ReduceOp op);

Plan make_plan(const Call& call, const WindowLayout& layout, const Thresholds& thresholds);

KernelId kernel_of(const Call& call, const Plan& plan);

// The arguments that follow from the call; memory, window and rank are the caller's to fill in.
KernelArgs make_args(const Call& call, const Plan& plan, const WindowLayout& layout);

}  // namespace rocenante::device
