// One rank's end of a group of GPUs: the window that kernels exchange through, what they share with
// the host, and the proxy that serves them.
#pragma once

#include <memory>
#include <string>

#include "core/bootstrap.h"
#include "core/clock.h"
#include "core/config.h"
#include "device/args.h"
#include "device/proxy.h"
#include "transport/shm/memory.h"
#include "transport/transport.h"

namespace rocenante::device {

// Sizes of a window, alike on every rank: see WindowLayout.
struct Shape {
  uint32_t channels = kMaxChannels;
  uint64_t slot_bytes = 64 << 10;
  uint64_t line_bytes = 4 << 10;
};

class Endpoint {
 public:
  // Meets all ranks through `bootstrap`, which must be the group's own; at most `timeout`. Throws
  // Error: config, timeout, system, peer_lost.
  Endpoint(Bootstrap& bootstrap, int rank, int size, const Config& config, Milliseconds timeout,
           const std::string& name, const Shape& shape);
  ~Endpoint();  // leaves the group; in a forked child, which has no proxy, it does nothing

  const WindowLayout& layout() const { return layout_; }
  char* window() { return transport_->region(); }
  Control& control() { return *reinterpret_cast<Control*>(control_->data()); }
  Proxy& proxy() { return *proxy_; }

 private:
  const uint64_t fork_generation_;
  const WindowLayout layout_;
  const std::shared_ptr<shm::Memory> control_;  // in pages of its own: a GPU maps whole pages
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Proxy> proxy_;
};

}  // namespace rocenante::device
