#include "transport/verbs/device.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/log.h"
#include "transport/hca_list.h"

namespace rocenante::verbs {

namespace {

constexpr size_t kMaxGids = 8, kMaxPorts = 16;  // more are of no use, and the blob is small

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// The length of the network's part of an address, from the interface that has it.
uint8_t prefix_of(const std::array<uint8_t, 16>& gid) {
  constexpr uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const bool ipv4 = std::memcmp(gid.data(), mapped, sizeof mapped) == 0;
  const auto ones = [](const uint8_t* mask, size_t bytes) {
    int bits = 0;
    for (size_t i = 0; i < bytes; ++i) bits += std::popcount(mask[i]);
    return bits;
  };
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return 128;
  int prefix = 128;
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || !i->ifa_netmask) continue;
    if (ipv4 && i->ifa_addr->sa_family == AF_INET) {
      const auto& address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr;
      const auto& mask = reinterpret_cast<const sockaddr_in*>(i->ifa_netmask)->sin_addr;
      if (std::memcmp(&address, gid.data() + 12, 4) == 0)
        prefix = 96 + ones(reinterpret_cast<const uint8_t*>(&mask), 4);
    } else if (!ipv4 && i->ifa_addr->sa_family == AF_INET6) {
      const auto& address = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
      const auto& mask = reinterpret_cast<const sockaddr_in6*>(i->ifa_netmask)->sin6_addr;
      if (std::memcmp(&address, gid.data(), 16) == 0)
        prefix = ones(reinterpret_cast<const uint8_t*>(&mask), 16);
    }
  }
  freeifaddrs(list);
  return static_cast<uint8_t>(prefix);
}

const char* name_of(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
    case IBV_PORT_ARMED:
      return "coming up";
    default:
      return "not active";
  }
}

// libibverbs tries several ways to open a device; its errno is the last one's, and misleads.
std::string why_not_opened(const ibv_device& device, int error) {
  const std::string file = std::string("/dev/infiniband/") + device.dev_name;
  if (access(file.c_str(), R_OK | W_OK) != 0) error = errno;
  return with_errno("cannot be opened: may this user read and write " + file + "?", error);
}

bool query(ibv_context* context, uint8_t number, ibv_port_attr& attributes) {
  attributes = {};
  // Not called by its name, for which <infiniband/verbs.h> has a macro. The symbol is declared for
  // the attributes' first, shorter form, which begins alike.
  const auto ibv_query = Library::get().ibv_query_port;
  return ibv_query(context, number, reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) == 0;
}

}  // namespace

void Devices::add_port(ibv_context* context, const std::string& device, uint8_t number,
                       const ibv_port_attr& attributes) {
  Port port{device, number, static_cast<uint8_t>(attributes.active_mtu), {}};
  Place place{context, {}, attributes.max_msg_sz};
  const std::string folder =
      "/sys/class/infiniband/" + device + "/ports/" + std::to_string(number) + "/";
  for (int i = 0; i < std::min(attributes.gid_tbl_len, 256) && port.gids.size() < kMaxGids; ++i) {
    const std::string index = std::to_string(i);
    if (first_line(folder + "gid_attrs/types/" + index) != "RoCE v2") continue;
    Gid gid;
    const std::string text = first_line(folder + "gids/" + index);
    if (inet_pton(AF_INET6, text.c_str(), gid.bytes.data()) != 1) continue;
    if (gid.bytes == Gid{}.bytes) continue;
    gid.prefix = prefix_of(gid.bytes);
    port.gids.push_back(gid);
    place.gid_indices.push_back(static_cast<uint8_t>(i));
  }
  if (port.gids.empty()) return;
  ports_.push_back(std::move(port));
  at_.push_back(std::move(place));
}

std::shared_ptr<Devices> Devices::open(const Config& config, std::string& problem) {
  auto devices = std::make_shared<Devices>();
  const HcaList wanted("ROCENANTE_IB_HCA (or NCCL_IB_HCA)", config.ib_hca);
  const Library* library = nullptr;
  try {
    library = &Library::get();
  } catch (const Error& e) {
    problem = e.what();
    return devices;
  }
  int count = 0;
  ibv_device** const list = library->ibv_get_device_list(&count);
  const std::unique_ptr<ibv_device*, decltype(library->ibv_free_device_list)> owner(
      list, library->ibv_free_device_list);
  if (!list || count == 0) {
    problem =
        "it has no RDMA device (ibv_devices lists none; in a container: is "
        "/dev/infiniband there, docker run --device=/dev/infiniband?)";
    return devices;
  }
  std::vector<std::pair<std::string, int>> present;
  std::string seen;
  for (int i = 0; i < count; ++i) {
    const std::string name = library->ibv_get_device_name(list[i]);
    Context context(library->ibv_open_device(list[i]));
    if (!context) {
      seen += (seen.empty() ? "" : ", ") + name + " (" + why_not_opened(*list[i], errno) + ")";
      continue;
    }
    ibv_device_attr attributes{};
    if (library->ibv_query_device(context.get(), &attributes) != 0) continue;
    for (uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
      ibv_port_attr port;
      if (!query(context.get(), number, port)) continue;
      present.emplace_back(name, number);
      const std::string text = name + ":" + std::to_string(number);
      std::string why;
      if (!wanted.allows(name, number))
        why = "not in ROCENANTE_IB_HCA";
      else if (port.link_layer != IBV_LINK_LAYER_ETHERNET)
        why = "not RoCE";
      else if (port.state != IBV_PORT_ACTIVE)
        why = name_of(port.state);
      const size_t before = devices->ports_.size();
      if (why.empty() && before < kMaxPorts) {
        devices->add_port(context.get(), name, number, port);
        if (devices->ports_.size() == before) why = "no RoCE v2 address";
      }
      if (!why.empty()) {
        seen += (seen.empty() ? "" : ", ") + text + " (" + why + ")";
        if (!config.ib_hca.empty() && wanted.allows(name, number))
          log(LogLevel::warn, "ROCENANTE_IB_HCA names " + text + ", which is skipped: " + why);
      }
    }
    devices->contexts_.push_back(std::move(context));
  }
  for (const std::string& entry : wanted.unmatched(present))
    log(LogLevel::warn, "ROCENANTE_IB_HCA names " + entry + ", and there is no such port");
  if (devices->ports_.empty()) problem = "no RDMA port is usable: " + seen;
  return devices;
}

std::string Devices::port_trouble(size_t port) const {
  ibv_port_attr attributes;
  const Port& p = ports_[port];
  if (query(at_[port].context, p.number, attributes) && attributes.state == IBV_PORT_ACTIVE)
    return "";
  return "; its own port " + p.device + ":" + std::to_string(p.number) + " is " +
         name_of(attributes.state);
}

}  // namespace rocenante::verbs
