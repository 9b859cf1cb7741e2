// What one device needs to work on a window: a protection domain, the window's registration in it,
// and a queue for completions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/verbs/library.h"

namespace rocenante::verbs {

class Memory {
 public:
  // Throws Error(ErrorKind::system); if too little memory may be locked, with what to raise.
  Memory(ibv_context* context, const std::string& device, char* window, size_t bytes,
         int completions);

  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_.get(); }
  ibv_cq* completions() const { return completions_.get(); }
  uint32_t local_key() const { return registration_->lkey; }
  uint32_t remote_key() const { return registration_->rkey; }

 private:
  ibv_context* context_;
  Domain domain_;
  Registration registration_;
  Completions completions_;
};

}  // namespace rocenante::verbs
