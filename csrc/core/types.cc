#include "core/types.h"

#include <string>

#include "core/error.h"

namespace rocenante {

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::boolean:
    case DType::uint8:
    case DType::int8:
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
      return 1;
    case DType::uint16:
    case DType::int16:
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::uint32:
    case DType::int32:
    case DType::float32:
      return 4;
    case DType::uint64:
    case DType::int64:
    case DType::float64:
    case DType::complex64:
      return 8;
    case DType::complex128:
      return 16;
  }
  throw Error(ErrorKind::usage, "unknown element type " + std::to_string(static_cast<int>(dtype)));
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return "bool";
    case DType::uint8:
      return "uint8";
    case DType::int8:
      return "int8";
    case DType::uint16:
      return "uint16";
    case DType::int16:
      return "int16";
    case DType::uint32:
      return "uint32";
    case DType::int32:
      return "int32";
    case DType::uint64:
      return "uint64";
    case DType::int64:
      return "int64";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::complex64:
      return "complex64";
    case DType::complex128:
      return "complex128";
    case DType::float8_e4m3fn:
      return "float8_e4m3fn";
    case DType::float8_e5m2:
      return "float8_e5m2";
  }
  return "unknown type";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::product:
      return "product";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::band:
      return "band";
    case ReduceOp::bor:
      return "bor";
    case ReduceOp::bxor:
      return "bxor";
    case ReduceOp::premul_sum:
      return "premul_sum";
  }
  return "unknown operation";
}

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::all_to_all_v:
      return "all_to_all_v";
    case Collective::broadcast:
      return "broadcast";
    case Collective::reduce:
      return "reduce";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::barrier:
      return "barrier";
  }
  return "unknown collective";
}

std::string_view name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::direct:
      return "direct";
    case Algorithm::one_shot:
      return "one_shot";
    case Algorithm::two_shot:
      return "two_shot";
  }
  return "unknown algorithm";
}

void check_reduction(DType dtype, ReduceOp op) {
  size_of(dtype);  // throws for values outside the enumeration, which a binding may have cast
  const auto refuse = [&](const char* reason) {
    throw Error(ErrorKind::usage, std::string(name_of(op)) + " is not defined for " +
                                      std::string(name_of(dtype)) + ": " + reason);
  };
  const bool fractional = is_floating(dtype) || is_complex(dtype);
  switch (op) {
    case ReduceOp::sum:
      return;
    case ReduceOp::avg:
      if (!fractional) refuse("the mean of integers need not be one; sum them and divide");
      return;
    case ReduceOp::premul_sum:
      if (!fractional) refuse("the factor is a real number; convert the tensor to a float type");
      return;
    case ReduceOp::product:
      if (is_complex(dtype)) refuse("complex types support sum, avg and premul_sum");
      return;
    case ReduceOp::min:
    case ReduceOp::max:
      if (is_complex(dtype)) refuse("complex numbers have no order");
      return;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      if (fractional) refuse("bitwise operations take integers and bool");
      return;
  }
  throw Error(ErrorKind::usage, "unknown reduction " + std::to_string(static_cast<int>(op)));
}

}  // namespace rocenante
