#include "transport/verbs/memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "core/error.h"

namespace rocenante::verbs {

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::system, with_errno(what, errno));
}

std::string memlock_advice(size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return " (a window of " + std::to_string((bytes + 1023) >> 10) +
         " KiB must be locked in memory for each group, and this process may lock " +
         std::to_string(limit.rlim_cur >> 10) +
         " KiB: ulimit -l unlimited, docker run --ulimit memlock=-1, LimitMEMLOCK=infinity in a "
         "systemd unit, or memlock in /etc/security/limits.conf; a smaller ROCENANTE_SLOT_BYTES "
         "needs less)";
}

}  // namespace

Memory::Memory(ibv_context* context, const std::string& device, char* window, size_t bytes,
               int completions)
    : context_(context) {
  const Library& library = Library::get();
  domain_.reset(library.ibv_alloc_pd(context));
  if (!domain_) refuse("cannot make a protection domain on " + device);
  // Without relaxed ordering, for the data as for the signals: a later write must never overtake
  // an earlier one on its way to memory (I3).
  // (In parentheses, as <infiniband/verbs.h> has a macro of this name.)
  registration_.reset((library.ibv_reg_mr)(
      domain_.get(), window, bytes,
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
  if (!registration_) refuse("cannot register memory with " + device + memlock_advice(bytes));
  ibv_device_attr attributes{};
  library.ibv_query_device(context, &attributes);
  completions_.reset(library.ibv_create_cq(context, std::min(completions, attributes.max_cqe),
                                           nullptr, nullptr, 0));
  if (!completions_) refuse("cannot make a completion queue on " + device);
}

}  // namespace rocenante::verbs
