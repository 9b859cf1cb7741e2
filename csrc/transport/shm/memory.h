// A window's memory: pages that only the same user's processes can map, and that are gone with the
// last process that has them mapped, however it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace rocenante::shm {

class Memory {
 public:
  Memory() = default;
  // Creates zeroed memory. Throws Error(ErrorKind::system) saying what was refused and what to
  // raise.
  static std::shared_ptr<Memory> create(size_t bytes);
  // The memory behind descriptor `fd` of process `pid`; if that is this process (ranks that are
  // threads), the same mapping: a data race between ranks is then visible to ThreadSanitizer.
  // Throws Error(ErrorKind::system).
  static std::shared_ptr<Memory> attach(int pid, int fd, size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* data() const { return data_; }
  size_t size() const { return bytes_; }
  int fd() const { return fd_; }
  // Peers that have mapped the memory don't need the descriptor any more.
  void close_fd();

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace rocenante::shm
