// send and recv with tags: channels of their own per pair, independent of the collectives' order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/clock.h"
#include "core/types.h"

namespace rocenante {

inline constexpr int kAnySource = -1;

// One send or recv under way. Thread-safe.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual bool done() const = 0;  // complete or failed
  // Drives progress in the calling thread until done. Throws the transfer's error; if `budget` runs
  // out first, throws ErrorKind::timeout and leaves the transfer under way.
  virtual void wait(Milliseconds budget) = 0;
  // For a receive: the rank the message came from; valid once done.
  virtual int source() const = 0;
};

class PointToPoint {
 public:
  virtual ~PointToPoint() = default;
  // The buffers must live until the transfer is done (or cancelled). A message matches a recv of
  // the same tag from the same source, in order; other sizes or dtypes fail the recv and name both.
  // `timeout` bounds the transfer by elapsed time from now.
  virtual std::shared_ptr<Transfer> send(const void* data, size_t bytes, DType dtype,
                                         int destination, int tag, Milliseconds timeout) = 0;
  virtual std::shared_ptr<Transfer> recv(void* data, size_t bytes, DType dtype, int source, int tag,
                                         Milliseconds timeout) = 0;
  // Gives up: the transfer fails with ErrorKind::aborted and its buffer is touched no more.
  virtual void cancel(const std::shared_ptr<Transfer>& transfer) = 0;
};

}  // namespace rocenante
