// What is being called. Its fingerprint travels in every signal, so that ranks which make different
// calls find out at once (invariant I5); the record lies in the window, so that they can say how.
#pragma once

#include <cstdint>
#include <string>

#include "core/types.h"

namespace rocenante {

struct CallRecord {
  uint64_t operation = 0;  // 1, 2, ...: the communicator's operations, in issue order
  uint64_t bytes = 0;      // per rank, as the collective counts them
  int32_t root = -1;       // -1: the collective has none
  Collective collective = Collective::barrier;
  Algorithm algorithm = Algorithm::direct;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  bool reduces = false;  // whether `op` means anything
};

// Equal on two ranks if, and but for 1 in 2^32 only if, they make the same call.
uint32_t fingerprint(const CallRecord& call);

// "all_reduce #5 (float32, sum, 40 bytes)"
std::string describe(const CallRecord& call);

}  // namespace rocenante
