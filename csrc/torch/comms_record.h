// A call as profilers and execution traces know collectives: torch's "record_param_comms", which
// names the collective, its size, the group and its ranks.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace rocenante {

// Lasts as long as the call is being made. Costs next to nothing while nobody records.
class CommsRecord {
 public:
  struct Call {
    const char* title;  // in the profiler: "rocenante:all_reduce"
    uint64_t sequence;
    bool point_to_point;
    bool async;
  };
  // `ranks`: the global ones of the group; empty for all.
  CommsRecord(const c10d::Backend& group, const std::vector<uint64_t>& ranks, const Call& call,
              at::TensorList inputs, at::TensorList outputs);
  CommsRecord(const CommsRecord&) = delete;
  CommsRecord& operator=(const CommsRecord&) = delete;

 private:
  void begin(const c10d::Backend& group, const std::vector<uint64_t>& ranks, const Call& call,
             at::TensorList inputs, at::TensorList outputs);

  std::vector<c10::IValue> inputs_;  // the record refers to them until it ends
  std::optional<c10::DebugInfoGuard> info_;
  at::RecordFunction record_{at::RecordScope::FUNCTION};  // ends first: its end reads the info
};

}  // namespace rocenante
