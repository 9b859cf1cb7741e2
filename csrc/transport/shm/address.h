// How a rank tells the others where its window is: a small versioned blob in the store.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/bootstrap.h"

namespace rocenante::shm {

struct Address {
  uint32_t rank = 0;
  uint32_t size = 0;
  int32_t pid = 0;
  int32_t fd = -1;
  uint64_t nonce = 0;
  uint64_t window_bytes = 0;
  std::string host;      // ranks whose hosts are equal can map each other's memory
  std::string hostname;  // for people
  // Rows that every rank must agree on: variable, value.
  std::vector<std::pair<std::string, std::string>> config;
};

// Names the kernel and the process-id namespace: what /proc/<pid>/fd needs to be common.
std::string host_identity();

Bytes encode(const Address& address);
// Throws Error(ErrorKind::system) for anything that encode() of this build did not make: a
// truncated or corrupted blob, or one of another protocol version (which is named).
Address decode(const Bytes& blob);

}  // namespace rocenante::shm
