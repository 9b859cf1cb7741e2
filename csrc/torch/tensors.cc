#include "torch/tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"

namespace rocenante {

namespace {

std::optional<DType> core_dtype(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return DType::boolean;
    case at::kByte:
      return DType::uint8;
    case at::kChar:
      return DType::int8;
    case at::kUInt16:
      return DType::uint16;
    case at::kShort:
      return DType::int16;
    case at::kUInt32:
      return DType::uint32;
    case at::kInt:
      return DType::int32;
    case at::kUInt64:
      return DType::uint64;
    case at::kLong:
      return DType::int64;
    case at::kHalf:
      return DType::float16;
    case at::kBFloat16:
      return DType::bfloat16;
    case at::kFloat:
      return DType::float32;
    case at::kDouble:
      return DType::float64;
    case at::kComplexFloat:
      return DType::complex64;
    case at::kComplexDouble:
      return DType::complex128;
    case at::kFloat8_e4m3fn:
      return DType::float8_e4m3fn;
    case at::kFloat8_e5m2:
      return DType::float8_e5m2;
    default:
      return std::nullopt;
  }
}

[[noreturn]] void refuse(const char* call, const char* what, const std::string& why) {
  throw Error(ErrorKind::usage, std::string(call) + ": the " + what + " " + why);
}

bool is_packed(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

bool may_overlap(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t item) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 8> axes;  // stride, size
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return false;
    if (sizes[i] > 1) axes.emplace_back(std::abs(strides[i]), sizes[i]);
  }
  std::sort(axes.begin(), axes.end());
  int64_t reach = item;  // what the axes so far span
  for (const auto& [stride, size] : axes) {
    if (stride < reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

DType reduction_dtype(const at::Tensor& tensor, const Reduction& reduction) {
  const auto dtype = core_dtype(tensor.scalar_type());
  if (!dtype)
    throw Error(ErrorKind::usage, std::string("cannot reduce tensors of dtype ") +
                                      c10::toString(tensor.scalar_type()) +
                                      ": convert them to one such as float32 first");
  check_reduction(*dtype, reduction.op);
  return *dtype;
}

DType transfer_dtype(const at::Tensor& tensor) {
  return core_dtype(tensor.scalar_type()).value_or(DType::uint8);
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {ReduceOp::sum};
    case c10d::ReduceOp::AVG:
      return {ReduceOp::avg};
    case c10d::ReduceOp::PRODUCT:
      return {ReduceOp::product};
    case c10d::ReduceOp::MIN:
      return {ReduceOp::min};
    case c10d::ReduceOp::MAX:
      return {ReduceOp::max};
    case c10d::ReduceOp::BAND:
      return {ReduceOp::band};
    case c10d::ReduceOp::BOR:
      return {ReduceOp::bor};
    case c10d::ReduceOp::BXOR:
      return {ReduceOp::bxor};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* premul = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      if (!premul)
        throw Error(ErrorKind::usage,
                    "ReduceOp.PREMUL_SUM needs its factor: make it by "
                    "torch.distributed._make_nccl_premul_sum(factor)");
      const bool in_tensor = premul->tensor_factor.defined();
      return {ReduceOp::premul_sum,
              in_tensor ? premul->tensor_factor.item().toDouble() : premul->double_factor};
    }
    default:
      throw Error(ErrorKind::usage, "this ReduceOp is not one that rocenante knows");
  }
}

void check_readable(const at::Tensor& tensor, const char* call, const char* what) {
  if (!tensor.defined()) refuse(call, what, "is undefined");
  if (tensor.layout() != at::kStrided)
    refuse(call, what, "is sparse: only strided tensors can be moved; call to_dense() on it first");
  if (!tensor.device().is_cpu())
    refuse(call, what,
           "is on " + tensor.device().str() +
               ", but this build of rocenante moves CPU tensors only: use the backend "
               "\"cpu:rocenante,cuda:nccl\"");
}

void check_writable(const at::Tensor& tensor, const char* call, const char* what) {
  check_readable(tensor, call, what);
  if (!tensor.is_contiguous() && may_overlap(tensor.sizes(), tensor.strides()))
    refuse(call, what,
           "has elements that share memory, as after expand(): several results would land in one "
           "place; call contiguous() on it first");
}

void check_same(const at::Tensor& tensor, const at::Tensor& reference, const char* call,
                const char* what) {
  if (tensor.scalar_type() != reference.scalar_type())
    refuse(call, what,
           std::string("is of dtype ") + c10::toString(tensor.scalar_type()) +
               ", but its counterpart of " + c10::toString(reference.scalar_type()) +
               ": they must be the same");
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* call) {
  if (tensors.size() != 1)
    throw Error(ErrorKind::usage, std::string(call) + ": expects one tensor per rank, but got " +
                                      std::to_string(tensors.size()));
  return tensors[0];
}

Packed::Packed(const at::Tensor& tensor, Use use)
    : tensor_(tensor), bytes_(tensor.nbytes()), copied_(!is_packed(tensor)) {
  if (copied_) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;  // leaves that require grad are fine
    packed_ = at::empty(tensor.sizes(), tensor.options());
    if (use != Use::write) packed_.copy_(tensor);
  } else {
    packed_ = tensor;
  }
  // The const accessor leaves copy-on-write memory shared; what is only read is never written
  // through.
  data_ = use == Use::read && !copied_ ? const_cast<void*>(packed_.const_data_ptr())
                                       : packed_.mutable_data_ptr();
}

void Packed::unpack() const {
  if (!copied_) return;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  tensor_.copy_(packed_);
}

void Packed::separate(const Packed& other, bool same_place_is_safe) {
  const char* mine = static_cast<const char*>(data_);
  const char* its = static_cast<const char*>(other.data_);
  if (mine == its && same_place_is_safe) return;
  if (mine >= its + other.bytes_ || its >= mine + bytes_) return;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  packed_ = packed_.clone();
  data_ = packed_.mutable_data_ptr();
}

PackedList pack(const std::vector<at::Tensor>& tensors, Packed::Use use) {
  PackedList list;
  list.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) list.emplace_back(tensor, use);
  return list;
}

void unpack(const PackedList& list) {
  for (const Packed& packed : list) packed.unpack();
}

Pointers pointers(const PackedList& list) {
  Pointers result;
  for (const Packed& packed : list) result.push_back(packed.data());
  return result;
}

ConstPointers const_pointers(const PackedList& list) {
  ConstPointers result;
  for (const Packed& packed : list) result.push_back(packed.data());
  return result;
}

Pointers slices(const Packed& packed, int parts) {
  Pointers result;
  for (int i = 0; i < parts; ++i)
    result.push_back(static_cast<char*>(packed.data()) + packed.bytes() / parts * i);
  return result;
}

ConstPointers const_slices(const Packed& packed, int parts) {
  ConstPointers result;
  for (void* part : slices(packed, parts)) result.push_back(part);
  return result;
}

}  // namespace rocenante
