// Which kernels there are: one list for the launcher, for the emulator and for whoever asks whether
// one exists.
#pragma once

#include "core/types.h"
#include "device/gather_like.h"
#include "device/low_latency.h"
#include "device/one_shot.h"
#include "device/plan.h"
#include "device/two_shot.h"

namespace rocenante::device {

// kResident: for how many blocks per multiprocessor registers are rationed. One-shot kernels fit
// twice without spilling; the others would spill.
template <class T, class Op>
struct OneShotAllReduce {
  static constexpr int kResident = 2;
  static ROCENANTE_DEVICE void run(const KernelArgs& args) { one_shot_all_reduce<T, Op>(args); }
};
template <class T, class Op>
struct LowLatencyAllReduce {
  static constexpr int kResident = 1;
  static ROCENANTE_DEVICE void run(const KernelArgs& args) { low_latency_all_reduce<T, Op>(args); }
};
template <class T, class Op>
struct TwoShotAllReduce {
  static constexpr int kResident = 1;
  static ROCENANTE_DEVICE void run(const KernelArgs& args) { two_shot_all_reduce<T, Op>(args); }
};
template <class T, class Op>
struct OneShotReduceScatter {
  static constexpr int kResident = 2;
  static ROCENANTE_DEVICE void run(const KernelArgs& args) { one_shot_reduce_scatter<T, Op>(args); }
};
struct OneShotAllGather {
  static constexpr int kResident = 1;
  static ROCENANTE_DEVICE void run(const KernelArgs& args) { one_shot_all_gather(args); }
};
struct OneShotAllToAll {
  static constexpr int kResident = 1;
  static ROCENANTE_DEVICE void run(const KernelArgs& args) { one_shot_all_to_all(args); }
};
struct OneShotBroadcast {
  static constexpr int kResident = 1;
  static ROCENANTE_DEVICE void run(const KernelArgs& args) { one_shot_broadcast(args); }
};

// Sums in the types of decoding and training have kernels of their own; LL is for them alone.
inline bool is_hot(DType dtype, ReduceOp op) {
  return op == ReduceOp::sum &&
         (dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32);
}

// One kernel for all that a type's rarer operations need; see reduce_op.h.
template <class T>
struct AnyReduction {
  static constexpr int kResident = 1;
  static ROCENANTE_DEVICE void run(const KernelArgs& args) {
    if (args.collective == Collective::reduce_scatter) {
      one_shot_reduce_scatter<T, AnyOp>(args);
    } else if (args.algorithm == Algorithm::two_shot) {
      two_shot_all_reduce<T, AnyOp>(args);
    } else {
      one_shot_all_reduce<T, AnyOp>(args);
    }
  }
};

namespace detail {

template <class T, class Visit>
bool visit_hot(const KernelId& id, const Visit& visit) {
  if (id.collective == Collective::reduce_scatter) {
    visit(OneShotReduceScatter<T, SumOp>{});
  } else if (id.algorithm == Algorithm::two_shot) {
    visit(TwoShotAllReduce<T, SumOp>{});
  } else if (id.low_latency) {
    visit(LowLatencyAllReduce<T, SumOp>{});
  } else {
    visit(OneShotAllReduce<T, SumOp>{});
  }
  return true;
}

template <class Visit>
bool visit_any(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::boolean:
      visit(AnyReduction<Bool>{});
      return true;
    case DType::uint8:
      visit(AnyReduction<uint8_t>{});
      return true;
    case DType::int8:
      visit(AnyReduction<int8_t>{});
      return true;
    case DType::uint16:
      visit(AnyReduction<uint16_t>{});
      return true;
    case DType::int16:
      visit(AnyReduction<int16_t>{});
      return true;
    case DType::uint32:
      visit(AnyReduction<uint32_t>{});
      return true;
    case DType::int32:
      visit(AnyReduction<int32_t>{});
      return true;
    case DType::uint64:
      visit(AnyReduction<uint64_t>{});
      return true;
    case DType::int64:
      visit(AnyReduction<int64_t>{});
      return true;
    case DType::float16:
      visit(AnyReduction<Half>{});
      return true;
    case DType::bfloat16:
      visit(AnyReduction<Bfloat>{});
      return true;
    case DType::float32:
      visit(AnyReduction<float>{});
      return true;
    case DType::float64:
      visit(AnyReduction<double>{});
      return true;
    case DType::float8_e4m3fn:
      visit(AnyReduction<E4m3>{});
      return true;
    case DType::float8_e5m2:
      visit(AnyReduction<E5m2>{});
      return true;
    case DType::complex64:
    case DType::complex128:
      return false;  // a plan makes them pairs of floats
  }
  return false;
}

}  // namespace detail

// Calls visit(kernel) with the kernel's type, whose run() is its body; false if there is no such
// kernel. The operation must be defined for the type (check_reduction).
template <class Visit>
bool visit_kernel(const KernelId& id, const Visit& visit) {
  const bool all_reduce = id.collective == Collective::all_reduce;
  const bool one_shot = id.algorithm == Algorithm::one_shot;
  if (!one_shot && !(all_reduce && id.algorithm == Algorithm::two_shot)) return false;
  if (id.low_latency && !(all_reduce && one_shot && is_hot(id.dtype, id.op))) return false;
  switch (id.collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
      if (!is_hot(id.dtype, id.op)) return detail::visit_any(id.dtype, visit);
      if (id.dtype == DType::float16) return detail::visit_hot<Half>(id, visit);
      if (id.dtype == DType::bfloat16) return detail::visit_hot<Bfloat>(id, visit);
      return detail::visit_hot<float>(id, visit);
    case Collective::all_gather:
      visit(OneShotAllGather{});
      return true;
    case Collective::all_to_all:
      visit(OneShotAllToAll{});
      return true;
    case Collective::broadcast:
      visit(OneShotBroadcast{});
      return true;
    default:
      return false;
  }
}

}  // namespace rocenante::device
