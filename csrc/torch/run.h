// How the Backend runs a collective; for the files that implement it.
#pragma once

#include <ATen/record_function.h>

#include <utility>

#include "torch/backend.h"
#include "torch/comms_record.h"
#include "torch/errors.h"

namespace rocenante {

// Shows a blocking collective in the profiler as a Work shows an asynchronous one.
class Profiled {
 public:
  Profiled(const char* title, at::TensorList inputs) : record_(at::RecordScope::USER_SCOPE) {
    if (!record_.isActive()) return;
    record_._setAsync();
    std::vector<c10::IValue> values(inputs.begin(), inputs.end());
    record_.before(title, c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
  }

 private:
  at::RecordFunction record_;
};

template <class Body>
WorkPtr Backend::run(const Call& call, at::TensorList inputs, at::TensorList outputs, Body body) {
  const Milliseconds timeout = effective(call.timeout);
  const uint64_t sequence = ++sequence_;
  engine_->check_process();
  Communicator& communicator = engine_->communicator();
  const CommsRecord record(*this, options_->global_ranks_in_group,
                           {call.title, sequence, false, call.async}, inputs, outputs);
  if (!call.async) {
    const Profiled profiled(call.title, inputs);
    engine_->executor().run([&] { body(communicator, timeout); });
    return {};
  }
  auto work = c10::make_intrusive<CollectiveWork>(rank_, call.type, call.title, inputs.vec(),
                                                  outputs.vec(), sequence, timeout);
  work->start(engine_, [body = std::move(body), &communicator, timeout]() mutable {
    body(communicator, timeout);
  });
  return work;
}

}  // namespace rocenante
