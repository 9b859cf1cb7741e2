#include "transport/shm/address.h"

#include <unistd.h>

#include <cstring>
#include <fstream>

#include "core/error.h"

namespace rocenante::shm {

namespace {

constexpr uint32_t kMagic = 0x61636f72;  // "roca"
// Grows with every change of the blob, the window's layout or the protocol of the exchange.
constexpr uint32_t kProtocolVersion = 1;
constexpr uint32_t kMaxText = 4096, kMaxRows = 64;

uint32_t checksum(const uint8_t* data, size_t bytes) {  // FNV-1a, 32 bits
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ data[i]) * 16777619u;
  return hash;
}

class Writer {
 public:
  template <class T>
  void number(T value) {
    const auto* p = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof value);
  }
  void text(const std::string& value) {
    number(static_cast<uint32_t>(value.size()));
    bytes_.insert(bytes_.end(), value.begin(), value.end());
  }
  Bytes finish() {
    number(checksum(bytes_.data(), bytes_.size()));
    return std::move(bytes_);
  }

 private:
  Bytes bytes_;
};

class Reader {
 public:
  Reader(const Bytes& bytes, size_t end) : bytes_(bytes), end_(end) {}
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text() {
    const auto length = number<uint32_t>();
    if (length > kMaxText) malformed("a text is too long");
    return {reinterpret_cast<const char*>(take(length)), length};
  }
  bool at_end() const { return at_ == end_; }
  [[noreturn]] static void malformed(const std::string& why) {
    throw Error(ErrorKind::system, "a peer's address in the store is malformed (" + why +
                                       "): is something else writing to the store?");
  }

 private:
  const uint8_t* take(size_t count) {
    if (count > end_ - at_) malformed("it is truncated");
    const uint8_t* p = bytes_.data() + at_;
    at_ += count;
    return p;
  }
  const Bytes& bytes_;
  size_t at_ = 0, end_;
};

}  // namespace

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char pid_namespace[64];
  const ssize_t n = readlink("/proc/self/ns/pid", pid_namespace, sizeof pid_namespace);
  return boot + " " + std::string(pid_namespace, n > 0 ? static_cast<size_t>(n) : 0);
}

Bytes encode(const Address& a) {
  Writer w;
  w.number(kMagic);
  w.number(kProtocolVersion);
  w.number(a.rank);
  w.number(a.size);
  w.number(a.pid);
  w.number(a.fd);
  w.number(a.nonce);
  w.number(a.window_bytes);
  w.text(a.host);
  w.text(a.hostname);
  w.number(static_cast<uint32_t>(a.config.size()));
  for (const auto& [name, value] : a.config) {
    w.text(name);
    w.text(value);
  }
  return w.finish();
}

Address decode(const Bytes& blob) {
  if (blob.size() < 12) Reader::malformed("it is truncated");
  Reader head(blob, blob.size());
  if (head.number<uint32_t>() != kMagic) Reader::malformed("it is not an address");
  const auto version = head.number<uint32_t>();
  if (version != kProtocolVersion)
    throw Error(ErrorKind::system, "a peer speaks protocol version " + std::to_string(version) +
                                       ", this rank version " + std::to_string(kProtocolVersion) +
                                       ": install the same rocenante on every host");
  const size_t end = blob.size() - sizeof(uint32_t);
  uint32_t sum;
  std::memcpy(&sum, blob.data() + end, sizeof sum);
  if (sum != checksum(blob.data(), end)) Reader::malformed("its checksum is wrong");
  Reader r(blob, end);
  r.number<uint64_t>();  // magic and version
  Address a;
  a.rank = r.number<uint32_t>();
  a.size = r.number<uint32_t>();
  a.pid = r.number<int32_t>();
  a.fd = r.number<int32_t>();
  a.nonce = r.number<uint64_t>();
  a.window_bytes = r.number<uint64_t>();
  a.host = r.text();
  a.hostname = r.text();
  const auto rows = r.number<uint32_t>();
  if (rows > kMaxRows) Reader::malformed("it has too many rows");
  for (uint32_t i = 0; i < rows; ++i) {
    std::string name = r.text();
    a.config.emplace_back(std::move(name), r.text());
  }
  if (!r.at_end()) Reader::malformed("it is too long");
  return a;
}

}  // namespace rocenante::shm
