// The c10d Backend "rocenante".
#pragma once

#include <torch/version.h>
#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "torch/engine.h"
#include "torch/work.h"

namespace rocenante {

inline constexpr const char* kBackendName = "rocenante";

class BackendOptions final : public c10d::Backend::Options {
 public:
  explicit BackendOptions(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : Options(kBackendName, timeout) {}
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  c10::intrusive_ptr<Options> clone() const override {
    return c10::make_intrusive<BackendOptions>(*this);
  }
#endif
};

// Every collective takes tensors in CPU memory. A blocking call (asyncOp false) runs on the
// caller's thread and returns no Work, as torch allows; an asynchronous one is queued in issue
// order.
class Backend final : public c10d::Backend {
 public:
  // Blocks until all ranks of the group have arrived.
  Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
          c10::intrusive_ptr<BackendOptions> options, const std::string& name);
  ~Backend() override;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  // All ranks count from zero: there is nothing to agree on.
  void setSequenceNumberForGroup() override {}
  void enableCollectivesTiming() override {}
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                             const c10d::GatherOptions& options) override;
#endif
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;

  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  struct Call {
    c10d::OpType type;
    const char* title;  // in the profiler
    bool async;
    std::chrono::milliseconds timeout;  // kUnsetTimeout: the group's
  };
  // Runs or queues body(communicator, timeout), which must own what it needs.
  template <class Body>
  WorkPtr run(const Call& call, at::TensorList inputs, at::TensorList outputs, Body body);
  WorkPtr start_transfer(c10d::OpType type, const char* title, Tensors& tensors, int peer, int tag);
  void await_monitored(const std::string& prefix, Milliseconds timeout, bool wait_all_ranks);
  Milliseconds effective(std::chrono::milliseconds timeout) const {
    return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  }
  void check_parts(size_t parts, const char* call, const char* what) const;

  const c10::intrusive_ptr<BackendOptions> options_;
  std::shared_ptr<Engine> engine_;
  std::atomic<uint64_t> sequence_{0};
  uint64_t monitored_barriers_ = 0;
};

}  // namespace rocenante
