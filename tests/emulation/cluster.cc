#include "cluster.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "device/planted.h"

namespace rocenante::test {

using device::Bell;
using device::Bug;
using device::Payload;
using device::planted;

Cluster::Cluster(unsigned ranks, unsigned channels, unsigned threads, uint64_t slot_bytes,
                 uint64_t line_bytes, uint64_t seed)
    : layout_(ranks, channels, slot_bytes, line_bytes), seed_(seed), ranks_(ranks) {
  for (unsigned r = 0; r < ranks; ++r) {
    Rank& rank = ranks_[r];
    rank.window.resize(layout_.bytes / sizeof(Chunk));
    rank.control = std::make_unique<device::Control>();
    rank.gpu = std::make_unique<Gpu>(r, layout_, threads, rank.window.front().bytes, *rank.control);
    rank.next.assign(channels, 1);
    rank.queue_pairs.resize(ranks);
  }
}

emulator::Run Cluster::run(uint64_t limit) {
  for (unsigned r = 0; r < ranks_.size(); ++r) {
    ranks_[r].gpu->start(live_);
    emulator::spawn(nullptr, 0, [this, r] { run_nic(r); });
  }
  for (const auto& host : hosts_) emulator::spawn(nullptr, 0, host);
  return emulator::run(seed_, limit);
}

void Cluster::run_nic(unsigned me) {
  Rank& rank = ranks_[me];
  Random random(seed_ * 31 + me);
  const auto idle = [&] {
    return std::all_of(rank.queue_pairs.begin(), rank.queue_pairs.end(),
                       [](const auto& queue) { return queue.empty(); });
  };
  while (live_.load() != 0 || !idle()) {
    if (random() % 128 == 0) {  // descheduled for a while
      for (uint64_t n = random() % 256; n > 0; --n) emulator::pause();
    }
    answer_bells(me);
    const unsigned peer = static_cast<unsigned>(random() % ranks_.size());
    if (!rank.queue_pairs[peer].empty() && random() % 3 != 0) progress(rank, peer, random);
    emulator::pause();
  }
}

void Cluster::answer_bells(unsigned me) {
  Rank& rank = ranks_[me];
  for (unsigned channel = 0; channel < layout_.channels; ++channel) {
    const uint64_t sequence = rank.next[channel];
    const Bell& bell = rank.control->bells[channel][sequence & 1];
    const uint64_t signal = __atomic_load_n(&bell.signal, __ATOMIC_ACQUIRE);
    if (uint32_t(signal) != uint32_t(sequence)) continue;
    ++rank.next[channel];
    post(me, channel, sequence, bell.request, signal);
  }
}

void Cluster::post(unsigned me, unsigned channel, uint64_t sequence, uint64_t request,
                   uint64_t signal) {
  Rank& rank = ranks_[me];
  const auto payload = static_cast<Payload>(request >> Bell::kPayloadShift);
  const uint64_t bytes = request & ((uint64_t{1} << Bell::kPayloadShift) - 1);
  const uint64_t epoch = planted(Bug::single_buffering) ? 0 : sequence & 1;
  const uint64_t lane = layout_.lane(epoch, channel);
  const bool lines = payload == Payload::lines;
  const char* const mine = rank.window.front().bytes;
  for (unsigned step = 1; step < ranks_.size(); ++step) {
    const unsigned peer = (me + step) % static_cast<unsigned>(ranks_.size());
    char* const theirs = ranks_[peer].window.front().bytes;
    const uint64_t from = lines ? layout_.sent_lines(lane)
                                : layout_.sent(lane, payload == Payload::per_peer ? peer : 0);
    const uint64_t to = lines ? layout_.received_lines(lane, me) : layout_.received(lane, me);
    if (bytes > 0) rank.queue_pairs[peer].push_back({mine + from, theirs + to, bytes, 0, lines});
    if (lines) continue;
    auto& queue_pair = rank.queue_pairs[planted(Bug::signal_overtakes_data) ? me : peer];
    queue_pair.push_back({nullptr, theirs + layout_.signal(lane, me), 0, signal, false});
  }
}

// A packet of the first write in the queue: in order per peer, but its words land in any order.
void Cluster::progress(Rank& rank, unsigned peer, Random& random) {
  auto& queue = rank.queue_pairs[peer];
  Write& write = queue.front();
  if (write.bytes == 0) {
    // The receiver's acquire pairs with it: real NICs keep this order because memory regions are
    // strict.
    __atomic_store_n(reinterpret_cast<uint64_t*>(write.to), write.signal, __ATOMIC_RELEASE);
    queue.pop_front();
    return;
  }
  const size_t n = std::min<size_t>(write.bytes, size_t{16} << random() % 7);
  const size_t grain = planted(Bug::writes_of_four_bytes) ? 4 : 8;
  std::vector<size_t> order(n / grain);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t i : order) {
    if (grain == 4) {
      const auto word = reinterpret_cast<const uint32_t*>(write.from)[i];
      __atomic_store_n(reinterpret_cast<uint32_t*>(write.to) + i, word, __ATOMIC_RELAXED);
    } else {
      // Whoever sees an LL word knows that the NIC has read its source, which is release and
      // acquire; plain data proves nothing, that is what its signal is for.
      const auto word = reinterpret_cast<const uint64_t*>(write.from)[i];
      __atomic_store_n(reinterpret_cast<uint64_t*>(write.to) + i, word,
                       write.lines ? __ATOMIC_RELEASE : __ATOMIC_RELAXED);
    }
    emulator::step();
  }
  write.from += n;
  write.to += n;
  write.bytes -= n;
  if (write.bytes == 0) queue.pop_front();
}

}  // namespace rocenante::test
