#include "transport/group.h"

#include "core/error.h"
#include "transport/route.h"

namespace rocenante {

namespace {

std::string name(const Hello& h) {
  return "rank " + std::to_string(h.rank) + " (" + h.hostname + ")";
}

std::string rdma_of(const Hello& h) {
  return "\n  " + name(h) + ": " + (h.ports.empty() ? h.verbs_problem : "has " + text_of(h.ports));
}

}  // namespace

bool reached_by_push(const Config& config, const Hello& a, const Hello& b) {
  const bool one_host = a.host == b.host;
  if (one_host && config.transport != "verbs") return false;
  if (config.transport == "shm")
    throw Error(ErrorKind::system,
                name(a) + " and " + name(b) +
                    " do not share a host (or run in containers with process ids of their own), "
                    "and ROCENANTE_TRANSPORT=shm allows nothing but shared memory");
  const bool in_order = a.rank < b.rank;
  if (!routes((in_order ? a : b).ports, (in_order ? b : a).ports).empty()) return true;
  throw Error(ErrorKind::system,
              name(a) + " and " + name(b) + " cannot reach each other: " +
                  (one_host ? "ROCENANTE_TRANSPORT=verbs insists on RDMA"
                            : "they do not share a host (or run in containers with process ids of "
                              "their own)") +
                  ", and no two RDMA ports of theirs fit:" + rdma_of(a) + rdma_of(b));
}

}  // namespace rocenante
