// What a kernel is given, and where it finds things in memory. Plain C++: the launcher, the proxy,
// the tests and the kernels share it.
//
// Every launch of a captured operation has the same arguments, so nothing that alternates may be
// among them: sequence numbers, and with them epochs, live in device memory (ChannelState).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.h"

#ifdef __CUDACC__
#define ROCENANTE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ROCENANTE_HOST_DEVICE inline
#endif

namespace rocenante::device {

// A channel is what one block uses of the window: slots, signals, doorbells and a sequence of its
// own. Blocks never wait for each other, so a grid need not be resident as a whole.
inline constexpr unsigned kMaxChannels = 8;

// The window of one rank, registered with the NIC; every rank's has the same layout. Peers write to
// the signals and to what is received; the kernel writes what is to be sent, and the proxy's NIC
// reads it.
//
// All strides are fixed for the life of a communicator: launches of few blocks and of many find a
// channel's slots in the same place, and no contribution of one operation lies where another
// operation's still arrives.
class WindowLayout {
 public:
  static constexpr uint64_t kSignalStride = 128;  // no two peers write to one cache line
  static constexpr uint64_t kLineHeader = 128;    // of which one LinePair is used

  WindowLayout() = default;
  // `slot_bytes` of payload go from one channel to one peer at once, `line_bytes` by the LL
  // protocol, which takes twice as much memory; both multiples of 128.
  WindowLayout(uint32_t ranks_, uint32_t channels_, uint64_t slot_bytes_, uint64_t line_bytes_)
      : ranks(ranks_),
        channels(channels_),
        slot_bytes(slot_bytes_),
        line_bytes(line_bytes_),
        line_slot_bytes(kLineHeader + 2 * line_bytes_) {
    const uint64_t lanes = 2 * uint64_t{channels};
    received_at = lanes * ranks * kSignalStride;
    received_lines_at = received_at + lanes * ranks * slot_bytes;
    sent_at = received_lines_at + lanes * ranks * line_slot_bytes;
    sent_lines_at = sent_at + lanes * ranks * slot_bytes;
    bytes = sent_lines_at + lanes * line_slot_bytes;
  }

  ROCENANTE_HOST_DEVICE uint64_t lane(uint64_t epoch, uint64_t channel) const {
    return epoch * channels + channel;
  }
  // Offsets of what peer `peer` sends to this rank, or this rank to it.
  ROCENANTE_HOST_DEVICE uint64_t signal(uint64_t lane, uint64_t peer) const {
    return (lane * ranks + peer) * kSignalStride;
  }
  ROCENANTE_HOST_DEVICE uint64_t received(uint64_t lane, uint64_t peer) const {
    return received_at + (lane * ranks + peer) * slot_bytes;
  }
  // LL words have slots apart: a payload could look like a flag that is awaited.
  ROCENANTE_HOST_DEVICE uint64_t received_lines(uint64_t lane, uint64_t peer) const {
    return received_lines_at + (lane * ranks + peer) * line_slot_bytes;
  }
  ROCENANTE_HOST_DEVICE uint64_t sent(uint64_t lane, uint64_t peer) const {
    return sent_at + (lane * ranks + peer) * slot_bytes;
  }
  ROCENANTE_HOST_DEVICE uint64_t sent_lines(uint64_t lane) const {
    return sent_lines_at + lane * line_slot_bytes;
  }

  uint32_t ranks = 0;
  uint32_t channels = 0;
  uint64_t slot_bytes = 0;
  uint64_t line_bytes = 0;
  uint64_t line_slot_bytes = 0;
  uint64_t received_at = 0, received_lines_at = 0, sent_at = 0, sent_lines_at = 0;
  uint64_t bytes = 0;  // of the whole window
};

// What the proxy is to send for one exchange of one channel.
enum class Payload : uint64_t {
  to_all,    // sent(lane, 0) to every peer, then the signal
  per_peer,  // sent(lane, p) to peer p, then the signal
  lines,     // sent_lines(lane) to every peer; no signal: LL words announce themselves
};

// A doorbell, in host-mapped memory, one per channel and epoch. The bell is the very word that
// arrives as the signal at the peers. A rank is at most one exchange ahead of its own proxy,
// because it completes an exchange only with its peers' next contributions, which they send only
// after they have its own: so two bells need no credits, and a proxy that slept loses nothing. A
// rank without peers rings none.
struct alignas(64) Bell {
  uint64_t request = 0;  // Payload << 56 | bytes; written before `signal`
  uint64_t signal = 0;   // fingerprint << 32 | uint32(sequence)

  static constexpr int kPayloadShift = 56;
};

// Why a kernel gave up; bits, as several threads may have several reasons.
enum Failure : uint64_t {
  kTimedOut = 1,    // a peer's contribution did not come in time
  kAborted = 2,     // Control::abort
  kMismatched = 4,  // a peer made another call
  kReported = 8,    // somebody has filled in, or is filling in, the record
};

// Written once per communicator, by the first kernel that fails.
struct ErrorRecord {
  uint64_t sequence = 0;  // of the channel
  uint64_t channel = 0;
  uint64_t missing = 0;     // bit p: nothing had come from rank p when the waiting ended
  uint64_t mismatched = 0;  // bit p: rank p made another call
  uint64_t failure = 0;     // Failure; written last
};

// Host-mapped: kernel, proxy and host see each other's writes without any synchronisation of
// streams.
struct alignas(128) Control {
  uint64_t abort = 0;  // not zero: whoever waits gives up
  alignas(128) ErrorRecord record;
  alignas(128) Bell bells[kMaxChannels][2];  // by channel and epoch
};

// Device memory, zero when the communicator is made.
struct alignas(128) ChannelState {
  uint64_t sequence[kMaxChannels];  // of the last exchange that was begun
  alignas(128) uint64_t failure;    // Failure of any block of any launch; never cleared
  uint64_t missing;
  uint64_t mismatched;
};

struct KernelArgs {
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t count = 0;    // see the kernel: elements where it reduces, bytes where it only moves
  double factor = 1;     // premul_sum
  uint64_t timeout = 0;  // nanoseconds that one exchange may wait
  uint32_t fingerprint = 0;
  uint32_t rank = 0;
  uint32_t root = 0;
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::one_shot;
  ReduceOp op = ReduceOp::sum;
  WindowLayout layout;
  char* window = nullptr;
  Control* control = nullptr;
  ChannelState* state = nullptr;
};

}  // namespace rocenante::device
