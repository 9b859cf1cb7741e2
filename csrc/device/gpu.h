// What a communicator of GPUs needs of a GPU: cuda.cc has it of the CUDA runtime, tests of emulated
// GPUs. Everything throws Error(ErrorKind::system) that names the call, CUDA's reason and what to
// do.
#pragma once

#include <cstddef>
#include <string>

#include "device/launch.h"

namespace rocenante::device {

// Makes a GPU the calling thread's for as long as it lives, then the one that was.
class OnGpu {
 public:
  // `gpu`: CUDA's number of it.
  explicit OnGpu(int gpu);
  ~OnGpu();
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  int before_;
};

// Host memory that kernels can use: pinned and mapped while this lives.
class MappedMemory {
 public:
  // `what` it is, for errors.
  MappedMemory(void* memory, size_t bytes, const char* what);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  void* for_kernels() const { return mapped_; }

 private:
  void* const memory_;
  void* mapped_ = nullptr;
};

// Memory of the GPU, zero at first.
class DeviceMemory {
 public:
  DeviceMemory(size_t bytes, const char* what);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// A place in the order of a stream (a cudaStream_t).
class Mark {
 public:
  Mark();
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  // Everything that was queued before has been done once passed() is true.
  void set(void* stream);
  bool passed() const;
  // Has `stream` wait for it.
  void precede(void* stream) const;

 private:
  void* event_ = nullptr;
};

// Whether what is queued on the stream goes into a graph instead.
bool is_capturing(void* stream);

// "NVIDIA GB10, integrated": what `rocenante info` says of a GPU.
std::string describe_gpu(int gpu);

}  // namespace rocenante::device
