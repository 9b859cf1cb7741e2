#include "core/log.h"

#include <atomic>
#include <cstdio>

namespace rocenante {

namespace {
std::atomic<LogLevel> threshold{LogLevel::warn};
}  // namespace

void set_log_level(LogLevel level) { threshold.store(level, std::memory_order_relaxed); }

void log(LogLevel level, const std::string& text) {
  if (level > threshold.load(std::memory_order_relaxed)) return;
  const char* name = level == LogLevel::error  ? "error"
                     : level == LogLevel::warn ? "warning"
                                               : "info";
  std::fprintf(stderr, "rocenante: %s: %s\n", name, text.c_str());
}

}  // namespace rocenante
