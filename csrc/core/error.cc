#include "core/error.h"

#include <system_error>

namespace rocenante {

std::string with_errno(const std::string& text, int error_number) {
  return text + ": " + std::generic_category().message(error_number) + " (errno " +
         std::to_string(error_number) + ")";
}

}  // namespace rocenante
