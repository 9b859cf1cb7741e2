// Which algorithm an operation takes: a pure function of what all ranks know alike.
#pragma once

#include <cstddef>

#include "core/config.h"
#include "core/types.h"

namespace rocenante {

// One-shot takes one step but sends n-1 copies; two-shot takes two steps and sends 2(n-1)/n.
// `pushed`: the ranks are on several hosts.
Algorithm select_all_reduce(size_t bytes, int world_size, bool pushed, const Config& config);

}  // namespace rocenante
