// libibverbs, opened when first needed: the package imports and runs on machines without rdma-core.
// The data path (ibv_post_send, ibv_poll_cq) is inline in <infiniband/verbs.h> and needs no symbol.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace rocenante::verbs {

#define ROCENANTE_VERBS_FUNCTIONS(X) \
  X(ibv_fork_init)                   \
  X(ibv_get_device_list)             \
  X(ibv_free_device_list)            \
  X(ibv_get_device_name)             \
  X(ibv_open_device)                 \
  X(ibv_close_device)                \
  X(ibv_query_device)                \
  X(ibv_query_port)                  \
  X(ibv_alloc_pd)                    \
  X(ibv_dealloc_pd)                  \
  X(ibv_reg_mr)                      \
  X(ibv_dereg_mr)                    \
  X(ibv_create_cq)                   \
  X(ibv_destroy_cq)                  \
  X(ibv_create_qp)                   \
  X(ibv_modify_qp)                   \
  X(ibv_destroy_qp)                  \
  X(ibv_wc_status_str)

struct Library {
#define ROCENANTE_VERBS_POINTER(name) decltype(&::name) name = nullptr;
  ROCENANTE_VERBS_FUNCTIONS(ROCENANTE_VERBS_POINTER)
#undef ROCENANTE_VERBS_POINTER
  // Throws Error(ErrorKind::system), saying what is missing.
  static const Library& get();
};

template <auto Library::* kDestroy>
struct Destroyer {
  template <class T>
  void operator()(T* object) const {
    (Library::get().*kDestroy)(object);
  }
};
using Context = std::unique_ptr<ibv_context, Destroyer<&Library::ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, Destroyer<&Library::ibv_dealloc_pd>>;
using Registration = std::unique_ptr<ibv_mr, Destroyer<&Library::ibv_dereg_mr>>;
using Completions = std::unique_ptr<ibv_cq, Destroyer<&Library::ibv_destroy_cq>>;
using QueuePairHandle = std::unique_ptr<ibv_qp, Destroyer<&Library::ibv_destroy_qp>>;

}  // namespace rocenante::verbs
