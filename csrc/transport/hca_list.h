// ROCENANTE_IB_HCA: which ports may carry RDMA, in the syntax that NCCL_IB_HCA made common:
// "mlx5_0:1,mlx5_1" names devices by the start of their names, with a port if given; a leading "="
// asks for exact names, a leading "^" for all but these ("^=": both).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rocenante {

class HcaList {
 public:
  // An empty text allows every port. Throws Error(ErrorKind::config) for a malformed one.
  HcaList(const std::string& variable, std::string_view text);

  bool allows(std::string_view device, int port) const;
  // Entries of a list of what is wanted that no (device, port) of `present` matches.
  std::vector<std::string> unmatched(const std::vector<std::pair<std::string, int>>& present) const;

 private:
  struct Entry {
    std::string name;
    int port;  // 0: any
    std::string text() const { return port ? name + ":" + std::to_string(port) : name; }
  };
  bool matches(const Entry& entry, std::string_view device, int port) const;

  bool exact_ = false, excludes_ = false;
  std::vector<Entry> entries_;
};

}  // namespace rocenante
