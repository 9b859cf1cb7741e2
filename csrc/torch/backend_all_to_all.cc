// The Backend's all_to_all, with equal and with unequal parts.
#include <algorithm>
#include <numeric>
#include <utility>

#include "torch/run.h"
#include "torch/tensors.h"

namespace rocenante {

using c10d::OpType;

namespace {

struct Lanes {
  ConstPointers in;
  Pointers out;
  Sizes in_bytes, out_bytes;
};

// all_to_all_v even if all parts that this rank sees are equal: others may see unequal ones, and
// all ranks must run the same algorithm.
void exchange(Communicator& c, const Lanes& lanes, DType dtype, Milliseconds timeout) {
  c.all_to_all_v(lanes.in.data(), lanes.in_bytes.data(), lanes.out.data(), lanes.out_bytes.data(),
                 dtype, timeout);
}

// The byte sizes of the parts of a tensor split along its first dimension; no splits: equal parts.
Sizes split_sizes(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size,
                  const char* what) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    if (rows % size != 0)
      throw Error(ErrorKind::usage, std::string("all_to_all: the ") + what +
                                        "'s first dimension, " + std::to_string(rows) +
                                        ", cannot be split equally among " + std::to_string(size) +
                                        " ranks: give its split sizes");
    return Sizes(size, tensor.nbytes() / size);
  }
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  if (splits.size() != static_cast<size_t>(size) || sum != rows ||
      std::any_of(splits.begin(), splits.end(), [](int64_t s) { return s < 0; }))
    throw Error(ErrorKind::usage, std::string("all_to_all: the ") + what +
                                      "'s split sizes must be " + std::to_string(size) +
                                      " numbers that add up to its first dimension, " +
                                      std::to_string(rows));
  Sizes sizes;
  for (int64_t split : splits) sizes.push_back(rows ? tensor.nbytes() / rows * split : 0);
  return sizes;
}

template <class Pointer>
void fill(c10::SmallVector<Pointer, 8>& to, void* base, const Sizes& sizes) {
  auto* at = static_cast<char*>(base);
  for (size_t bytes : sizes) {
    to.push_back(at);
    at += bytes;
  }
}

}  // namespace

WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                               std::vector<int64_t>& output_splits,
                               std::vector<int64_t>& input_splits,
                               const c10d::AllToAllOptions& options) {
  return with_torch_errors([&] {
    check_readable(input, "all_to_all", "input");
    check_writable(output, "all_to_all", "output");
    check_same(output, input, "all_to_all", "output");
    Lanes lanes;
    lanes.in_bytes = split_sizes(input, input_splits, size_, "input");
    lanes.out_bytes = split_sizes(output, output_splits, size_, "output");
    return run(
        {OpType::ALLTOALL_BASE, "rocenante:all_to_all", options.asyncOp, options.timeout}, input,
        output,
        [output, input, lanes = std::move(lanes)](Communicator& c, Milliseconds timeout) mutable {
          Packed in(input, Packed::Use::read);
          const Packed out(output, Packed::Use::write);
          in.separate(out, lanes.in_bytes == lanes.out_bytes);
          fill(lanes.in, in.data(), lanes.in_bytes);
          fill(lanes.out, out.data(), lanes.out_bytes);
          exchange(c, lanes, transfer_dtype(input), timeout);
          out.unpack();
        });
  });
}

WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return with_torch_errors([&] {
    check_parts(inputs.size(), "all_to_all", "input");
    check_parts(outputs.size(), "all_to_all", "output");
    for (int r = 0; r < size_; ++r) {
      check_readable(inputs[r], "all_to_all", "input");
      check_writable(outputs[r], "all_to_all", "output");
      check_same(inputs[r], inputs[0], "all_to_all", "input");
      check_same(outputs[r], inputs[0], "all_to_all", "output");
    }
    return run({OpType::ALLTOALL, "rocenante:all_to_all", options.asyncOp, options.timeout}, inputs,
               outputs, [outputs, inputs](Communicator& c, Milliseconds timeout) {
                 PackedList in = pack(inputs, Packed::Use::read);
                 const PackedList out = pack(outputs, Packed::Use::write);
                 for (Packed& part : in)
                   for (const Packed& other : out) part.separate(other);
                 Lanes lanes{const_pointers(in), pointers(out), {}, {}};
                 for (const Packed& part : in) lanes.in_bytes.push_back(part.bytes());
                 for (const Packed& part : out) lanes.out_bytes.push_back(part.bytes());
                 exchange(c, lanes, transfer_dtype(inputs[0]), timeout);
                 unpack(out);
               });
  });
}

}  // namespace rocenante
