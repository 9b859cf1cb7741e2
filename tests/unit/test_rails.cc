// Several rails between two ranks: which stripe goes where, what a signal vouches for, and what is
// sent again when a rail is lost. tests/mutation/ takes the rules out one by one.
#include "transport/rails.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "exchange/exchange.h"
#include "exchange/signal.h"

namespace rocenante {
namespace {

TEST(Stripes, CoverTheWholeOnceWithNoneEmpty) {
  for (size_t bytes : {kStripeFrom, kStripeFrom + 1, size_t{40'001}, size_t{512} << 10})
    for (int count = 1; count <= static_cast<int>(kMaxRails); ++count) {
      size_t at = 1000;
      for (int k = 0; k < count; ++k) {
        const Part part = stripe_of({1000, bytes}, count, k);
        EXPECT_EQ(part.offset, at);
        EXPECT_GT(part.bytes, 0u);
        EXPECT_LE(part.bytes, bytes / static_cast<size_t>(count) + 256);
        at += part.bytes;
      }
      EXPECT_EQ(at, 1000 + bytes);
    }
}

TEST(Signals, HoldFingerprintStepAndNumberOfStripes) {
  const uint64_t step = (uint64_t{5} << 32) + 12345;
  for (int stripes = 1; stripes <= static_cast<int>(kMaxRails); ++stripes) {
    const uint64_t signal = striped(signal_of(0xdeadbeef, step), stripes);
    EXPECT_EQ(signal >> 32, 0xdeadbeefu);
    EXPECT_EQ(stripes_of(signal), stripes);
    EXPECT_TRUE(same_step(signal, step));
    EXPECT_FALSE(same_step(signal, step - 2));
  }
}

// A peer elsewhere whose last stripe comes late: when this rank looks whether the peer is alive.
class LateStripe final : public Transport {
 public:
  LateStripe() {
    for (int r : {0, 1})
      for (size_t epoch : {0u, 1u}) {
        views_[r].line[epoch] = &lines_[r][epoch];
        views_[r].slot[epoch] = slots_[r][epoch].data();
      }
    views_[1].pushed = true;
  }
  char* slot(uint64_t epoch) override { return slots_[0][epoch].data(); }
  char* inline_data(uint64_t epoch) override { return lines_[0][epoch].data; }
  void publish(const Publication& p) override {
    SignalLine& line = lines_[1][p.step & 1];
    line.stripes[0] = p.step;
    line.signal = striped(p.signal, 3);
    step_ = p.step;
  }
  std::optional<Loss> lost(int) override {
    slots_[1][step_ & 1].back() = 7;
    lines_[1][step_ & 1].stripes[1] = step_;
    return std::nullopt;
  }
  void sleep_for_signal(int, uint64_t, bool (*)(void*), void*) override {}
  void sleep_for_message(uint64_t, bool (*)(void*), void*) override {}
  void wake_self() override {}
  std::string about(int) override { return ""; }
  std::optional<CallRecord> call_of(int, uint64_t) override { return std::nullopt; }
  std::optional<uint64_t> operations_of(int) override { return std::nullopt; }
  void count_operation(uint64_t) override {}
  void push_fragment(int, uint64_t, const Fragment&, const void*) override {}
  const Fragment& fragment_from(int, uint64_t) override { return fragment_; }
  void push_credit(int, uint64_t) override {}
  const std::atomic<uint64_t>& credit_from(int) override { return fragment_.number; }
  char* region() override { return nullptr; }
  void push_region(int, const RegionWrite&) override {}
  void leave(const std::string&) override {}
  bool has_processor_each() const override { return true; }

  static constexpr size_t kBytes = 100'000;

 private:
  SignalLine lines_[2][2] = {};
  std::vector<char> slots_[2][2] = {{std::vector<char>(kBytes), std::vector<char>(kBytes)},
                                    {std::vector<char>(kBytes), std::vector<char>(kBytes)}};
  Fragment fragment_{};
  uint64_t step_ = 0;
};

TEST(Rails, ASignalDoesNotVouchForWhatGoesOverAnotherRail) {
  LateStripe transport;
  Exchange exchange(transport, 0, 2, "test");
  for (int i = 0; i < 3; ++i) {
    exchange.begin({}, Milliseconds(20'000));
    exchange.open(LateStripe::kBytes);
    exchange.publish(Parts::same(LateStripe::kBytes));
    EXPECT_EQ(exchange.await(1)[LateStripe::kBytes - 1], 7);
  }
}

// A sender, a receiver and the network between them, in which packets of a dead rail may come
// arbitrarily late, as long as the receiver's end of it takes any. Every choice is random.
class World {
 public:
  explicit World(unsigned seed) : random_(seed) {}

  // False if the receiver read anything but the step it waited for.
  bool run() {
    constexpr uint64_t kSteps = 40;
    for (int turn = 0; finished_ < kSteps; ++turn) {
      if (turn > 200'000) return false;  // nothing moves any more
      switch (random_() % 8) {
        case 0:
          publish();
          break;
        case 1:
          if (!read()) return false;
          break;
        case 2:
          if (random_() % 20 == 0) kill(random_() % kRails);
          break;
        case 3:
          hear();
          break;
        default:
          deliver(random_() % kRails);
      }
    }
    return true;
  }
  size_t sent_again() const { return sent_again_; }

 private:
  static constexpr size_t kRails = 3, kCell = 256, kCells = 12;
  enum class What { data, word, note };
  struct Write {
    What what;
    uint64_t step, value;  // of a note: the rail
    size_t stripe;
    Part part;
  };

  void send_stripe(uint64_t epoch, size_t k) {
    const SentStep& s = sent_[epoch];
    auto& rail = network_[s.rail[k]];
    rail.push_back({What::data, s.step, s.step, k, stripe_of(s.part, s.stripes, int(k))});
    rail.push_back({What::word, s.step, k == 0 ? s.signal : s.step, k, {}});
  }
  // As the exchange does (I1): only when the receiver's signal of the step before the last is
  // there, which it gives when it has finished with the one before that.
  void publish() {
    if (step_ > finished_ + 1) return;
    SentStep& s = sent_[++step_ & 1];
    s.step = step_;
    s.part = {0, kCells * kCell};
    s.stripes = 1 + int(random_() % live_.size());
    s.signal = striped(signal_of(0, step_), s.stripes);
    std::copy_n(live_.begin(), std::min(live_.size(), kMaxRails), s.rail);
    for (size_t k = size_t(s.stripes); k-- > 0;) send_stripe(step_ & 1, k);
  }
  bool read() {
    const uint64_t step = finished_ + 1;
    const SignalLine& line = lines_[step & 1];
    if (!arrived(line, line.signal, step)) return true;
    for (uint64_t cell : slots_[step & 1])
      if (cell != step) return false;
    finished_ = step;
    return true;
  }
  void kill(size_t rail) {
    const auto found = std::find(live_.begin(), live_.end(), uint8_t(rail));
    if (live_.size() == 1 || found == live_.end()) return;
    live_.erase(found);
    dead_.push_back(rail);
    // Whatever follows a lost packet comes no more; what is before it may.
    network_[rail].resize(random_() % (network_[rail].size() + 1));
    for (size_t dead : dead_) network_[live_[0]].push_back({What::note, 0, dead, 0, {}});
  }
  void deliver(size_t rail) {
    if (network_[rail].empty()) return;
    const Write w = network_[rail].front();
    network_[rail].pop_front();
    if (here_[rail].dropped) return;
    if (w.what == What::data)
      for (size_t at = 0; at < w.part.bytes; at += kCell)
        slots_[w.step & 1][(w.part.offset + at) / kCell] = w.step;
    else if (w.what == What::note)
      drop(w.value);
    else if (w.stripe == 0)
      lines_[w.step & 1].signal = w.value;
    else
      lines_[w.step & 1].stripes[w.stripe - 1] = w.value;
  }
  void drop(size_t rail) {
    if (here_[rail].dropped) return;
    const SignalLine* const lines[2] = {&lines_[0], &lines_[1]};
    note_steps(here_[rail], lines);
    here_[rail].dropped = 1;
    notes_.push_back(rail);
  }
  // The sender hears of a rail that the receiver gave up, and sends again what was lost.
  void hear() {
    if (!notes_.empty() && random_() % 2) {
      std::memcpy(theirs_[notes_.front()].steps, here_[notes_.front()].steps,
                  sizeof here_[0].steps);
      theirs_[notes_.front()].dropped = 1;
      notes_.pop_front();
    }
    for (size_t rail : dead_)
      for (uint64_t epoch : {0u, 1u})
        for (size_t k = 0; k < kRails; ++k) {
          if (!lost_with(rail, theirs_[rail], sent_[epoch], k)) continue;
          sent_[epoch].rail[k] = live_[k % live_.size()];
          send_stripe(epoch, k);
          ++sent_again_;
        }
  }

  std::mt19937 random_;
  // The sender's.
  uint64_t step_ = 0;
  SentStep sent_[2];
  std::vector<uint8_t> live_{0, 1, 2};
  std::vector<size_t> dead_;
  RailEnd theirs_[kRails] = {};
  size_t sent_again_ = 0;
  // The receiver's.
  uint64_t finished_ = 0;
  SignalLine lines_[2] = {};
  std::array<uint64_t, kCells> slots_[2] = {};
  RailEnd here_[kRails] = {};
  // What is under way.
  std::deque<Write> network_[kRails];
  std::deque<size_t> notes_;
};

TEST(Rails, NothingIsLostWithARailAndNothingComesTwice) {
  size_t sent_again = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    World world(seed);
    EXPECT_TRUE(world.run()) << seed;
    sent_again += world.sent_again();
    if (HasFailure()) return;
  }
  EXPECT_GT(sent_again, 1000u);
}

TEST(Rails, AFragmentIsSentAgainOnlyIfItWasLost) {
  RailEnd theirs{};
  const SentFragment sent{6, 1};
  EXPECT_FALSE(lost_with(1, theirs, sent));  // it may still come
  theirs.dropped = 1;
  EXPECT_TRUE(lost_with(1, theirs, sent));
  EXPECT_FALSE(lost_with(0, theirs, sent));  // it went over another
  theirs.fragments[6 % kRingSlots] = 6;
  EXPECT_FALSE(lost_with(1, theirs, sent));  // it came
  EXPECT_FALSE(lost_with(0, theirs, SentFragment{}));
}

}  // namespace
}  // namespace rocenante
