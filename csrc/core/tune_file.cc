#include "core/tune_file.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace rocenante {

namespace {

std::string default_path() {
  // As the XDG specification has it: a relative XDG_CONFIG_HOME is to be ignored.
  if (const char* xdg = getenv("XDG_CONFIG_HOME"); xdg && *xdg == '/')
    return std::string(xdg) + "/rocenante/tune.conf";
  const char* home = getenv("HOME");
  return home && *home ? std::string(home) + "/.config/rocenante/tune.conf" : "";
}

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorKind::config, text + ": remove it, and `rocenante tune` writes another");
}

}  // namespace

TuneFile read_tune_file() {
  const char* named = getenv("ROCENANTE_TUNE_FILE");
  TuneFile file{named ? named : default_path(), {}};
  std::error_code none;
  if (file.path.empty() || (!named && !std::filesystem::exists(file.path, none))) return {};
  errno = 0;
  std::ifstream stream(file.path);
  const std::string what = "the file of settings " + file.path;
  if (!stream || std::filesystem::is_directory(file.path, none))
    refuse(with_errno(what + (named ? ", which ROCENANTE_TUNE_FILE names," : "") + " can't be read",
                      errno ? errno : EISDIR));
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == line.npos || line[begin] == '#') continue;
    const std::string text = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
    const std::string where = file.path + ", line " + std::to_string(number);
    const size_t equals = text.find('=');
    if (equals == text.npos || equals == 0)
      refuse(where + ": \"" + text.substr(0, 80) + "\" is not NAME=VALUE");
    file.settings.push_back({text.substr(0, equals), text.substr(equals + 1), where});
  }
  return file;
}

}  // namespace rocenante
