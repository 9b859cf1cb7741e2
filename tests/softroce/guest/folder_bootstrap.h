// Ranks that are processes meet through files in a folder that all of them share.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/bootstrap.h"

namespace rocenante::test {

class FolderBootstrap final : public Bootstrap {
 public:
  explicit FolderBootstrap(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void set(const std::string& key, const Bytes& value) override {
    const auto fresh = folder_ / ("new." + name(key) + "." + std::to_string(getpid()));
    std::ofstream(fresh, std::ios::binary)
        .write(reinterpret_cast<const char*>(value.data()), static_cast<long>(value.size()));
    std::filesystem::rename(fresh, folder_ / name(key));
  }
  bool check(const std::string& key) override {
    return std::filesystem::exists(folder_ / name(key));
  }
  Bytes get(const std::string& key) override {
    std::ifstream file(folder_ / name(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  static std::string name(std::string key) {
    std::replace(key.begin(), key.end(), '/', '.');
    return key;
  }
  std::filesystem::path folder_;
};

}  // namespace rocenante::test
