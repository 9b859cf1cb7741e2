// The blobs that ranks exchange: whatever the store returns, decoding it is an address or an Error.
#include "transport/address.h"

#include <gtest/gtest.h>

#include <random>

#include "core/error.h"

namespace rocenante {
namespace {

Hello hello() {
  Hello h;
  h.rank = 3;
  h.size = 8;
  h.pid = 4711;
  h.nonce = 0x1234567890abcdef;
  h.host = host_identity();
  h.machine = machine_identity();
  h.hostname = "spark-3";
  h.processors = usable_processors();
  h.config = {{"ROCENANTE_TRANSPORT", "auto"}, {"ROCENANTE_SLOT_BYTES", "524288"}};
  h.ports = {{"mlx5_0", 1, 5, {{{0xfe, 0x80, 1, 2}, 64}, {{1, 2, 3}, 120}}}, {"mlx5_1", 2, 3, {}}};
  h.verbs_problem = "none";
  return h;
}

Address address() {
  Address a;
  a.rank = 3;
  a.generation = 0xfedcba0987654321;
  a.problem = "none";
  a.fd = 12;
  a.window_bytes = 1 << 20;
  a.window_base = 0x7f0000000000;
  a.keys = {17, 18};
  a.queue_pairs = {{{1, 2}, {3, 4}}, {{5, 6}}, {}};
  return a;
}

TEST(Address, HelloSurvivesTheStore) {
  const Hello a = hello(), b = decode_hello(encode(a));
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.size, b.size);
  EXPECT_EQ(a.pid, b.pid);
  EXPECT_EQ(a.nonce, b.nonce);
  EXPECT_EQ(a.host, b.host);
  EXPECT_EQ(a.machine, b.machine);
  EXPECT_EQ(a.hostname, b.hostname);
  EXPECT_EQ(a.processors, b.processors);
  EXPECT_EQ(a.config, b.config);
  EXPECT_EQ(a.ports, b.ports);
  EXPECT_EQ(a.verbs_problem, b.verbs_problem);
}

TEST(Address, AddressSurvivesTheStore) {
  const Address a = address(), b = decode_address(encode(a));
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.generation, b.generation);
  EXPECT_EQ(a.problem, b.problem);
  EXPECT_EQ(a.fd, b.fd);
  EXPECT_EQ(a.window_bytes, b.window_bytes);
  EXPECT_EQ(a.window_base, b.window_base);
  EXPECT_EQ(a.keys, b.keys);
  EXPECT_EQ(a.queue_pairs, b.queue_pairs);
}

TEST(Address, AnyRanksNewNonceIsANewGeneration) {
  std::vector<Hello> hellos(3, hello());
  const uint64_t before = generation_of(hellos);
  for (size_t r = 0; r < hellos.size(); ++r) {
    std::vector<Hello> changed = hellos;
    ++changed[r].nonce;
    EXPECT_NE(generation_of(changed), before) << r;
  }
}

// The blob with its last four bytes, the checksum, made right again.
Bytes signed_again(Bytes blob) {
  blob.resize(blob.size() - 4);
  uint32_t hash = 2166136261u;
  for (uint8_t byte : blob) hash = (hash ^ byte) * 16777619u;
  for (int k = 0; k < 4; ++k) blob.push_back(static_cast<uint8_t>(hash >> (8 * k)));
  return blob;
}

// The same for both kinds of blob.
template <class Decode>
class Blob {
 public:
  Blob(Bytes good, Decode decode) : good_(std::move(good)), decode_(decode) {}

  void names_another_version() {
    Bytes blob = good_;
    blob[4] = 99;
    try {
      decode_(blob);
      FAIL();
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("version 99"), std::string::npos) << e.what();
    }
  }

  void refuses_every_truncation() {
    for (size_t n = 0; n < good_.size(); ++n)
      EXPECT_THROW(decode_(Bytes(good_.begin(), good_.begin() + static_cast<long>(n))), Error) << n;
  }

  void refuses_every_flipped_bit() {
    for (size_t bit = 0; bit < 8 * good_.size(); ++bit) {
      Bytes bad = good_;
      bad[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
      EXPECT_THROW(decode_(bad), Error) << bit;
    }
  }

  // Random bodies behind a right magic, version and checksum reach the parser itself.
  void survives_garbage_with_a_right_checksum() {
    std::mt19937 random(1);
    int refused = 0;
    for (int i = 0; i < 20'000; ++i) {
      Bytes bad = good_;
      if (random() % 2) bad.resize(12 + random() % bad.size());
      for (int k = 0; k < 4; ++k) {
        const size_t at = 8 + random() % std::max<size_t>(bad.size() - 12, 1);
        if (at + 4 < bad.size()) bad[at] = static_cast<uint8_t>(random());
      }
      try {
        decode_(signed_again(bad));  // a changed number may still be an address
      } catch (const Error&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 5'000);
  }

  // Any four bytes could be a length: 4 GiB there is refused, or was no length and comes back.
  void refuses_huge_lengths() {
    int refused = 0;
    for (size_t at = 8; at + 8 <= good_.size(); ++at) {
      Bytes bad = good_;
      for (size_t k = 0; k < 4; ++k) bad[at + k] = 0xff;
      try {
        const Bytes again = encode(decode_(signed_again(bad)));
        EXPECT_EQ(again, signed_again(bad)) << at;
      } catch (const Error&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 10);
  }

  void refuses_what_follows_the_end() {
    Bytes longer = good_;
    longer.insert(longer.end(), 4, 0);
    EXPECT_THROW(decode_(signed_again(longer)), Error);
    EXPECT_THROW(decode_(longer), Error);
  }

  void all() {
    names_another_version();
    refuses_every_truncation();
    refuses_every_flipped_bit();
    survives_garbage_with_a_right_checksum();
    refuses_huge_lengths();
    refuses_what_follows_the_end();
  }

 private:
  Bytes good_;
  Decode decode_;
};

TEST(Address, ADamagedHelloIsAnErrorNeverACrash) { Blob(encode(hello()), decode_hello).all(); }

TEST(Address, ADamagedAddressIsAnErrorNeverACrash) {
  Blob(encode(address()), decode_address).all();
}

TEST(Address, WhatVerbsTakesForGrantedIsChecked) {
  Hello h = hello();
  h.ports[0].mtu = 6;
  EXPECT_THROW(decode_hello(encode(h)), Error);
  h.ports[0].mtu = 0;
  EXPECT_THROW(decode_hello(encode(h)), Error);
  h = hello();
  h.ports[0].gids[0].prefix = 129;
  EXPECT_THROW(decode_hello(encode(h)), Error);
}

TEST(Address, OneKindIsNotTakenForTheOther) {
  EXPECT_THROW(decode_hello(encode(address())), Error);
  EXPECT_THROW(decode_address(encode(hello())), Error);
}

}  // namespace
}  // namespace rocenante
