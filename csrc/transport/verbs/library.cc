#include "transport/verbs/library.h"

#include <dlfcn.h>

#include <string>

#include "core/error.h"

namespace rocenante::verbs {

namespace {

Library open() {
  void* handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw Error(ErrorKind::system,
                std::string("there is no libibverbs here (") + dlerror() +
                    "): install rdma-core, e.g. apt-get install libibverbs1 ibverbs-providers");
  Library library;
  // By version: the library still exports its first ABI under the same names.
#define ROCENANTE_VERBS_RESOLVE(name)                                                            \
  library.name = reinterpret_cast<decltype(library.name)>(dlvsym(handle, #name, "IBVERBS_1.1")); \
  if (!library.name) throw Error(ErrorKind::system, "libibverbs.so.1 here has no " #name);
  ROCENANTE_VERBS_FUNCTIONS(ROCENANTE_VERBS_RESOLVE)
#undef ROCENANTE_VERBS_RESOLVE
  // Before anything is registered: a child that forks (a DataLoader worker) must not move the
  // parent's pages from under the NIC. Newer kernels see to it themselves and refuse, harmlessly.
  library.ibv_fork_init();
  return library;
}

}  // namespace

const Library& Library::get() {
  static const Library library = open();  // tried again after a failure
  return library;
}

}  // namespace rocenante::verbs
