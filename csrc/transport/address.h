// What ranks tell each other through the store before they can reach each other's memory: small
// versioned blobs. A Hello says what a rank is and has; once all hellos are known every rank can
// tell how each pair will communicate, and an Address says where this rank's window is.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/bootstrap.h"
#include "core/types.h"

namespace rocenante {

// An address of a RoCE port. IPv4 addresses are mapped into IPv6 (::ffff:a.b.c.d).
struct Gid {
  std::array<uint8_t, 16> bytes{};
  uint8_t prefix = 128;  // bits that neighbours on the same subnet have in common
  bool operator==(const Gid&) const = default;
};

struct Port {
  std::string device;
  uint8_t number = 1;
  uint8_t mtu = 0;  // as verbs counts: 1 = 256 bytes ... 5 = 4096
  std::vector<Gid> gids;
  bool operator==(const Port&) const = default;
};

struct Hello {
  uint32_t rank = 0;
  uint32_t size = 0;
  int32_t pid = 0;
  uint64_t nonce = 0;
  std::string host;      // ranks whose hosts are equal can map each other's memory
  std::string machine;   // ranks whose machines are equal share processors
  std::string hostname;  // for people
  // The processors that the rank may run on, as bits: it may be pinned to one of its own.
  std::string processors;
  // Rows that every rank must agree on: variable, value.
  std::vector<std::pair<std::string, std::string>> config;
  std::vector<Port> ports;    // that can carry RDMA
  std::string verbs_problem;  // why there are none
};

struct QueuePairAddress {
  uint32_t number = 0;
  uint32_t first_packet = 0;
  bool operator==(const QueuePairAddress&) const = default;
};

struct Address {
  uint32_t rank = 0;
  uint64_t generation = 0;  // of all ranks' hellos: see generation_of()
  std::string problem;      // not empty: this rank failed at init
  int32_t fd = -1;
  uint64_t window_bytes = 0;
  uint64_t window_base = 0;    // what follows is for ranks of other hosts
  std::vector<uint32_t> keys;  // of the window, by port
  std::vector<std::vector<QueuePairAddress>> queue_pairs;  // by peer and rail; empty if none remote
};

// The kernel and its process-id namespace: what /proc/<pid>/fd needs to be common.
std::string host_identity();
std::string machine_identity();
std::string usable_processors();

// The same on all ranks that have seen the same hellos, and on no others.
uint64_t generation_of(const std::vector<Hello>& hellos);

Bytes encode(const Hello& hello);
Bytes encode(const Address& address);
// Throw Error(ErrorKind::system) for anything that encode() of this build did not make: a truncated
// or corrupted blob, or one of another protocol version (which is named).
Hello decode_hello(const Bytes& blob);
Address decode_address(const Bytes& blob);

}  // namespace rocenante
