// gpu.h by the CUDA runtime, which is linked statically and opens the driver when it is first
// called: without one, everything here says so.
#include <cuda_runtime.h>

#include "core/error.h"
#include "core/log.h"
#include "device/gpu.h"

namespace rocenante::device {

namespace {

const char* advice(cudaError_t error) {
  switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      return "see nvidia-smi, CUDA_VISIBLE_DEVICES and, in a container, whether it was given a GPU";
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
      return "install an NVIDIA driver that is as new as the CUDA that rocenante was built with";
    case cudaErrorMemoryAllocation:
      return "free GPU or host memory, or raise the limit of locked memory (ulimit -l)";
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorNotSupported:
      return "this GPU or driver cannot map host memory here";
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureImplicit:
      return "capture on a stream of its own, with nothing queued on the default stream meanwhile";
    default:
      return "an earlier kernel of this process may have failed: run with CUDA_LAUNCH_BLOCKING=1";
  }
}

void check(cudaError_t error, const std::string& call) {
  if (error == cudaSuccess) return;
  throw Error(ErrorKind::system, call + " failed: " + cudaGetErrorString(error) + " (" +
                                     cudaGetErrorName(error) + "): " + advice(error));
}

// Where nothing may be thrown.
void check_at_end(cudaError_t error, const char* call) noexcept {
  // At exit the driver may have gone before us.
  if (error == cudaSuccess || error == cudaErrorCudartUnloading) return;
  log(LogLevel::warn, std::string(call) + " failed: " + cudaGetErrorString(error));
}

std::string size_text(size_t bytes, const char* what) {
  return " of " + std::to_string((bytes + 1023) >> 10) + " KiB (" + what + ")";
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

OnGpu::OnGpu(int gpu) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ != gpu) check(cudaSetDevice(gpu), "cudaSetDevice(" + std::to_string(gpu) + ")");
}

OnGpu::~OnGpu() { check_at_end(cudaSetDevice(before_), "cudaSetDevice"); }

MappedMemory::MappedMemory(void* memory, size_t bytes, const char* what) : memory_(memory) {
  check(cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable),
        "cudaHostRegister" + size_text(bytes, what));
  if (const cudaError_t error = cudaHostGetDevicePointer(&mapped_, memory, 0)) {
    cudaHostUnregister(memory);
    check(error, "cudaHostGetDevicePointer" + size_text(bytes, what));
  }
}

MappedMemory::~MappedMemory() { check_at_end(cudaHostUnregister(memory_), "cudaHostUnregister"); }

DeviceMemory::DeviceMemory(size_t bytes, const char* what) {
  check(cudaMalloc(&data_, bytes), "cudaMalloc" + size_text(bytes, what));
  if (const cudaError_t error = cudaMemset(data_, 0, bytes)) {
    cudaFree(data_);
    check(error, "cudaMemset" + size_text(bytes, what));
  }
}

DeviceMemory::~DeviceMemory() { check_at_end(cudaFree(data_), "cudaFree"); }

Mark::Mark() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  event_ = event;
}

Mark::~Mark() { check_at_end(cudaEventDestroy(event_of(event_)), "cudaEventDestroy"); }

void Mark::set(void* stream) {
  check(cudaEventRecord(event_of(event_), stream_of(stream)), "cudaEventRecord");
}

bool Mark::passed() const {
  const cudaError_t error = cudaEventQuery(event_of(event_));
  if (error == cudaErrorNotReady) return false;
  check(error, "cudaEventQuery");
  return true;
}

void Mark::precede(void* stream) const {
  check(cudaStreamWaitEvent(stream_of(stream), event_of(event_), 0), "cudaStreamWaitEvent");
}

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_of(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

std::string describe_gpu(int gpu) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
  return std::string(properties.name) + (properties.integrated ? ", integrated" : "");
}

}  // namespace rocenante::device
