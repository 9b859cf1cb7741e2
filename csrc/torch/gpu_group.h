// The kernels of a group, made when the first array in GPU memory asks for them.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "collective/communicator.h"
#include "device/gpu_communicator.h"

namespace rocenante {

class GpuGroup {
 public:
  // `timeout`: for the ranks to meet, at the first run().
  GpuGroup(const Communicator& communicator, Bootstrap& bootstrap, Milliseconds timeout)
      : communicator_(communicator), bootstrap_(bootstrap), timeout_(timeout) {}

  // As device::GpuCommunicator::run(), on GPU `gpu`. The first call is collective and blocks until
  // all ranks have made theirs; it cannot be captured. Throws usage in a build without kernels, and
  // for another GPU than the first call's.
  void run(int gpu, const device::Call& call, const void* in, void* out, Milliseconds timeout,
           void* stream);
  // Why the kernels can no longer be used; empty if nothing speaks against it.
  std::string failure();
  void abort(const std::string& reason);
  void close(Milliseconds drain);

 private:
  device::GpuCommunicator* made();
  device::GpuCommunicator& make(int gpu, void* stream);

  const Communicator& communicator_;
  Bootstrap& bootstrap_;
  const Milliseconds timeout_;
  std::mutex making_;  // held while ranks meet
  std::mutex mutex_;   // of all below
  bool closed_ = false;
  std::unique_ptr<device::GpuCommunicator> gpu_;
};

// "NVIDIA GB10, integrated; window in pinned host memory", or why no kernel can run here.
std::string gpu_status();

}  // namespace rocenante
