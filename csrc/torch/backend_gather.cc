// The Backend's collectives that move parts between ranks: gathers and scatters.
#include <algorithm>
#include <utility>

#include "torch/run.h"
#include "torch/tensors.h"

namespace rocenante {

using c10d::OpType;

namespace {

void check_elements(const at::Tensor& tensor, int64_t expected, const char* call,
                    const char* what) {
  if (tensor.numel() != expected)
    throw Error(ErrorKind::usage, std::string(call) + ": the " + what + " has " +
                                      std::to_string(tensor.numel()) + " elements, but " +
                                      std::to_string(expected) + " are needed");
}

void check_count(const Tensors& outputs, const Tensors& inputs, const char* call) {
  if (outputs.size() != inputs.size())
    throw Error(ErrorKind::usage, std::string(call) + ": got " + std::to_string(outputs.size()) +
                                      " outputs, but " + std::to_string(inputs.size()) + " inputs");
}

void check_flat_gather(const at::Tensor& output, const at::Tensor& input, int size,
                       const char* call) {
  check_readable(input, call, "input");
  check_writable(output, call, "output");
  check_same(output, input, call, "output");
  check_elements(output, input.numel() * size, call, "output");
}

void check_flat_scatter(const at::Tensor& output, const at::Tensor& input, int size,
                        const char* call) {
  check_readable(input, call, "input");
  check_writable(output, call, "output");
  check_same(output, input, call, "output");
  check_elements(input, output.numel() * size, call, "input");
}

bool same_elements(const Tensors& tensors, int64_t elements) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& t) { return t.numel() == elements; });
}

void gather_flat(Communicator& c, const at::Tensor& output, const at::Tensor& input,
                 Milliseconds timeout) {
  Packed in(input, Packed::Use::read);
  const Packed out(output, Packed::Use::write);
  const Pointers parts = slices(out, c.size());
  // In place, the input is this rank's part of the output; any other overlap would be overwritten.
  if (in.data() != parts[c.rank()]) in.separate(out);
  c.all_gather(in.data(), parts.data(), in.bytes(), transfer_dtype(input), timeout);
  out.unpack();
}

void scatter_flat(Communicator& c, const at::Tensor& output, const at::Tensor& input,
                  Reduction reduction, Milliseconds timeout) {
  Packed in(input, Packed::Use::read);
  const Packed out(output, Packed::Use::write);
  if (out.data() != const_slices(in, c.size())[c.rank()]) in.separate(out);
  c.reduce_scatter(const_slices(in, c.size()).data(), out.data(), output.numel(),
                   reduction_dtype(input, reduction), reduction, timeout);
  out.unpack();
}

// Outputs of one size take an all_gather; others, sizes by rank, which every rank lists alike, an
// all_to_all_v in which each rank sends all others the same.
void gather_list(Communicator& c, const Tensors& outputs, const at::Tensor& input,
                 Milliseconds timeout) {
  Packed in(input, Packed::Use::read);
  const PackedList out = pack(outputs, Packed::Use::write);
  for (const Packed& part : out) in.separate(part);
  const Pointers parts = pointers(out);
  if (same_elements(outputs, input.numel())) {
    c.all_gather(in.data(), parts.data(), in.bytes(), transfer_dtype(input), timeout);
  } else {
    const ConstPointers all(c.size(), in.data());
    const Sizes sent(c.size(), in.bytes());
    Sizes received;
    for (const Packed& part : out) received.push_back(part.bytes());
    c.all_to_all_v(all.data(), sent.data(), parts.data(), received.data(), transfer_dtype(input),
                   timeout);
  }
  unpack(out);
}

}  // namespace

WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) {
  return with_torch_errors([&] {
    const at::Tensor& input = only(inputs, "all_gather");
    check_readable(input, "all_gather", "input");
    if (outputs.size() != 1)
      throw Error(ErrorKind::usage, "all_gather: expects one list of outputs per rank, but got " +
                                        std::to_string(outputs.size()));
    const Tensors& parts = outputs[0];
    check_parts(parts.size(), "all_gather", "output");
    for (const at::Tensor& part : parts) {
      check_writable(part, "all_gather", "output");
      check_same(part, input, "all_gather", "output");
    }
    check_elements(parts[rank_], input.numel(), "all_gather", "output for this rank");
    return run({OpType::ALLGATHER, "rocenante:all_gather", options.asyncOp, options.timeout},
               inputs, parts, [parts, input](Communicator& c, Milliseconds timeout) {
                 gather_list(c, parts, input, timeout);
               });
  });
}

