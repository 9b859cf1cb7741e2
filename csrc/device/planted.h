// Bugs that tests plant on purpose, one at a time, to show that the test-suite would find them.
// Only a test program defines ROCENANTE_PLANTED_BUGS; everywhere else planted() is a constant false
// and leaves no trace in the code. A switch at run time and not a macro per bug: one build serves
// the whole list.
#pragma once

namespace rocenante::device {

enum class Bug {
  none,
  bell_without_release,
  bell_without_peers,
  signal_without_acquire,
  no_barrier_before_bell,
  no_barrier_before_read,
  single_buffering,
  slot_stride_by_launch,
  half_of_the_flags,
  sequence_not_advanced,
  not_in_rank_order,
  rounded_at_every_step,
  factor_forgotten,
  tail_off_by_one,
  alignment_ignored,
  fingerprint_unchecked,
  timeout_unchecked,
  abort_unchecked,
  failure_forgotten,
  wrong_peer_blamed,
  // In the model of the NIC:
  signal_overtakes_data,
  writes_of_four_bytes,
  count
};

// In the proxy, and in what launches kernels.
enum class HostBug {
  none,
  bell_without_acquire,
  no_last_look,
  never_naps,
  lost_peers_unseen,
  record_unread,
  kernels_not_aborted,
  peers_not_told,
  sends_after_failure,
  one_peer_forgotten,
  streams_unordered,
  captures_wait,
  failure_unread,
  closed_without_abort,
  count
};

#ifdef ROCENANTE_PLANTED_BUGS
inline Bug planted_bug = Bug::none;
inline HostBug planted_host_bug = HostBug::none;
inline bool planted(Bug bug) { return planted_bug == bug; }
inline bool planted(HostBug bug) { return planted_host_bug == bug; }
#elif defined(__CUDACC__)
__host__ __device__ constexpr bool planted(Bug) { return false; }
#else
constexpr bool planted(Bug) { return false; }
constexpr bool planted(HostBug) { return false; }
#endif

}  // namespace rocenante::device
