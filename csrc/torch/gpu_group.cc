#include "torch/gpu_group.h"

#include "core/error.h"

namespace rocenante {

namespace {

// The group's store, under keys that its other meeting does not use.
class GpuKeys final : public Bootstrap {
 public:
  explicit GpuKeys(Bootstrap& store) : store_(store) {}
  void set(const std::string& key, const Bytes& value) override { store_.set("gpu/" + key, value); }
  bool check(const std::string& key) override { return store_.check("gpu/" + key); }
  Bytes get(const std::string& key) override { return store_.get("gpu/" + key); }

 private:
  Bootstrap& store_;
};

}  // namespace

device::GpuCommunicator* GpuGroup::made() {
  const std::lock_guard lock(mutex_);
  return gpu_.get();
}

device::GpuCommunicator& GpuGroup::make(int gpu, void* stream) {
  const std::lock_guard making(making_);
  if (device::GpuCommunicator* const there = made()) return *there;
  if (device::is_capturing(stream))
    throw Error(ErrorKind::usage,
                "the first call on GPU arrays allocates memory and cannot be captured: make one, "
                "on all ranks, before the capture");
  GpuKeys keys(bootstrap_);
  auto fresh = std::make_unique<device::GpuCommunicator>(
      keys, communicator_.rank(), communicator_.size(), communicator_.config(), timeout_,
      communicator_.name(), gpu);
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(ErrorKind::aborted, "this communicator was closed");
  gpu_ = std::move(fresh);
  return *gpu_;
}

void GpuGroup::run(int gpu, const device::Call& call, const void* in, void* out,
                   Milliseconds timeout, void* stream) {
  device::GpuCommunicator* const there = made();
  device::GpuCommunicator& communicator = there ? *there : make(gpu, stream);
  if (communicator.gpu() != gpu)
    throw Error(ErrorKind::usage, "the array is on GPU " + std::to_string(gpu) +
                                      ", but this communicator's kernels run on GPU " +
                                      std::to_string(communicator.gpu()));
  communicator.run(call, in, out, timeout, stream);
}

std::string GpuGroup::failure() {
  device::GpuCommunicator* const gpu = made();
  return gpu ? gpu->failure() : "";
}

void GpuGroup::abort(const std::string& reason) {
  if (device::GpuCommunicator* const gpu = made()) gpu->abort(reason);
}

void GpuGroup::close(Milliseconds drain) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  if (device::GpuCommunicator* const gpu = made()) gpu->close(drain);
}

std::string gpu_status() {
  try {
    return device::describe_gpu(0) + "; window in pinned host memory";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace rocenante
