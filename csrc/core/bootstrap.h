// What ranks find each other by: a key-value store shared by all ranks of a group, under a prefix
// of the group's own. csrc/torch wraps a c10d Store; tests use a map.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rocenante {

using Bytes = std::vector<uint8_t>;

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual void set(const std::string& key, const Bytes& value) = 0;
  // True once every rank may get() the key without waiting.
  virtual bool check(const std::string& key) = 0;
  virtual Bytes get(const std::string& key) = 0;
};

}  // namespace rocenante
