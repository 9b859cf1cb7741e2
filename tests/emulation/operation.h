// Random calls and what they must give, bit for bit: the CPU executor's reduce() says.
#pragma once

#include <cstdint>
#include <vector>

#include "device/plan.h"
#include "gpu.h"

namespace rocenante::test {

// Bytes between guards that nobody may write to, `offset` off the alignment of vectors.
class Buffer {
 public:
  Buffer(size_t bytes, size_t offset);
  char* data() { return storage_.front().bytes + kGuard + offset_; }
  size_t size() const { return bytes_; }
  void fill(const std::vector<char>& content);
  void clear();  // to a pattern
  bool holds(const std::vector<char>& content);
  bool is_clear();

 private:
  static constexpr size_t kGuard = 128;
  static constexpr char kPattern = static_cast<char>(0xa5);
  bool guards_are_intact();

  size_t bytes_, offset_;
  std::vector<Chunk> storage_;
};

bool is_reduction(Collective collective);
bool is_defined(DType dtype, ReduceOp op);

// One collective call of all ranks.
struct Operation {
  device::Call call;
  device::Plan plan;
  bool in_place = false;
  size_t in_offset = 0, out_offset = 0;  // bytes
  std::vector<std::vector<char>> in;     // by rank
  std::vector<std::vector<char>> out;    // what each rank must get
  std::vector<double> factors;           // by rank
};

// `most_bytes`: of one rank's part.
Operation random_operation(const device::WindowLayout& layout, Random& random,
                           size_t most_bytes = 1600);
// New values for the same call.
void renew(Operation& operation, unsigned ranks, Random& random);

std::string describe(const Operation& operation, unsigned ranks);

}  // namespace rocenante::test
