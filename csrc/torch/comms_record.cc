#include "torch/comms_record.h"

#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <tuple>
#include <utility>

namespace rocenante {

namespace {

int64_t elements(at::TensorList tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

// Of evenly spaced ranks the distance, as torch records them; 0: they are not.
int stride_of(const std::vector<uint64_t>& ranks) {
  if (ranks.size() < 2) return 1;
  const uint64_t stride = ranks[1] - ranks[0];
  for (size_t i = 2; i < ranks.size(); ++i)
    if (ranks[i] - ranks[i - 1] != stride) return 0;
  return static_cast<int>(stride);
}

}  // namespace

CommsRecord::CommsRecord(const c10d::Backend& group, const std::vector<uint64_t>& ranks,
                         const Call& call, at::TensorList inputs, at::TensorList outputs) {
  if (record_.isActive()) begin(group, ranks, call, inputs, outputs);
}

void CommsRecord::begin(const c10d::Backend& group, const std::vector<uint64_t>& ranks,
                        const Call& call, at::TensorList inputs, at::TensorList outputs) {
  const std::string_view title = call.title;
  std::string name(title.substr(title.find(':') + 1));
  const std::tuple<std::string, std::string> group_name{group.getGroupUid(), group.getGroupDesc()};
  const at::TensorList typed = inputs.empty() ? outputs : inputs;
  const at::ScalarType dtype = typed.empty() ? at::kByte : typed[0].scalar_type();
  const int first = ranks.empty() ? 0 : static_cast<int>(ranks[0]);
  const int stride = stride_of(ranks);
  const std::vector<int64_t> no_splits;
  const auto sequence = static_cast<int64_t>(call.sequence);
  // In the order of torch's macro RECORD_PARAM_COMMS_DATA, whose readers count.
  inputs_ = {c10::IValue(inputs.vec()),
             c10::IValue(std::make_tuple(sequence, call.point_to_point)),
             c10::IValue(group_name),
             group.getRank(),
             name,
             no_splits,
             no_splits,
             first,
             stride,
             group.getSize(),
             call.async};
  auto info = std::make_shared<torch::ParamCommsDebugInfo>(
      group_name, group.getRank(), std::move(name), elements(inputs), elements(outputs), dtype,
      no_splits, no_splits, first, stride, group.getSize(), call.async);
  info->setSequenceInfo(sequence, call.point_to_point);
  info_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO, std::move(info));
  const c10::ArrayRef<const c10::IValue> values(inputs_.data(), inputs_.size());
  record_.before(at::kParamCommsCallName, values);
  if (record_.needsOutputs())
    record_.setOutputs(std::vector<c10::IValue>{c10::IValue(outputs.vec())});
}

}  // namespace rocenante
