#include "job.h"

#include <algorithm>

#include "core/types.h"

namespace rocenante::test {

Job::Job(const Operation& operation, unsigned ranks, uint64_t timeout)
    : operation_(operation), timeout_(timeout) {
  const device::Call& call = operation.call;
  const size_t bytes = call.count * size_of(call.dtype);
  for (unsigned r = 0; r < ranks; ++r) {
    in_.emplace_back(operation.in[r].size(), operation.in_offset);
    out_.emplace_back(operation.out[r].size(), operation.out_offset);
    in_pointer_.push_back(in_[r].data());
    out_pointer_.push_back(out_[r].data());
    if (!operation.in_place) continue;
    // As torch does it: the larger of the two holds the other at this rank's place.
    if (call.collective == Collective::reduce_scatter) {
      out_pointer_[r] = in_[r].data() + r * bytes;
    } else {
      in_pointer_[r] = out_[r].data() + (call.collective == Collective::all_gather ? r * bytes : 0);
    }
  }
}

void Job::add(Gpu& gpu, const Operation& version, std::string& wrong) {
  const unsigned rank = gpu.rank();
  add(
      gpu, [this, rank, &version] { fill(rank, version); },
      [this, rank, &version, &wrong, &gpu] {
        if (!wrong.empty()) return;
        const uint64_t failure = __atomic_load_n(&gpu.control().record.failure, __ATOMIC_ACQUIRE);
        if (failure != 0) {
          wrong = "rank " + std::to_string(rank) + " failed (" + std::to_string(failure) + ") in ";
        } else if (!is_right(rank, version)) {
          wrong = "rank " + std::to_string(rank) + " has wrong bytes after ";
        } else {
          return;
        }
        wrong += describe(version, static_cast<unsigned>(in_.size()));
      });
}

void Job::add_idle(Gpu& gpu, std::string& wrong) {
  const unsigned rank = gpu.rank();
  add(
      gpu, [this, rank] { out_[rank].clear(); },
      [this, rank, &wrong] {
        if (!out_[rank].is_clear())
          wrong = "rank " + std::to_string(rank) + " wrote a result after it had failed";
      });
}

void Job::add_doomed(Gpu& gpu, std::atomic<unsigned>& begun) {
  const unsigned rank = gpu.rank();
  add(
      gpu,
      [this, rank, &begun] {
        fill(rank, operation_);
        ++begun;
      },
      [] {});
}

void Job::add(Gpu& gpu, std::function<void()> prepare, std::function<void()> check) {
  const unsigned rank = gpu.rank();
  Launch launch;
  device::Call call = operation_.call;
  call.reduction.factor = operation_.factors[rank];
  launch.args = device::make_args(call, operation_.plan, gpu.layout());
  launch.args.timeout = timeout_;
  launch.args.in = in_pointer_[rank];
  launch.args.out = out_pointer_[rank];
  launch.kernel = device::kernel_of(call, operation_.plan);
  launch.blocks = operation_.plan.blocks;
  launch.prepare = std::move(prepare);
  launch.check = std::move(check);
  gpu.add(std::move(launch));
}

void Job::fill(unsigned rank, const Operation& version) {
  in_[rank].fill(version.in[rank]);
  out_[rank].clear();
  std::copy(version.in[rank].begin(), version.in[rank].end(), in_pointer_[rank]);
}

bool Job::is_right(unsigned rank, const Operation& version) {
  if (operation_.in_place && operation_.call.collective == Collective::reduce_scatter)
    return std::equal(version.out[rank].begin(), version.out[rank].end(), out_pointer_[rank]);
  return out_[rank].holds(version.out[rank]);
}

}  // namespace rocenante::test
