// Ranks as processes of one guest (or one of several guests), over the transport that the
// environment asks for:
//   verbs_ranks soak    --ranks N --ops K --bytes MOST   all-reduces of random sizes, each checked
//   verbs_ranks latency --ranks N --ops K --bytes B      prints the median of rank 0
//   verbs_ranks kill    --ranks N --signal S             rank N-1 gets S in mid-run; prints how
//                                                        long the others took to raise, and what
// --first F --here H: this guest runs ranks F .. F+H-1. --store DIR: where the ranks meet.
// --rails R: each rank has R devices of its own. --messages MOST: beside each all-reduce of the
// soak a message of random size goes round, checked as well.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "collective/communicator.h"
#include "collective/point_to_point.h"
#include "core/clock.h"
#include "core/error.h"
#include "folder_bootstrap.h"

namespace {

using namespace rocenante;
using test::FolderBootstrap;

constexpr Milliseconds kTimeout{60'000};

struct Options {
  std::map<std::string, std::string> values{
      {"--ranks", "2"},  {"--ops", "1000"}, {"--bytes", "8"}, {"--first", "0"},   {"--here", ""},
      {"--signal", "9"}, {"--store", ""},   {"--rails", "1"}, {"--messages", "0"}};
  int number(const char* name) const { return std::atoi(values.at(name).c_str()); }
};

uint32_t element(int rank, uint64_t op, size_t i) {
  uint64_t x = (uint64_t(uint32_t(rank)) << 40) ^ (op << 20) ^ i;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  return static_cast<uint32_t>(x >> 32);
}

// The words that a message from the rank before this one had wrong.
uint64_t pass_on(Communicator& c, uint64_t op, size_t words) {
  const int next = (c.rank() + 1) % c.size(), last = (c.rank() + c.size() - 1) % c.size();
  std::vector<uint32_t> out(words), in(words);
  for (size_t i = 0; i < words; ++i) out[i] = element(c.rank(), ~op, i);
  auto& messages = c.point_to_point();
  const auto recv = messages.recv(in.data(), 4 * words, DType::uint32, last, 1, kTimeout);
  const auto send = messages.send(out.data(), 4 * words, DType::uint32, next, 1, kTimeout);
  send->wait(kTimeout);
  recv->wait(kTimeout);
  uint64_t wrong = 0;
  for (size_t i = 0; i < words; ++i) wrong += in[i] != element(last, ~op, i);
  return wrong;
}

int soak(Communicator& c, const Options& o) {
  const auto most = static_cast<size_t>(o.number("--bytes"));
  std::mt19937 random(1);  // the same sizes on every rank
  uint64_t wrong = 0, bytes_moved = 0;
  const uint64_t start = nanoseconds();
  for (int op = 0; op < o.number("--ops"); ++op) {
    const double power = std::uniform_real_distribution<double>(2, std::log2(double(most)))(random);
    const size_t count = static_cast<size_t>(std::exp2(power)) / 4;
    std::vector<uint32_t> v(count);
    for (size_t i = 0; i < count; ++i) v[i] = element(c.rank(), uint64_t(op), i);
    c.all_reduce(v.data(), v.data(), count, DType::uint32, {}, kTimeout);
    for (size_t i = 0; i < count; ++i) {
      uint32_t sum = 0;
      for (int r = 0; r < c.size(); ++r) sum += element(r, uint64_t(op), i);
      wrong += v[i] != sum;
    }
    bytes_moved += 4 * count;
    if (o.number("--messages") > 0)
      wrong += pass_on(c, uint64_t(op), random() % static_cast<size_t>(o.number("--messages")) / 4);
  }
  c.barrier(kTimeout);
  if (c.rank() == 0 || wrong)
    std::printf("rank %d: soak ranks=%d ops=%d bytes=%llu wrong=%llu seconds=%.1f\n", c.rank(),
                c.size(), o.number("--ops"), static_cast<unsigned long long>(bytes_moved),
                static_cast<unsigned long long>(wrong), double(nanoseconds() - start) / 1e9);
  return wrong ? 1 : 0;
}

int latency(Communicator& c, const Options& o) {
  std::vector<char> v(static_cast<size_t>(o.number("--bytes")));
  std::vector<double> times;
  for (int op = 0; op < o.number("--ops"); ++op) {
    const uint64_t start = nanoseconds();
    c.all_reduce(v.data(), v.data(), v.size(), DType::uint8, {}, kTimeout);
    times.push_back(double(nanoseconds() - start) / 1e3);
  }
  c.barrier(kTimeout);
  std::sort(times.begin(), times.end());
  if (c.rank() == 0)
    std::printf("latency ranks=%d bytes=%zu p10=%.1f p50=%.1f us p99=%.1f us\n", c.size(), v.size(),
                times[times.size() / 10], times[times.size() / 2], times[times.size() * 99 / 100]);
  return 0;
}

int be_killed(Communicator& c, const Options& o) {
  const int victim = c.size() - 1, warm = 200;
  uint64_t start = 0;
  try {
    for (int op = 0;; ++op) {
      // The last of the ranks ends while the others wait for it.
      if (op == warm && c.rank() == victim) raise(o.number("--signal"));
      start = nanoseconds();
      uint32_t x = 1;
      c.all_reduce(&x, &x, 1, DType::uint32, {}, kTimeout);
    }
  } catch (const Error& e) {
    std::printf("rank %d: raised after %.0f ms, kind %d: %s\n", c.rank(),
                double(nanoseconds() - start) / 1e6, static_cast<int>(e.kind()), e.what());
    return 0;
  }
}

int run(int rank, const Options& o) {
  Config config = Config::from_environment();
  if (config.ib_hca.empty() && !o.values.contains("--any-device")) {
    const auto devices = std::distance(std::filesystem::directory_iterator("/sys/class/infiniband"),
                                       std::filesystem::directory_iterator());
    const int rails = o.number("--rails");
    for (int i = 0; i < rails; ++i)
      config.ib_hca += (i == 0 ? "=rxe" : ",rxe") + std::to_string((rank * rails + i) % devices);
  }
  if (config.host_id == "halves") config.host_id = 2 * rank < o.number("--ranks") ? "a" : "b";
  try {
    FolderBootstrap bootstrap(o.values.at("--store"));
    Communicator c(bootstrap, rank, o.number("--ranks"), config, kTimeout, "guest");
    if (rank == 0) {
      std::printf("all ranks have met\n");
      std::fflush(stdout);
    }
    const std::string& what = o.values.at("what");
    return what == "soak" ? soak(c, o) : what == "latency" ? latency(c, o) : be_killed(c, o);
  } catch (const Error& e) {
    std::printf("rank %d: %s\n", rank, e.what());
    return 3;
  }
}

}  // namespace

int main(int count, char** words) {
  Options o;
  if (count < 2 || count % 2 != 0) return 2;
  o.values["what"] = words[1];
  for (int i = 2; i < count; i += 2) o.values[words[i]] = words[i + 1];
  std::string own_folder = "/tmp/verbs_ranks.XXXXXX";
  if (o.values["--store"].empty()) o.values["--store"] = mkdtemp(own_folder.data());
  const int first = o.number("--first");
  const int here = o.values["--here"].empty() ? o.number("--ranks") : o.number("--here");
  std::vector<pid_t> children;
  for (int rank = first; rank < first + here; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const int code = run(rank, o);
      std::fflush(stdout);
      _exit(code);
    }
    children.push_back(child);
  }
  int worst = 0;
  for (int i = 0; i < here; ++i) {
    int status = 0;
    waitpid(children[static_cast<size_t>(i)], &status, 0);
    const bool meant = o.values["what"] == "kill" && first + i == o.number("--ranks") - 1;
    if (!meant && status != 0) worst = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  return worst;
}
