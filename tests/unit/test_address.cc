// The blob that ranks exchange: whatever the store returns, decoding it is an address or an Error.
#include "transport/shm/address.h"

#include <gtest/gtest.h>

#include <random>

#include "core/error.h"

namespace rocenante::shm {
namespace {

Address sample() {
  Address a;
  a.rank = 3;
  a.size = 8;
  a.pid = 4711;
  a.fd = 12;
  a.nonce = 0x1234567890abcdef;
  a.window_bytes = 1 << 20;
  a.host = host_identity();
  a.hostname = "spark-3";
  a.config = {{"ROCENANTE_TRANSPORT", "auto"}, {"ROCENANTE_SLOT_BYTES", "524288"}};
  return a;
}

TEST(Address, SurvivesTheStore) {
  const Address a = sample(), b = decode(encode(a));
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.size, b.size);
  EXPECT_EQ(a.pid, b.pid);
  EXPECT_EQ(a.fd, b.fd);
  EXPECT_EQ(a.nonce, b.nonce);
  EXPECT_EQ(a.window_bytes, b.window_bytes);
  EXPECT_EQ(a.host, b.host);
  EXPECT_EQ(a.hostname, b.hostname);
  EXPECT_EQ(a.config, b.config);
}

TEST(Address, NamesAnotherProtocolVersion) {
  Bytes blob = encode(sample());
  blob[4] = 99;
  try {
    decode(blob);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("version 99"), std::string::npos) << e.what();
  }
}

TEST(Address, RefusesEveryTruncation) {
  const Bytes blob = encode(sample());
  for (size_t n = 0; n < blob.size(); ++n)
    EXPECT_THROW(decode(Bytes(blob.begin(), blob.begin() + static_cast<long>(n))), Error) << n;
}

TEST(Address, RefusesEveryFlippedBit) {
  const Bytes blob = encode(sample());
  for (size_t bit = 0; bit < 8 * blob.size(); ++bit) {
    Bytes bad = blob;
    bad[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    EXPECT_THROW(decode(bad), Error) << bit;
  }
}

// Random bodies behind a right magic, version and checksum reach the parser itself.
TEST(Address, RefusesGarbageWithARightChecksum) {
  std::mt19937 random(1);
  const Bytes good = encode(sample());
  for (int i = 0; i < 20'000; ++i) {
    Bytes bad(good.begin(), good.end() - 4);
    bad.resize(8 + random() % bad.size());
    for (int k = 0; k < 4; ++k) {
      const size_t at = 8 + random() % std::max<size_t>(bad.size() - 8, 1);
      if (at < bad.size()) bad[at] = static_cast<uint8_t>(random());
    }
    uint32_t hash = 2166136261u;
    for (uint8_t byte : bad) hash = (hash ^ byte) * 16777619u;
    for (int k = 0; k < 4; ++k) bad.push_back(static_cast<uint8_t>(hash >> (8 * k)));
    try {
      decode(bad);  // a changed number may still be an address
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace rocenante::shm
