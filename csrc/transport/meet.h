// How the ranks of a group find each other through the store.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/bootstrap.h"
#include "core/clock.h"
#include "core/config.h"
#include "transport/transport.h"

namespace rocenante {

// Meets all `size` ranks: tells them of this one, chooses for each pair shared memory or RDMA,
// exchanges where the windows are, and returns once every rank has attached to every other, at most
// after `timeout`. Throws Error: config if a row of `agreed` (variable, value) differs between
// ranks, system if two ranks cannot reach each other, timeout if some did not arrive, peer_lost if
// another rank failed on the way. `region_bytes`: see Transport::region(); a row of `agreed` must
// speak for it.
std::unique_ptr<Transport> meet(Bootstrap& bootstrap, int rank, int size, const Config& config,
                                std::vector<std::pair<std::string, std::string>> agreed,
                                Milliseconds timeout, size_t region_bytes = 0);

// Why this process cannot use RDMA; empty if it can.
std::string verbs_problem();

}  // namespace rocenante
