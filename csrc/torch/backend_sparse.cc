// all_reduce of sparse COO tensors.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "torch/run.h"
#include "torch/tensors.h"

namespace rocenante {

using c10d::OpType;

namespace {

// From each rank r its rows[r] rows.
Tensors gather_rows(Communicator& c, const at::Tensor& mine, const std::vector<int64_t>& rows,
                    Milliseconds timeout) {
  const Packed in(mine, Packed::Use::read);
  const ConstPointers all(c.size(), in.data());
  const Sizes sent(c.size(), in.bytes());
  Tensors parts;
  Pointers out;
  Sizes received;
  for (int r = 0; r < c.size(); ++r) {
    auto sizes = mine.sizes().vec();
    sizes[0] = rows[r];
    parts.push_back(at::empty(sizes, mine.options()));
    out.push_back(parts.back().mutable_data_ptr());
    received.push_back(parts.back().nbytes());
  }
  c.all_to_all_v(all.data(), sent.data(), out.data(), received.data(), transfer_dtype(mine),
                 timeout);
  return parts;
}

// The ranks' entries one after another, in rank order; coalesce() then sums those of one place in
// that order, the same on every rank.
void sum_sparse(Communicator& c, const at::Tensor& tensor, Milliseconds timeout) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor mine = tensor.coalesce();
  const int64_t entries = mine._nnz();
  std::vector<int64_t> rows(c.size());
  Pointers counts;
  for (int64_t& count : rows) counts.push_back(&count);
  c.all_gather(&entries, counts.data(), sizeof(entries), DType::int64, timeout);
  const at::Tensor indices =
      at::cat(gather_rows(c, mine._indices().t().contiguous(), rows, timeout)).t();
  const at::Tensor values = at::cat(gather_rows(c, mine._values().contiguous(), rows, timeout));
  tensor.copy_(at::sparse_coo_tensor(indices, values, tensor.sizes(), tensor.options()).coalesce());
}

}  // namespace

WorkPtr Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return with_torch_errors([&] {
    const at::Tensor& tensor = only(tensors, "all_reduce");
    if (!tensor.device().is_cpu())
      throw Error(ErrorKind::usage, "all_reduce: the sparse tensor is on " + tensor.device().str() +
                                        ", but only CPU tensors can be reduced");
    if (options.reduceOp.op_ != c10d::ReduceOp::SUM)
      throw Error(ErrorKind::usage,
                  "all_reduce: sparse tensors can only be summed; call to_dense() on them first");
    return run({OpType::_ALLREDUCE_SPARSE, "rocenante:sparse_all_reduce", options.asyncOp,
                options.timeout},
               tensors, tensors,
               [tensor](Communicator& c, Milliseconds timeout) { sum_sparse(c, tensor, timeout); });
  });
}

}  // namespace rocenante
