// One rank's end of a group of GPUs: collectives as kernels on the caller's streams.
//
// Invariant I2 (one operation at a time, in the same order on every rank) is kept for what is
// launched: kernels of different streams wait for each other in the order of the calls. What a
// graph replays is the caller's to order against the rest.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/bootstrap.h"
#include "core/config.h"
#include "device/endpoint.h"
#include "device/gpu.h"
#include "device/plan.h"

namespace rocenante::device {

class GpuCommunicator {
 public:
  // Meets all ranks through `bootstrap`, which must be the group's own; at most `timeout`. `gpu`:
  // CUDA's number of this rank's. Throws Error: config, timeout, system, peer_lost.
  GpuCommunicator(Bootstrap& bootstrap, int rank, int size, const Config& config,
                  Milliseconds timeout, const std::string& name, int gpu);
  ~GpuCommunicator();  // close()

  // Queues the collective on `stream` (a cudaStream_t of this GPU) and returns; see KernelArgs for
  // what `in` and `out` hold, which must be memory that the GPU can use. An exchange that takes
  // longer than `timeout` fails the communicator. May be captured: a replay runs the same call on
  // what the memory then holds. Throws Error: usage for what no kernel does, system, and, once the
  // communicator has failed, why.
  void run(const Call& call, const void* in, void* out, Milliseconds timeout, void* stream);

  int gpu() const { return gpu_; }
  // Empty while all is well. A kernel fails after run() has returned: this, or the next run(),
  // tells.
  std::string failure() const;
  // Kernels that wait end within moments, on all ranks, and later ones do nothing.
  void abort(const std::string& reason);
  // Gives what was queued (but not what a graph replays) `drain` to complete, then leaves the
  // group. Idempotent. If a kernel does not end, or the GPU no longer answers, the log says so, and
  // memory that a kernel may still write to stays as long as the process.
  void close(Milliseconds drain);

 private:
  std::optional<Proxy::Failure> failed() const;

  bool ends_within(Milliseconds budget) const;

  const int gpu_;
  const int rank_;
  const Thresholds thresholds_;
  std::unique_ptr<Endpoint> endpoint_;
  std::mutex mutex_;  // of all below
  bool closed_ = false;
  void* last_stream_ = nullptr;
  bool has_launched_ = false;  // outside of a capture
  bool has_ended_ = false;     // no kernel can write to this memory any more
  std::unique_ptr<MappedMemory> window_, control_;
  std::unique_ptr<DeviceMemory> state_;
  std::unique_ptr<Mark> last_;  // behind the last kernel
};

}  // namespace rocenante::device
