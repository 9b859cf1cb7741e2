// One call of all ranks with the memory for it, launched as often as one likes with the same
// arguments.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpu.h"
#include "operation.h"

namespace rocenante::test {

// What is wrong goes into a string of each rank's own: ranks are concurrent, also for
// ThreadSanitizer.
class Job {
 public:
  Job(const Operation& operation, unsigned ranks, uint64_t timeout);

  // Adds a launch with `version`'s values on one rank. What is wrong afterwards goes to `wrong`.
  void add(Gpu& gpu, const Operation& version, std::string& wrong);
  // Adds a launch that may do nothing.
  void add_idle(Gpu& gpu, std::string& wrong);
  // Adds a launch whose result nobody looks at; counts it when it begins.
  void add_doomed(Gpu& gpu, std::atomic<unsigned>& begun);

 private:
  void add(Gpu& gpu, std::function<void()> prepare, std::function<void()> check);
  void fill(unsigned rank, const Operation& version);
  bool is_right(unsigned rank, const Operation& version);

  const Operation& operation_;
  const uint64_t timeout_;
  std::vector<Buffer> in_, out_;
  std::vector<char*> in_pointer_, out_pointer_;
};

}  // namespace rocenante::test
