// The core's errors as torch's: a wrong call is a ValueError, all else
// torch.distributed.DistBackendError.
#pragma once

#include <exception>
#include <utility>

#include "core/error.h"

namespace rocenante {

[[noreturn]] void throw_torch_error(const Error& error);
// The same for a stored exception; others pass unchanged.
std::exception_ptr torch_error(std::exception_ptr error);

template <class F>
decltype(auto) with_torch_errors(F&& body) {
  try {
    return std::forward<F>(body)();
  } catch (const Error& error) {
    throw_torch_error(error);
  }
}

}  // namespace rocenante
