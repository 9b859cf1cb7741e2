// One end of a reliable connection to a peer's window, with the bookkeeping of its send queue.
#pragma once

#include <cstdint>
#include <string>

#include "transport/address.h"
#include "transport/verbs/library.h"
#include "transport/verbs/memory.h"

namespace rocenante::verbs {

// What a work request is for; travels in its id.
enum class Kind : uint8_t {
  payload,
  signal,
  fragment,
  credit,
  notice,
  question,
  keep_alive,
  probe,
  rail_end
};
const char* name_of(Kind kind);

class QueuePair {
 public:
  // At most this many work requests are outstanding; one in kSignalEvery asks for a completion.
  static constexpr uint32_t kDepth = 128, kSignalEvery = 32;

  QueuePair(Memory& memory, int peer, size_t rail, uint8_t port);

  QueuePairAddress address() const { return mine_; }
  struct Ends {
    QueuePairAddress there;
    Gid remote_gid;
    uint8_t local_gid_index = 0;
    uint8_t mtu = 0;
    uint8_t traffic_class = 0;
    uint8_t timeout = 0;
    uint32_t key = 0;  // of the peer's window
  };
  // Throws Error(ErrorKind::system), without naming the ends.
  void connect(const Ends& ends);

  // For good: nothing more is sent, and nothing that the peer sends takes effect once this has
  // returned. False if the device does not obey.
  bool stop();

  // No room for another batch.
  bool full() const { return posted_ - reaped_ + kBatch > kDepth; }
  // Every completion that was asked for has come.
  bool quiet() const { return reaped_ == asked_; }
  uint32_t max_inline() const { return max_inline_; }

  // Queues, for post(), to write `bytes` of this rank's window (or of any memory, if they fit
  // max_inline()) to `remote` in the peer's window, or to read them from there. At most kBatch
  // between two posts; all memory must stay as it is until then.
  static constexpr uint32_t kBatch = 2;
  void write(Kind kind, const void* from, size_t bytes, uint64_t remote);
  void read(Kind kind, void* to, size_t bytes, uint64_t remote);
  // Hands what is queued to the NIC in one go. `complete`: the last one asks for a completion.
  // Returns 0 or errno.
  int post(bool complete = false);

  // A completion: its id says whose it is.
  static int peer_of(uint64_t id) { return static_cast<int>(id >> 56); }
  static size_t rail_of(uint64_t id) { return id >> 52 & 0xf; }
  static Kind kind_of(uint64_t id) { return static_cast<Kind>(id >> 48 & 0xf); }
  void reap(uint64_t id);

 private:
  ibv_send_wr& queue(Kind kind, const void* memory, size_t bytes, uint64_t remote);

  const uint64_t whose_;  // the upper bits of its requests' ids
  const uint8_t port_;
  const uint32_t local_key_;
  uint32_t remote_key_ = 0;
  uint32_t max_inline_ = 0;
  QueuePairAddress mine_;
  uint64_t posted_ = 0, asked_ = 0, reaped_ = 0;  // numbers of requests, from 1
  uint32_t queued_ = 0;
  ibv_send_wr requests_[kBatch] = {};
  ibv_sge pieces_[kBatch] = {};
  QueuePairHandle handle_;
};

}  // namespace rocenante::verbs
