// The RDMA devices that this process may use, and their ports that can carry RoCE v2.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "transport/address.h"
#include "transport/verbs/library.h"

namespace rocenante::verbs {

class Devices {
 public:
  // Opens what `config` allows. Without a usable port it still returns, with the reason in
  // `problem`. Throws Error(ErrorKind::config) for a malformed list of ports.
  static std::shared_ptr<Devices> open(const Config& config, std::string& problem);

  const std::vector<Port>& ports() const { return ports_; }
  ibv_context* context(size_t port) const { return at_[port].context; }
  // The index, in the port's table, of one of its gids.
  uint8_t gid_index(size_t port, size_t gid) const { return at_[port].gid_indices[gid]; }
  uint32_t max_message(size_t port) const { return at_[port].max_message; }
  // "" or "; its own port rxe0:1 is down": what the port says of itself now.
  std::string port_trouble(size_t port) const;

 private:
  struct Place {
    ibv_context* context;
    std::vector<uint8_t> gid_indices;
    uint32_t max_message;
  };
  void add_port(ibv_context* context, const std::string& device, uint8_t number,
                const ibv_port_attr& attributes);

  std::vector<Context> contexts_;
  std::vector<Port> ports_;
  std::vector<Place> at_;  // by port
};

}  // namespace rocenante::verbs
