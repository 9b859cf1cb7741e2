#include "transport/address.h"

#include <sched.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "core/error.h"

namespace rocenante {

namespace {

// Grows with every change of the blobs, the window's layout or the protocol of the exchange.
constexpr uint32_t kProtocolVersion = 4;
constexpr uint32_t kHelloMagic = 0x68636f72, kAddressMagic = 0x61636f72;  // "roch", "roca"
constexpr uint32_t kMaxText = 4096, kMaxRows = 64;

uint32_t checksum(const uint8_t* data, size_t bytes) {  // FNV-1a, 32 bits
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ data[i]) * 16777619u;
  return hash;
}

class Writer {
 public:
  explicit Writer(uint32_t magic) {
    number(magic);
    number(kProtocolVersion);
  }
  template <class T>
  void number(T value) {
    const auto* p = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof value);
  }
  void text(const std::string& value) {
    const size_t length = std::min<size_t>(value.size(), kMaxText);
    number(static_cast<uint32_t>(length));
    bytes_.insert(bytes_.end(), value.begin(), value.begin() + static_cast<std::ptrdiff_t>(length));
  }
  template <class List, class F>
  void list(const List& items, F&& write) {
    number(static_cast<uint32_t>(items.size()));
    for (const auto& item : items) write(item);
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
  // Checks magic, version and checksum.
  Reader(const Bytes& blob, uint32_t magic) : bytes_(blob), end_(blob.size()) {
    if (blob.size() < 3 * sizeof(uint32_t)) malformed("it is truncated");
    if (number<uint32_t>() != magic) malformed("it is not an address");
    const auto version = number<uint32_t>();
    if (version != kProtocolVersion)
      throw Error(ErrorKind::system, "a peer speaks protocol version " + std::to_string(version) +
                                         ", this rank version " + std::to_string(kProtocolVersion) +
                                         ": install the same rocenante on every host");
    end_ -= sizeof(uint32_t);
    uint32_t sum;
    std::memcpy(&sum, blob.data() + end_, sizeof sum);
    if (sum != checksum(blob.data(), end_)) malformed("its checksum is wrong");
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  template <class T>
  void read(T& value) {
    value = number<T>();
  }
  void read(std::string& value) {
    const auto length = number<uint32_t>();
    if (length > kMaxText) malformed("a text is too long");
    value.assign(reinterpret_cast<const char*>(take(length)), length);
  }
  template <class Item, class F>
  void list(std::vector<Item>& items, F&& read_item) {
    const auto count = number<uint32_t>();
    if (count > kMaxRows) malformed("it has too many rows");
    for (uint32_t i = 0; i < count; ++i) read_item(items.emplace_back());
  }
  void finish() const {
    if (at_ != end_) malformed("it is too long");
  }
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

std::string boot_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

}  // namespace

std::string usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::string bits(reinterpret_cast<const char*>(&set), sizeof set);
  bits.resize(bits.find_last_not_of('\0') + 1);
  return bits;
}

std::string machine_identity() { return boot_identity(); }

std::string host_identity() {
  char pid_namespace[64];
  const ssize_t n = readlink("/proc/self/ns/pid", pid_namespace, sizeof pid_namespace);
  return boot_identity() + " " + std::string(pid_namespace, n > 0 ? static_cast<size_t>(n) : 0);
}

uint64_t generation_of(const std::vector<Hello>& hellos) {
  uint64_t hash = hellos.size();
  for (const Hello& h : hellos) {
    hash = (hash ^ h.nonce) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

Bytes encode(const Hello& h) {
  Writer w(kHelloMagic);
  w.number(h.rank);
  w.number(h.size);
  w.number(h.pid);
  w.number(h.nonce);
  w.text(h.host);
  w.text(h.machine);
  w.text(h.hostname);
  w.text(h.processors);
  w.list(h.config, [&](const auto& row) {
    w.text(row.first);
    w.text(row.second);
  });
  w.list(h.ports, [&](const Port& port) {
    w.text(port.device);
    w.number(port.number);
    w.number(port.mtu);
    w.list(port.gids, [&](const Gid& gid) {
      w.number(gid.bytes);
      w.number(gid.prefix);
    });
  });
  w.text(h.verbs_problem);
  return w.finish();
}

Hello decode_hello(const Bytes& blob) {
  Reader r(blob, kHelloMagic);
  Hello h;
  r.read(h.rank);
  r.read(h.size);
  r.read(h.pid);
  r.read(h.nonce);
  r.read(h.host);
  r.read(h.machine);
  r.read(h.hostname);
  r.read(h.processors);
  r.list(h.config, [&](auto& row) {
    r.read(row.first);
    r.read(row.second);
  });
  r.list(h.ports, [&](Port& port) {
    r.read(port.device);
    r.read(port.number);
    r.read(port.mtu);
    if (port.mtu < 1 || port.mtu > 5) Reader::malformed("an MTU that there is not");
    r.list(port.gids, [&](Gid& gid) {
      r.read(gid.bytes);
      r.read(gid.prefix);
      if (gid.prefix > 128) Reader::malformed("a prefix longer than its address");
    });
  });
  r.read(h.verbs_problem);
  r.finish();
  return h;
}

Bytes encode(const Address& a) {
  Writer w(kAddressMagic);
  w.number(a.rank);
  w.number(a.generation);
  w.text(a.problem);
  w.number(a.fd);
  w.number(a.window_bytes);
  w.number(a.window_base);
  w.list(a.keys, [&](uint32_t key) { w.number(key); });
  w.list(a.queue_pairs, [&](const auto& rails) {
    w.list(rails, [&](const QueuePairAddress& q) {
      w.number(q.number);
      w.number(q.first_packet);
    });
  });
  return w.finish();
}

Address decode_address(const Bytes& blob) {
  Reader r(blob, kAddressMagic);
  Address a;
  r.read(a.rank);
  r.read(a.generation);
  r.read(a.problem);
  r.read(a.fd);
  r.read(a.window_bytes);
  r.read(a.window_base);
  r.list(a.keys, [&](uint32_t& key) { r.read(key); });
  r.list(a.queue_pairs, [&](auto& rails) {
    r.list(rails, [&](QueuePairAddress& q) {
      r.read(q.number);
      r.read(q.first_packet);
    });
  });
  r.finish();
  return a;
}

}  // namespace rocenante
