// A communicator: one rank's end of a group. This is the C++ interface of the product; csrc/torch
// wraps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/bootstrap.h"
#include "core/clock.h"
#include "core/config.h"
#include "core/types.h"
#include "exchange/call.h"

namespace rocenante {

class Exchange;
class PointToPoint;
class PointToPointEngine;
class Transport;

// Buffers are host memory, contiguous, of any alignment; `in` and `out` may be the same memory but
// may not overlap otherwise. Sizes may be zero. Every collective blocks until this rank's part is
// complete and throws Error: after anything but ErrorKind::usage the communicator has failed, and
// every later call throws at once. Collectives of one communicator must not run concurrently (see
// Executor); point_to_point is independent of them.
class Communicator {
 public:
  // Meets all ranks through `bootstrap`; blocks until they have all attached, at most `timeout`.
  // `name` appears in errors. Throws config, timeout, system.
  Communicator(Bootstrap& bootstrap, int rank, int size, const Config& config, Milliseconds timeout,
               std::string name);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  const Config& config() const { return config_; }
  uint64_t operations() const;  // collectives begun since creation

  void all_reduce(const void* in, void* out, size_t count, DType dtype, Reduction reduction,
                  Milliseconds timeout);
  // out[r] receives rank r's `bytes` bytes.
  void all_gather(const void* in, void* const* out, size_t bytes, DType dtype,
                  Milliseconds timeout);
  // in[r] is this rank's contribution of `count` elements to rank r's result.
  void reduce_scatter(const void* const* in, void* out, size_t count, DType dtype,
                      Reduction reduction, Milliseconds timeout);
  // in[r] goes to rank r, out[r] comes from it; `bytes` the same for every pair.
  void all_to_all(const void* const* in, void* const* out, size_t bytes, DType dtype,
                  Milliseconds timeout);
  // Sizes of their own for every pair; rank a's in_bytes[b] must equal rank b's out_bytes[a].
  void all_to_all_v(const void* const* in, const size_t* in_bytes, void* const* out,
                    const size_t* out_bytes, DType dtype, Milliseconds timeout);
  void broadcast(void* data, size_t bytes, DType dtype, int root, Milliseconds timeout);
  // `out` is written on the root only and may be null elsewhere.
  void reduce(const void* in, void* out, size_t count, DType dtype, Reduction reduction, int root,
              Milliseconds timeout);
  void gather(const void* in, void* const* out, size_t bytes, DType dtype, int root,
              Milliseconds timeout);
  void scatter(const void* const* in, void* out, size_t bytes, DType dtype, int root,
               Milliseconds timeout);
  void barrier(Milliseconds timeout);

  PointToPoint& point_to_point();

  // From any thread: whatever this rank waits for ends with ErrorKind::aborted, and so do all later
  // calls; peers that wait for this rank get ErrorKind::peer_lost with the reason.
  void abort(const std::string& reason);
  // Leaves the group in good order; further calls throw. Idempotent.
  void close();
  // Empty while healthy; else why the communicator failed.
  std::string failure() const;
  // Whether this is a child that forked from the communicator's process: it can do nothing with it.
  bool forked() const;

 private:
  CallRecord record(Collective collective, size_t bytes, DType dtype, int root = -1) const;
  void begin(const CallRecord& call, Milliseconds timeout);
  void throw_if_forked() const;
  void move_lanes(const void* const* in, const size_t* in_bytes, void* const* out,
                  const size_t* out_bytes, size_t most);

  const int rank_;
  const int size_;
  const std::string name_;
  const Config config_;
  const uint64_t fork_generation_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<PointToPointEngine> point_to_point_;
};

}  // namespace rocenante
