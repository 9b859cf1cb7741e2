// The file that `rocenante tune` writes: settings measured on this machine, one NAME=VALUE a line.
#pragma once

#include <string>
#include <vector>

namespace rocenante {

struct TunedSetting {
  std::string name, value;
  std::string where;  // "FILE, line 3": for messages
};

struct TuneFile {
  std::string path;  // empty: there is none
  std::vector<TunedSetting> settings;
};

// Reads the file that ROCENANTE_TUNE_FILE names (empty: no file), else rocenante/tune.conf in
// XDG_CONFIG_HOME or ~/.config, if it exists. Throws Error(ErrorKind::config) naming file and line
// if a line is neither empty, nor a comment after #, nor NAME=VALUE; and if a file that was named
// cannot be read.
TuneFile read_tune_file();

}  // namespace rocenante
