#include "operation.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "collective/reduce.h"
#include "core/error.h"
#include "core/float_formats.h"
#include "core/types.h"

namespace rocenante::test {

Buffer::Buffer(size_t bytes, size_t offset)
    : bytes_(bytes), offset_(offset), storage_((2 * kGuard + offset + bytes) / sizeof(Chunk) + 1) {
  clear();
}

void Buffer::fill(const std::vector<char>& content) {
  clear();
  if (!content.empty()) std::memcpy(data(), content.data(), content.size());
}

void Buffer::clear() { std::memset(storage_.data(), kPattern, storage_.size() * sizeof(Chunk)); }

bool Buffer::guards_are_intact() {
  const char* const begin = storage_.front().bytes;
  const char* const end = begin + storage_.size() * sizeof(Chunk);
  for (const char* p = begin; p != end; ++p) {
    if (p == data()) p += bytes_;
    if (p == end) break;
    if (*p != kPattern) return false;
  }
  return true;
}

bool Buffer::holds(const std::vector<char>& content) {
  return content.size() == bytes_ && std::equal(content.begin(), content.end(), data()) &&
         guards_are_intact();
}

bool Buffer::is_clear() {
  for (size_t i = 0; i < bytes_; ++i) {
    if (data()[i] != kPattern) return false;
  }
  return guards_are_intact();
}

namespace {

// Numbers whose sums round: of similar magnitude, either sign.
float ordinary(Random& random) {
  return static_cast<float>(static_cast<int>(random() % 20001) - 10000) / 1024;
}

template <class T>
void put(char* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

void put_number(char* to, DType dtype, Random& random) {
  const float x = ordinary(random);
  switch (dtype) {
    case DType::float16:
      return put(to, float_to_float16(x));
    case DType::bfloat16:
      return put(to, float_to_bfloat16(x));
    case DType::float32:
      return put(to, x / 3);
    case DType::float64:
      return put(to, double{x} / 3);
    case DType::complex64:
      put(to, x / 3);
      return put(to + 4, ordinary(random) / 3);
    case DType::complex128:
      put(to, double{x} / 3);
      return put(to + 8, double{ordinary(random)} / 3);
    case DType::float8_e4m3fn:
      return put(to, float_to_float8_e4m3fn(x));
    case DType::float8_e5m2:
      return put(to, float_to_float8_e5m2(x));
    default:
      for (size_t i = 0; i < size_of(dtype); ++i) to[i] = static_cast<char>(random());
  }
}

// Every tenth element is any bits at all: infinities, NaN, denormals, bools that are neither 0
// nor 1.
std::vector<char> random_elements(DType dtype, size_t count, Random& random) {
  std::vector<char> elements(count * size_of(dtype));
  for (size_t i = 0; i < count; ++i) {
    char* const to = elements.data() + i * size_of(dtype);
    put_number(to, dtype, random);
    if (random() % 10 != 0) continue;
    for (size_t b = 0; b < size_of(dtype); ++b) to[b] = static_cast<char>(random());
  }
  return elements;
}

using Parts = std::vector<std::vector<char>>;

void append(std::vector<char>& to, const std::vector<char>& from, size_t at, size_t bytes) {
  to.insert(to.end(), from.begin() + static_cast<ptrdiff_t>(at),
            from.begin() + static_cast<ptrdiff_t>(at + bytes));
}

std::vector<char> reduced(const Operation& o, size_t at, size_t count) {
  const DType dtype = o.call.dtype;
  Parts parts(o.in.size());
  std::vector<const void*> pointers;
  for (size_t r = 0; r < o.in.size(); ++r) {
    append(parts[r], o.in[r], at, count * size_of(dtype));
    if (o.call.reduction.op == ReduceOp::premul_sum)
      premultiply(dtype, o.factors[r], parts[r].data(), parts[r].data(), count);
    pointers.push_back(parts[r].data());
  }
  std::vector<char> out(count * size_of(dtype));
  reduce(dtype, o.call.reduction.op, out.data(), pointers.data(), static_cast<int>(o.in.size()),
         count);
  return out;
}

size_t random_count(size_t element_bytes, size_t most_bytes, Random& random) {
  const size_t bytes = random() % 4 == 0 ? most_bytes : most_bytes / 16;
  return random() % (bytes / element_bytes + 2);
}

}  // namespace

bool is_reduction(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter;
}

bool is_defined(DType dtype, ReduceOp op) {
  try {
    check_reduction(dtype, op);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void renew(Operation& o, unsigned ranks, Random& random) {
  const size_t bytes = o.call.count * size_of(o.call.dtype);
  const Collective collective = o.call.collective;
  const bool per_peer =
      collective == Collective::reduce_scatter || collective == Collective::all_to_all;
  o.in.assign(ranks, {});
  o.out.assign(ranks, {});
  o.factors.assign(ranks, 1);
  for (unsigned r = 0; r < ranks; ++r) {
    o.in[r] = random_elements(o.call.dtype, o.call.count * (per_peer ? ranks : 1), random);
    o.factors[r] = 1.0 / static_cast<double>(r + 3);
  }
  for (unsigned r = 0; r < ranks; ++r) {
    switch (collective) {
      case Collective::all_reduce:
        o.out[r] = r == 0 ? reduced(o, 0, o.call.count) : o.out[0];
        break;
      case Collective::reduce_scatter:
        o.out[r] = reduced(o, r * bytes, o.call.count);
        break;
      case Collective::all_gather:
        for (unsigned p = 0; p < ranks; ++p) append(o.out[r], o.in[p], 0, bytes);
        break;
      case Collective::all_to_all:
        for (unsigned p = 0; p < ranks; ++p) append(o.out[r], o.in[p], r * bytes, bytes);
        break;
      default:
        o.out[r] = o.in[static_cast<size_t>(o.call.root)];
    }
  }
}

Operation random_operation(const device::WindowLayout& layout, Random& random, size_t most_bytes) {
  constexpr Collective kCollectives[] = {Collective::all_reduce,     Collective::all_reduce,
                                         Collective::all_reduce,     Collective::all_gather,
                                         Collective::reduce_scatter, Collective::all_to_all,
                                         Collective::broadcast};
  constexpr DType kHot[] = {DType::float16, DType::bfloat16, DType::float32};
  Operation o;
  device::Call& call = o.call;
  call.collective = kCollectives[random() % std::size(kCollectives)];
  do {  // sums in hot types have kernels of their own: half of all reductions
    const bool hot = random() % 2 == 0;
    call.dtype = hot ? kHot[random() % 3] : static_cast<DType>(random() % kDTypeCount);
    call.reduction.op = hot ? ReduceOp::sum : static_cast<ReduceOp>(random() % kReduceOpCount);
  } while (!is_defined(call.dtype, call.reduction.op));
  call.root = static_cast<int>(random() % layout.ranks);
  call.count = random_count(size_of(call.dtype), most_bytes, random);

  // Algorithms as thresholds at random would choose them.
  constexpr size_t kAll = ~size_t{0};
  const uint64_t choice = random() % 3;
  o.plan = device::make_plan(call, layout, {choice == 0 ? kAll : 0, choice == 1 ? kAll : 0});
  o.plan.blocks = static_cast<unsigned>(1 + random() % layout.channels);
  const size_t alignment = size_of(call.dtype);
  o.in_offset = random() % 2 == 0 ? 0 : random() % 16 / alignment * alignment;
  o.out_offset = random() % 2 == 0 ? 0 : random() % 16 / alignment * alignment;
  const bool same_size =
      call.collective != Collective::all_gather && call.collective != Collective::reduce_scatter;
  o.in_place = same_size && random() % 3 == 0;
  renew(o, layout.ranks, random);
  return o;
}

std::string describe(const Operation& o, unsigned ranks) {
  return std::string(name_of(o.call.collective)) + " " + std::string(name_of(o.call.dtype)) + " " +
         std::string(name_of(o.call.reduction.op)) + ", " + std::to_string(o.call.count) +
         " elements, " + std::string(name_of(o.plan.algorithm)) +
         (o.plan.low_latency ? " LL" : "") + (o.in_place ? ", in place" : "") + ", offsets " +
         std::to_string(o.in_offset) + "/" + std::to_string(o.out_offset) + ", " +
         std::to_string(ranks) + " ranks, " + std::to_string(o.plan.blocks) + " blocks";
}

}  // namespace rocenante::test
