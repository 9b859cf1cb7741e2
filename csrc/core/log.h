// Messages for the person who runs the program, on stderr, at the level that ROCENANTE_LOG sets.
#pragma once

#include <string>

namespace rocenante {

enum class LogLevel { error, warn, info };

void set_log_level(LogLevel level);
void log(LogLevel level, const std::string& text);

}  // namespace rocenante
