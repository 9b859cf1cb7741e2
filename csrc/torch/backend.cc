#include "torch/backend.h"

#include <algorithm>
#include <utility>

#include "torch/run.h"
#include "torch/tensors.h"

namespace rocenante {

using c10d::OpType;

namespace {

// Work that is under way when its group is destroyed gets this long, or less if the group's time is
// less.
constexpr Milliseconds kDrain(5000);

int checked_root(int64_t root, int64_t root_tensor, int size, const char* call) {
  if (root < 0 || root >= size)
    throw Error(ErrorKind::usage, std::string(call) + ": root rank " + std::to_string(root) +
                                      " is not in a group of " + std::to_string(size) + " ranks");
  if (root_tensor != 0)
    throw Error(ErrorKind::usage, std::string(call) + ": root tensor " +
                                      std::to_string(root_tensor) + ", but a rank has only one");
  return static_cast<int>(root);
}

}  // namespace

Backend::Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                 c10::intrusive_ptr<BackendOptions> options, const std::string& name)
    : c10d::Backend(rank, size), options_(std::move(options)) {
  engine_ = with_torch_errors(
      [&] { return Engine::create(std::move(store), rank, size, options_->timeout, name); });
  init();
}

Backend::~Backend() {
  // Not shutdown(), which may throw.
  if (engine_ && !engine_->is_foreign())
    without_gil([&] { engine_->shutdown(std::min(kDrain, Milliseconds(options_->timeout))); });
  release(engine_);
}

void Backend::abort() {
  without_gil([&] { engine_->abort("the group's abort() was called"); });
}

void Backend::shutdown() {
  without_gil([&] {
    with_torch_errors(
        [&] { engine_->shutdown(std::min(kDrain, Milliseconds(options_->timeout))); });
  });
}

c10d::ErrorType Backend::getError() {
  return engine_->communicator().failure().empty() ? c10d::ErrorType::SUCCESS
                                                   : c10d::ErrorType::COMM_ERROR;
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& options) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  auto own = c10::dynamic_intrusive_pointer_cast<BackendOptions>(options);
  if (!own)
    own = c10::make_intrusive<BackendOptions>(options ? options->timeout : options_->timeout);
  own->global_ranks_in_group.clear();
  for (const int rank : ranks) {
    const auto& parents = options_->global_ranks_in_group;
    own->global_ranks_in_group.push_back(parents.empty() ? rank : parents.at(rank));
  }
  return c10::make_intrusive<Backend>(store, static_cast<int>(mine - ranks.begin()),
                                      static_cast<int>(ranks.size()), own, own->group_name);
}

void Backend::check_parts(size_t parts, const char* call, const char* what) const {
  if (parts != static_cast<size_t>(size_))
    throw Error(ErrorKind::usage, std::string(call) + ": expects one " + what + " per rank, " +
                                      std::to_string(size_) + " in all, but got " +
                                      std::to_string(parts));
}

WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return with_torch_errors([&]() -> WorkPtr {
    const at::Tensor& tensor = only(tensors, "all_reduce");
    if (tensor.is_sparse()) return allreduce_sparse(tensors, options);
    check_writable(tensor, "all_reduce", "tensor");
    const Reduction reduction = reduction_of(options.reduceOp);
    const DType dtype = reduction_dtype(tensor, reduction);
    return run({OpType::ALLREDUCE, "rocenante:all_reduce", options.asyncOp, options.timeout},
               tensors, tensors, [tensor, reduction, dtype](Communicator& c, Milliseconds timeout) {
                 const Packed data(tensor, Packed::Use::update);
                 c.all_reduce(data.data(), data.data(), tensor.numel(), dtype, reduction, timeout);
                 data.unpack();
               });
  });
}

WorkPtr Backend::allreduce_coalesced(Tensors& tensors,
                                     const c10d::AllreduceCoalescedOptions& options) {
  return with_torch_errors([&] {
    const Reduction reduction = reduction_of(options.reduceOp);
    for (const at::Tensor& tensor : tensors) {
      check_writable(tensor, "all_reduce_coalesced", "tensor");
      reduction_dtype(tensor, reduction);
    }
    return run(
        {OpType::ALLREDUCE_COALESCED, "rocenante:all_reduce", options.asyncOp, options.timeout},
        tensors, tensors, [tensors, reduction](Communicator& c, Milliseconds timeout) {
          for (const at::Tensor& tensor : tensors) {
            const Packed data(tensor, Packed::Use::update);
            c.all_reduce(data.data(), data.data(), tensor.numel(),
                         reduction_dtype(tensor, reduction), reduction, timeout);
            data.unpack();
          }
        });
  });
}

WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return with_torch_errors([&] {
    const at::Tensor& tensor = only(tensors, "broadcast");
    const int root = checked_root(options.rootRank, options.rootTensor, size_, "broadcast");
    const bool reads = rank_ == root;
    if (reads)
      check_readable(tensor, "broadcast", "tensor");
    else
      check_writable(tensor, "broadcast", "tensor");
    return run({OpType::BROADCAST, "rocenante:broadcast", options.asyncOp, options.timeout},
               tensors, tensors, [tensor, root, reads](Communicator& c, Milliseconds timeout) {
                 const Packed data(tensor, reads ? Packed::Use::read : Packed::Use::write);
                 c.broadcast(data.data(), data.bytes(), transfer_dtype(tensor), root, timeout);
                 if (!reads) data.unpack();
               });
  });
}

WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return with_torch_errors([&] {
    const at::Tensor& tensor = only(tensors, "reduce");
    const int root = checked_root(options.rootRank, options.rootTensor, size_, "reduce");
    const bool writes = rank_ == root;
    if (writes)
      check_writable(tensor, "reduce", "tensor");
    else
      check_readable(tensor, "reduce", "tensor");
    const Reduction reduction = reduction_of(options.reduceOp);
    const DType dtype = reduction_dtype(tensor, reduction);
    return run({OpType::REDUCE, "rocenante:reduce", options.asyncOp, options.timeout}, tensors,
               tensors,
               [tensor, root, writes, reduction, dtype](Communicator& c, Milliseconds timeout) {
                 const Packed data(tensor, writes ? Packed::Use::update : Packed::Use::read);
                 c.reduce(data.data(), writes ? data.data() : nullptr, tensor.numel(), dtype,
                          reduction, root, timeout);
                 if (writes) data.unpack();
               });
  });
}

WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  return with_torch_errors([&] {
    return run({OpType::BARRIER, "rocenante:barrier", options.asyncOp, options.timeout}, {}, {},
               [](Communicator& c, Milliseconds timeout) { c.barrier(timeout); });
  });
}

}  // namespace rocenante