WorkPtr Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& options) {
  return with_torch_errors([&] {
    check_parts(outputs.size(), "all_gather_coalesced", "list of outputs");
    for (const Tensors& list : outputs) {
      check_count(list, inputs, "all_gather_coalesced");
      for (size_t i = 0; i < inputs.size(); ++i) {
        check_readable(inputs[i], "all_gather_coalesced", "input");
        check_writable(list[i], "all_gather_coalesced", "output");
        check_same(list[i], inputs[i], "all_gather_coalesced", "output");
        check_elements(list[i], inputs[i].numel(), "all_gather_coalesced", "output");
      }
    }
    Tensors flat;
    for (const Tensors& list : outputs) flat.insert(flat.end(), list.begin(), list.end());
    return run(
        {OpType::ALLGATHER_COALESCED, "rocenante:all_gather", options.asyncOp, options.timeout},
        inputs, flat, [outputs, inputs](Communicator& c, Milliseconds timeout) {
          for (size_t i = 0; i < inputs.size(); ++i) {
            Tensors parts;
            for (const Tensors& list : outputs) parts.push_back(list[i]);
            gather_list(c, parts, inputs[i], timeout);
          }
        });
  });
}

WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                 const c10d::AllgatherOptions& options) {
  return with_torch_errors([&] {
    check_flat_gather(output, input, size_, "all_gather");
    return run(
        {OpType::_ALLGATHER_BASE, "rocenante:_all_gather_base", options.asyncOp, options.timeout},
        input, output, [output, input](Communicator& c, Milliseconds timeout) {
          gather_flat(c, output, input, timeout);
        });
  });
}

WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  return with_torch_errors([&] {
    check_count(outputs, inputs, "all_gather_coalesced");
    for (size_t i = 0; i < inputs.size(); ++i)
      check_flat_gather(outputs[i], inputs[i], size_, "all_gather_coalesced");
    return run({OpType::ALLGATHER_COALESCED, "rocenante:all_gather_into_tensor_coalesced",
                options.asyncOp, options.timeout},
               inputs, outputs, [outputs, inputs](Communicator& c, Milliseconds timeout) {
                 for (size_t i = 0; i < inputs.size(); ++i)
                   gather_flat(c, outputs[i], inputs[i], timeout);
               });
  });
}

WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::GatherOptions& options) {
  return with_torch_errors([&] {
    const at::Tensor& input = only(inputs, "gather");
    check_readable(input, "gather", "input");
    const auto root = static_cast<int>(options.rootRank);
    Tensors parts;
    if (rank_ == root) {
      check_parts(outputs.empty() ? 0 : outputs[0].size(), "gather", "output");
      parts = outputs[0];
      for (const at::Tensor& part : parts) {
        check_writable(part, "gather", "output");
        check_same(part, input, "gather", "output");
        check_elements(part, input.numel(), "gather", "output");
      }
    }
    return run({OpType::GATHER, "rocenante:gather", options.asyncOp, options.timeout}, inputs,
               parts, [parts, input, root](Communicator& c, Milliseconds timeout) {
                 Packed in(input, Packed::Use::read);
                 const PackedList out = pack(parts, Packed::Use::write);
                 for (const Packed& part : out) in.separate(part);
                 c.gather(in.data(), pointers(out).data(), in.bytes(), transfer_dtype(input), root,
                          timeout);
                 unpack(out);
               });
  });
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
WorkPtr Backend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                    const c10d::GatherOptions& options) {
  return with_torch_errors([&] {
    const auto root = static_cast<int>(options.rootRank);
    const bool receives = rank_ == root;
    if (receives)
      check_flat_gather(output, input, size_, "gather");
    else
      check_readable(input, "gather", "input");
    return run({OpType::GATHER, "rocenante:gather", options.asyncOp, options.timeout}, input,
               receives ? at::TensorList(output) : at::TensorList(),
               [input, output, root, receives](Communicator& c, Milliseconds timeout) {
                 Packed in(input, Packed::Use::read);
                 const DType dtype = transfer_dtype(input);
                 if (!receives)
                   return c.gather(in.data(), nullptr, in.bytes(), dtype, root, timeout);
                 const Packed out(output, Packed::Use::write);
                 const Pointers parts = slices(out, c.size());
                 if (in.data() != parts[root]) in.separate(out);
                 c.gather(in.data(), parts.data(), in.bytes(), dtype, root, timeout);
                 out.unpack();
               });
  });
}
#endif

WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ScatterOptions& options) {
  return with_torch_errors([&] {
    const at::Tensor& output = only(outputs, "scatter");
    check_writable(output, "scatter", "output");
    const auto root = static_cast<int>(options.rootRank);
    Tensors parts;
    if (rank_ == root) {
      check_parts(inputs.empty() ? 0 : inputs[0].size(), "scatter", "input");
      parts = inputs[0];
      for (const at::Tensor& part : parts) {
        check_readable(part, "scatter", "input");
        check_same(part, output, "scatter", "input");
        check_elements(part, output.numel(), "scatter", "input");
      }
    }
    return run({OpType::SCATTER, "rocenante:scatter", options.asyncOp, options.timeout}, parts,
               outputs, [parts, output, root](Communicator& c, Milliseconds timeout) {
                 const Packed out(output, Packed::Use::write);
                 PackedList in = pack(parts, Packed::Use::read);
                 for (Packed& part : in) part.separate(out);
                 c.scatter(const_pointers(in).data(), out.data(), out.bytes(),
                           transfer_dtype(output), root, timeout);
                 out.unpack();
               });
  });
}

WorkPtr Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                const c10d::ReduceScatterOptions& options) {
  return with_torch_errors([&] {
    const at::Tensor& output = only(outputs, "reduce_scatter");
    check_writable(output, "reduce_scatter", "output");
    const Reduction reduction = reduction_of(options.reduceOp);
    const DType dtype = reduction_dtype(output, reduction);
    check_parts(inputs.empty() ? 0 : inputs[0].size(), "reduce_scatter", "input");
    const Tensors parts = inputs[0];
    for (const at::Tensor& part : parts) {
      check_readable(part, "reduce_scatter", "input");
      check_same(part, output, "reduce_scatter", "input");
    }
    check_elements(parts[rank_], output.numel(), "reduce_scatter", "input for this rank");
    return run(
        {OpType::REDUCE_SCATTER, "rocenante:reduce_scatter", options.asyncOp, options.timeout},
        parts, outputs, [parts, output, reduction, dtype](Communicator& c, Milliseconds timeout) {
          const Packed out(output, Packed::Use::write);
          PackedList in = pack(parts, Packed::Use::read);
          for (Packed& part : in) part.separate(out);
          const ConstPointers from = const_pointers(in);
          if (same_elements(parts, output.numel())) {
            c.reduce_scatter(from.data(), out.data(), output.numel(), dtype, reduction, timeout);
          } else {  // sizes by rank, which every rank lists alike
            for (int r = 0; r < c.size(); ++r)
              c.reduce(from[r], r == c.rank() ? out.data() : nullptr, parts[r].numel(), dtype,
                       reduction, r, timeout);
          }
          out.unpack();
        });
  });
}

WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::ReduceScatterOptions& options) {
  return with_torch_errors([&] {
    check_flat_scatter(output, input, size_, "reduce_scatter");
    const Reduction reduction = reduction_of(options.reduceOp);
    reduction_dtype(input, reduction);
    return run({OpType::_REDUCE_SCATTER_BASE, "rocenante:_reduce_scatter_base", options.asyncOp,
                options.timeout},
               input, output, [output, input, reduction](Communicator& c, Milliseconds timeout) {
                 scatter_flat(c, output, input, reduction, timeout);
               });
  });
}

WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  return with_torch_errors([&] {
    check_count(outputs, inputs, "reduce_scatter_coalesced");
    const Reduction reduction = reduction_of(options.reduceOp);
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_flat_scatter(outputs[i], inputs[i], size_, "reduce_scatter_coalesced");
      reduction_dtype(inputs[i], reduction);
    }
    return run({OpType::REDUCE_SCATTER_TENSOR_COALESCED,
                "rocenante:reduce_scatter_tensor_coalesced", options.asyncOp, options.timeout},
               inputs, outputs,
               [outputs, inputs, reduction](Communicator& c, Milliseconds timeout) {
                 for (size_t i = 0; i < inputs.size(); ++i)
                   scatter_flat(c, outputs[i], inputs[i], reduction, timeout);
               });
  });
}

}  // namespace rocenante
