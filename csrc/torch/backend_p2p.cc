// The Backend's send, recv and monitored barrier.
#include <c10/util/Exception.h>

#include <thread>
#include <utility>

#include "torch/run.h"
#include "torch/tensors.h"

namespace rocenante {

using c10d::OpType;

namespace {

constexpr Milliseconds kStorePoll(1);

// True once the key is there; false once the deadline has passed.
bool await_key(StoreBootstrap& store, const std::string& key, const Deadline& deadline) {
  while (!store.check(key)) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kStorePoll);
  }
  return true;
}

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

WorkPtr Backend::start_transfer(OpType type, const char* title, Tensors& tensors, int peer,
                                int tag) {
  return with_torch_errors([&]() -> WorkPtr {
    engine_->check_process();
    const bool sends = type == OpType::SEND;
    const char* call = sends ? "send" : "recv";
    const at::Tensor& tensor = only(tensors, call);
    if (sends)
      check_readable(tensor, call, "tensor");
    else
      check_writable(tensor, call, "tensor");
    const Packed packed(tensor, sends ? Packed::Use::read : Packed::Use::write);
    const DType dtype = transfer_dtype(tensor);
    const Milliseconds timeout = options_->timeout;
    PointToPoint& channel = engine_->communicator().point_to_point();
    const uint64_t sequence = sequence_.load(std::memory_order_relaxed);
    const CommsRecord record(*this, options_->global_ranks_in_group, {title, sequence, true, true},
                             tensors, tensors);
    auto work =
        c10::make_intrusive<TransferWork>(rank_, type, title, tensors, sequence, timeout, packed);
    auto transfer = sends ? channel.send(packed.data(), packed.bytes(), dtype, peer, tag, timeout)
                          : channel.recv(packed.data(), packed.bytes(), dtype, peer, tag, timeout);
    work->start(engine_, std::move(transfer));
    return work;
  });
}

WorkPtr Backend::send(Tensors& tensors, int destination, int tag) {
  return start_transfer(OpType::SEND, "rocenante:send", tensors, destination, tag);
}

WorkPtr Backend::recv(Tensors& tensors, int source, int tag) {
  return start_transfer(OpType::RECV, "rocenante:recv", tensors, source, tag);
}

WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return start_transfer(OpType::RECVANYSOURCE, "rocenante:recvAnySource", tensors, kAnySource, tag);
}

// Goes through the store, not through the windows: it is there to name the ranks that are missing
// or stuck in a collective, and must leave the communicator usable when it fails.
void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  with_torch_errors([&] { engine_->check_process(); });
  const Milliseconds timeout = effective(options.timeout);
  const std::string prefix = "monitored_barrier/" + std::to_string(monitored_barriers_++) + "/";
  if (rank_ == 0) return await_monitored(prefix, timeout, wait_all_ranks);

  StoreBootstrap& store = engine_->bootstrap();
  store.set(prefix + std::to_string(rank_), {});
  if (await_key(store, prefix + "passed", Deadline(timeout))) return;
  C10_THROW_ERROR(DistBackendError,
                  c10::str("Rank ", rank_,
                           " successfully reached monitoredBarrier, but received errors while "
                           "waiting for send/recv from rank 0: it did not answer within ",
                           timeout.count(), " ms. Its own error names the ranks that are missing"));
}

void Backend::await_monitored(const std::string& prefix, Milliseconds timeout,
                              bool wait_all_ranks) {
  StoreBootstrap& store = engine_->bootstrap();
  const Deadline deadline(timeout);
  std::vector<int> missing;
  for (int rank = 1; rank < size_; ++rank) {
    if (!wait_all_ranks && timeout.count() == 0)
      C10_THROW_ERROR(DistBackendError,
                      c10::str("Rank 0 timed out in monitoredBarrier after ", timeout.count(),
                               " ms: no time was given to wait for the others"));
    if (await_key(store, prefix + std::to_string(rank), deadline)) continue;
    missing.push_back(rank);
    if (!wait_all_ranks) break;
  }
  if (!missing.empty())
    C10_THROW_ERROR(DistBackendError,
                    c10::str("[Rank 0]: ", missing.size() == 1 ? "Rank " : "Ranks ", join(missing),
                             " failed to pass monitoredBarrier in ", timeout.count(), " ms"));
  store.set(prefix + "passed", {});
  // All have arrived here, hence have left the barrier before this one: its keys serve no longer.
  if (monitored_barriers_ >= 2) {
    const std::string old = "monitored_barrier/" + std::to_string(monitored_barriers_ - 2) + "/";
    store.remove(old + "passed");
    for (int rank = 1; rank < size_; ++rank) store.remove(old + std::to_string(rank));
  }
}

}  // namespace rocenante
