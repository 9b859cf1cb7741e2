// The sends and receives under way: keeps each, and with it its buffer, until it is complete,
// whether or not anybody waits for it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <vector>

#include "collective/point_to_point.h"

namespace rocenante {

class TransferWork;

class Transfers {
 public:
  explicit Transfers(PointToPoint& point_to_point);
  ~Transfers();

  void add(c10::intrusive_ptr<TransferWork> work);
  void remove(const TransferWork* work);
  // Until all are complete or the budget is spent: false.
  bool drain(Milliseconds budget);
  // Cancels all.
  void stop();

 private:
  using Works = std::vector<c10::intrusive_ptr<TransferWork>>;
  Works pending();

  PointToPoint& point_to_point_;
  std::mutex mutex_;
  Works pending_;
};

}  // namespace rocenante
