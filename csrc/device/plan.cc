#include "device/plan.h"

#include <algorithm>

#include "exchange/call.h"

namespace rocenante::device {

namespace {

// Enough for the loads of one block of kMaxThreads to cover the latency of memory, and few enough
// blocks that two communicators fit on a small GPU side by side.
constexpr size_t kBytesPerBlock = 8 << 10;

bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter;
}

// What one rank moves in the call.
size_t bytes_handled(const Call& call, unsigned ranks) {
  const size_t bytes = call.count * size_of(call.dtype);
  const bool per_peer =
      call.collective == Collective::reduce_scatter || call.collective == Collective::all_to_all;
  return per_peer ? bytes * ranks : bytes;
}

bool has_low_latency_kernel(const Call& call) {
  const DType t = call.dtype;
  return call.collective == Collective::all_reduce && call.reduction.op == ReduceOp::sum &&
         (t == DType::float16 || t == DType::bfloat16 || t == DType::float32 ||
          t == DType::complex64);
}

}  // namespace

bool is_supported(Collective collective, DType dtype, ReduceOp op) {
  if (reduces(collective)) {
    check_reduction(dtype, op);
    return true;
  }
  return collective == Collective::all_gather || collective == Collective::all_to_all ||
         collective == Collective::broadcast;
}

Plan make_plan(const Call& call, const WindowLayout& layout, const Thresholds& thresholds) {
  const size_t bytes = bytes_handled(call, layout.ranks);
  Plan plan;
  if (call.collective == Collective::all_reduce) {
    plan.low_latency = bytes <= thresholds.low_latency_max_bytes && has_low_latency_kernel(call);
    if (!plan.low_latency && bytes > thresholds.one_shot_max_bytes)
      plan.algorithm = Algorithm::two_shot;
  }
  const size_t blocks = (bytes + kBytesPerBlock - 1) / kBytesPerBlock;
  plan.blocks = static_cast<unsigned>(std::clamp<size_t>(blocks, 1, layout.channels));
  // A thread per vector of the block and per peer, in whole warps.
  const size_t vectors = (bytes / plan.blocks + 15) / 16;
  const size_t threads = (std::max<size_t>(vectors, layout.ranks) + 31) / 32 * 32;
  plan.threads = static_cast<unsigned>(std::min<size_t>(threads, kMaxThreads));
  return plan;
}

KernelId kernel_of(const Call& call, const Plan& plan) {
  KernelId id{call.collective, plan.algorithm, plan.low_latency, call.dtype, call.reduction.op};
  if (id.dtype == DType::complex64) id.dtype = DType::float32;
  if (id.dtype == DType::complex128) id.dtype = DType::float64;
  return id;
}

KernelArgs make_args(const Call& call, const Plan& plan, const WindowLayout& layout) {
  CallRecord record;
  record.bytes = call.count * size_of(call.dtype);
  record.collective = call.collective;
  record.algorithm = plan.algorithm;
  record.dtype = call.dtype;
  record.reduces = reduces(call.collective);
  record.op = call.reduction.op;
  if (call.collective == Collective::broadcast) record.root = call.root;

  KernelArgs args;
  // LL words and plain slots never meet, so ranks that disagree here alone would wait in vain; no
  // fingerprint can tell them, and none need: the choice follows from the bytes and the agreed
  // configuration.
  args.fingerprint = fingerprint(record);
  args.count = reduces(call.collective) ? call.count : record.bytes;
  if (reduces(call.collective) && is_complex(call.dtype))
    args.count *= 2;  // real and imaginary parts
  args.factor = call.reduction.factor;
  args.collective = call.collective;
  args.algorithm = plan.algorithm;
  args.op = call.reduction.op;
  args.root = static_cast<uint32_t>(call.root);
  args.layout = layout;
  return args;
}

}  // namespace rocenante::device
