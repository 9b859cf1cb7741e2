// Which port and which of its addresses a pair of ranks uses: a pure function of what both have, so
// that both ends choose alike. Never a fixed GID index: the tables differ between hosts and drift.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/address.h"

namespace rocenante {

// Indices into Port lists and their gids.
struct Route {
  size_t port[2] = {};  // of the lower rank, of the higher rank
  size_t gid[2] = {};
  bool operator==(const Route&) const = default;
};

// The best ways between a lower and a higher rank, using each port once: over a subnet that both
// have if there is one (IPv4 before IPv6), else routed, else link-local, which reaches only
// neighbours. Empty if no two addresses fit. All are of the same kind.
std::vector<Route> routes(const std::vector<Port>& lower, const std::vector<Port>& higher);

// "10.77.0.1" or "fe80::1".
std::string text_of(const Gid& gid);
// "rxe0:1 (10.77.0.1, fe80::1), rxe1:1 (...)"
std::string text_of(const std::vector<Port>& ports);

}  // namespace rocenante
