// device/gpu.h and device/launch.h with emulated GPUs in the place of CUDA: what is launched waits
// until run_fake_gpus().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu.h"

namespace rocenante::test {

// What a test passes as a cudaStream_t.
struct FakeStream {
  bool capturing = false;
  std::vector<Launch> graph;  // what was launched while capturing
  int waits = 0;              // for other streams
  void replay(int rank);
};

// The next MappedMemory of this name cannot be had.
void fail_next_mapping(const std::string& what);
// How much memory is mapped or allocated now.
int live_memories();
// Runs what has been launched, on all GPUs.
void run_fake_gpus(uint64_t seed);
void forget_fake_gpus();

}  // namespace rocenante::test
