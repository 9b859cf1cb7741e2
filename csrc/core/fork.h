// A communicator belongs to the process that made it: a forked child (a DataLoader worker, say)
// inherits the mapped windows but none of the threads, and must neither use nor tear down its
// parent's group.
#pragma once

#include <cstdint>

namespace rocenante {

// Grows by one in a child each time the process forks.
uint64_t fork_generation();

}  // namespace rocenante
