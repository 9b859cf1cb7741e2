#include "transport/shm/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/error.h"

namespace rocenante::shm {

namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorKind::system, with_errno(text, errno));
}

std::string megabytes(size_t bytes) { return std::to_string((bytes >> 20) + 1) + " MiB"; }

// An anonymous file. memfd_create needs no file system; where it is refused (an old seccomp
// profile), an unnamed file in /dev/shm does the same, within that file system's size.
int create_file(size_t bytes) {
  int fd = memfd_create("rocenante", MFD_CLOEXEC);
  if (fd >= 0) {
    if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) return fd;
    const int error = errno;
    close(fd);
    errno = error;
    refuse("cannot make a window of " + megabytes(bytes) +
           " (is the file size limited? see ulimit -f)");
  }
  const std::string memfd_error = with_errno("memfd_create", errno);
  fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) refuse("no shared memory: " + memfd_error + "; a file in /dev/shm");
  // Reserve the pages: a full /dev/shm must be an error here, not a SIGBUS at the first use.
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
    close(fd);
    errno = error;
    refuse("no shared memory: " + memfd_error + "; " + megabytes(bytes) +
           " in /dev/shm (make it larger, e.g. docker run --shm-size=1g)");
  }
  return fd;
}

char* map(int fd, size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

// Windows that this process has made and whose descriptor is still open, by descriptor.
std::mutex local_mutex;
std::map<int, std::weak_ptr<Memory>>& local_windows() {
  static auto* windows = new std::map<int, std::weak_ptr<Memory>>;  // outlives static destructors
  return *windows;
}

}  // namespace

std::shared_ptr<Memory> Memory::create(size_t bytes) {
  auto m = std::make_shared<Memory>();
  m->fd_ = create_file(bytes);
  m->data_ = map(m->fd_, bytes);
  if (!m->data_) refuse("cannot map a window of " + megabytes(bytes) + " (see ulimit -v)");
  m->bytes_ = bytes;
  std::lock_guard lock(local_mutex);
  local_windows()[m->fd_] = m;
  return m;
}

std::shared_ptr<Memory> Memory::attach(int pid, int fd, size_t bytes) {
  if (pid == getpid()) {
    std::lock_guard lock(local_mutex);
    const auto found = local_windows().find(fd);
    auto memory = found == local_windows().end() ? nullptr : found->second.lock();
    if (!memory || memory->size() != bytes)
      throw Error(ErrorKind::system, "a window of this process is gone");
    return memory;
  }
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  auto m = std::make_shared<Memory>();
  m->fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (m->fd_ < 0)
    refuse("cannot open a peer's window at " + path +
           " (do all ranks run as the same user, with /proc mounted?)");
  struct stat s{};
  if (fstat(m->fd_, &s) != 0) refuse("cannot look at " + path);
  if (static_cast<size_t>(s.st_size) != bytes)
    throw Error(ErrorKind::system, "a peer's window at " + path + " has " +
                                       std::to_string(s.st_size) + " bytes instead of " +
                                       std::to_string(bytes));
  m->data_ = map(m->fd_, bytes);
  if (!m->data_) refuse("cannot map a peer's window of " + megabytes(bytes) + " (see ulimit -v)");
  m->bytes_ = bytes;
  m->close_fd();
  return m;
}

Memory::~Memory() {
  if (data_) munmap(data_, bytes_);
  close_fd();
}

void Memory::close_fd() {
  if (fd_ < 0) return;
  {
    std::lock_guard lock(local_mutex);
    local_windows().erase(fd_);
  }
  close(std::exchange(fd_, -1));
}

}  // namespace rocenante::shm
