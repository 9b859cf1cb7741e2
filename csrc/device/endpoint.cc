#include "device/endpoint.h"

#include "core/fork.h"
#include "transport/meet.h"

namespace rocenante::device {

namespace {

// Nothing but the region is exchanged: the transport's own slots are as small as they may be.
Config with_small_slots(Config config) {
  config.slot_bytes = 16 << 10;
  return config;
}

std::string text_of(const Shape& shape) {
  return std::to_string(shape.channels) + " channels, slots of " +
         std::to_string(shape.slot_bytes) + " and " + std::to_string(shape.line_bytes) + " bytes";
}

}  // namespace

Endpoint::Endpoint(Bootstrap& bootstrap, int rank, int size, const Config& config,
                   Milliseconds timeout, const std::string& name, const Shape& shape)
    : fork_generation_(fork_generation()),
      layout_(static_cast<uint32_t>(size), shape.channels, shape.slot_bytes, shape.line_bytes),
      control_(shm::Memory::create(sizeof(Control))),
      transport_(meet(bootstrap, rank, size, with_small_slots(config),
                      {{"the GPU window", text_of(shape)}}, timeout, layout_.bytes)),
      proxy_(
          std::make_unique<Proxy>(*transport_, layout_, control(), rank, name, config.proxy_cpu)) {}

Endpoint::~Endpoint() {
  if (fork_generation() == fork_generation_) return;
  static_cast<void>(proxy_.release());
  static_cast<void>(transport_.release());
  new std::shared_ptr<shm::Memory>(control_);  // never destroyed: the proxy's
}

}  // namespace rocenante::device
