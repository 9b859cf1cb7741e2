#include "device/gpu_communicator.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "device/planted.h"

namespace rocenante::device {

namespace {

// One shot sends n-1 copies, two shots 2(n-1)/n in one more exchange, which costs a crossing of the
// network and of the proxy: taken to be as long as a quarter of a megabyte takes on 25 GB/s.
constexpr size_t kBytesPerExchange = 256 << 10;

Thresholds thresholds_of(const Config& config, int size) {
  const auto n = static_cast<size_t>(size);
  Thresholds thresholds;
  thresholds.one_shot_max_bytes = config.one_shot_max_bytes;
  if (config.one_shot_max_bytes == 0)
    thresholds.one_shot_max_bytes = n < 3 ? SIZE_MAX : kBytesPerExchange * n / ((n - 1) * (n - 2));
  return thresholds;
}

constexpr Milliseconds kDrainAtEnd(5000);
// A kernel that is told to gives up within microseconds; what the caller queued before it may take
// longer.
constexpr Milliseconds kGivingUp(10'000);
// More than enough for a proxy that is awake.
constexpr Milliseconds kReading(1000);
// As nanoseconds it still fits.
constexpr Milliseconds kLongest = std::chrono::hours(24 * 365);

// Not before it is certain that there is a GPU.
std::unique_ptr<Endpoint> meet_others(Bootstrap& bootstrap, int rank, int size,
                                      const Config& config, Milliseconds timeout,
                                      const std::string& name, int gpu) {
  const OnGpu on(gpu);
  return std::make_unique<Endpoint>(bootstrap, rank, size, config, timeout, name, Shape{});
}

}  // namespace

GpuCommunicator::GpuCommunicator(Bootstrap& bootstrap, int rank, int size, const Config& config,
                                 Milliseconds timeout, const std::string& name, int gpu)
    : gpu_(gpu),
      rank_(rank),
      thresholds_(thresholds_of(config, size)),
      endpoint_(meet_others(bootstrap, rank, size, config, timeout, name, gpu)) {
  try {
    const OnGpu on(gpu_);
    window_ = std::make_unique<MappedMemory>(endpoint_->window(), endpoint_->layout().bytes,
                                             "the window");
    control_ =
        std::make_unique<MappedMemory>(&endpoint_->control(), sizeof(Control), "the control block");
    state_ = std::make_unique<DeviceMemory>(sizeof(ChannelState), "sequence numbers");
    last_ = std::make_unique<Mark>();
  } catch (const Error& e) {
    endpoint_->proxy().abort(e.what());  // so that peers learn why
    throw Error(e.kind(), "rocenante[" + name + "] rank " + std::to_string(rank) +
                              ": init on GPU " + std::to_string(gpu) + ": " + e.what());
  }
}

GpuCommunicator::~GpuCommunicator() {
  close(kDrainAtEnd);
  if (!has_ended_) {
    static_cast<void>(window_.release());
    static_cast<void>(control_.release());
    static_cast<void>(state_.release());
    static_cast<void>(endpoint_.release());
  }
}

std::optional<Proxy::Failure> GpuCommunicator::failed() const {
  Proxy& proxy = endpoint_->proxy();
  // A kernel's record is there when its stream has been waited for; the proxy may not have read it.
  const auto record = std::atomic_ref<uint64_t>(endpoint_->control().record.failure);
  for (const Deadline deadline(kReading);
       record.load(std::memory_order_acquire) != 0 && !proxy.failure() && !deadline.passed();) {
    proxy.wake();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return proxy.failure();
}

std::string GpuCommunicator::failure() const {
  const auto failure = failed();
  return failure ? failure->what : "";
}

void GpuCommunicator::abort(const std::string& reason) { endpoint_->proxy().abort(reason); }

void GpuCommunicator::run(const Call& call, const void* in, void* out, Milliseconds timeout,
                          void* stream) {
  if (const auto failure = failed(); failure && !planted(HostBug::failure_unread))
    throw Error(failure->kind, failure->what);
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error(ErrorKind::aborted, "this communicator was closed");
  if (!is_supported(call.collective, call.dtype, call.reduction.op))
    throw Error(ErrorKind::usage,
                "there is no kernel for " + std::string(name_of(call.collective)));
  const Plan plan = make_plan(call, endpoint_->layout(), thresholds_);
  KernelArgs args = make_args(call, plan, endpoint_->layout());
  args.in = in;
  args.out = out;
  args.rank = static_cast<uint32_t>(rank_);
  args.timeout = static_cast<uint64_t>(std::min(timeout, kLongest).count()) * 1'000'000;
  args.window = static_cast<char*>(window_->for_kernels());
  args.control = static_cast<Control*>(control_->for_kernels());
  args.state = static_cast<ChannelState*>(state_->data());

  const OnGpu on(gpu_);
  const bool captured = is_capturing(stream);
  if ((!captured || planted(HostBug::captures_wait)) && has_launched_ && stream != last_stream_ &&
      !planted(HostBug::streams_unordered))
    last_->precede(stream);
  endpoint_->proxy().wake();
  launch(call, plan, args, stream);
  if (captured) return;
  last_->set(stream);
  last_stream_ = stream;
  has_launched_ = true;
}

bool GpuCommunicator::ends_within(Milliseconds budget) const {
  const Deadline deadline(budget);
  while (has_launched_ && !last_->passed()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return true;
}

void GpuCommunicator::close(Milliseconds drain) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(closed_, true)) return;
  std::string why = "a kernel has not ended";
  try {
    const OnGpu on(gpu_);
    has_ended_ = ends_within(drain);
    if (!has_ended_) {
      if (!planted(HostBug::closed_without_abort))
        endpoint_->proxy().abort("closed with kernels under way");
      has_ended_ = ends_within(kGivingUp);
    }
  } catch (const Error& e) {
    why = e.what();
  }
  if (!has_ended_) log(LogLevel::warn, "a communicator's memory is kept at its end: " + why);
  endpoint_->proxy().stop();
}

}  // namespace rocenante::device
