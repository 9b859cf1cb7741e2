// gpu.h and launch.h in a build without kernels: whatever is begun says so.
#include "core/error.h"
#include "device/gpu.h"

namespace rocenante::device {

namespace {
[[noreturn]] void refuse() {
  throw Error(ErrorKind::usage,
              "this build of rocenante has no CUDA kernels: it was made where there was no nvcc");
}
}  // namespace

OnGpu::OnGpu(int) : before_(0) { refuse(); }
OnGpu::~OnGpu() = default;
MappedMemory::MappedMemory(void* memory, size_t, const char*) : memory_(memory) { refuse(); }
MappedMemory::~MappedMemory() = default;
DeviceMemory::DeviceMemory(size_t, const char*) { refuse(); }
DeviceMemory::~DeviceMemory() = default;
Mark::Mark() { refuse(); }
Mark::~Mark() = default;
void Mark::set(void*) { refuse(); }
bool Mark::passed() const { refuse(); }
void Mark::precede(void*) const { refuse(); }
bool is_capturing(void*) { refuse(); }
std::string describe_gpu(int) { refuse(); }
void launch(const Call&, const Plan&, const KernelArgs&, void*) { refuse(); }

}  // namespace rocenante::device
