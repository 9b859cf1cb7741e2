// Ranks as processes of one guest (or one of several guests), over the transport that the
// environment asks for:
//   verbs_ranks soak    --ranks N --ops K --bytes MOST   all-reduces of random sizes (--seed S),
//                                                        every element of every result checked
//   verbs_ranks latency --ranks N --ops K --bytes B      prints the median of rank 0
//   verbs_ranks kill    --ranks N --signal S             rank N-1 gets S in mid-run, or runs the
//                                                        shell command --do; prints how long the
//                                                        others took to raise, and what
// --first F --here H: this guest runs ranks F .. F+H-1. --store DIR: where the ranks meet.
// --rails R: each rank has R devices of its own. --messages MOST: beside each all-reduce of the
// soak a message of random size goes round, checked as well. --timeout MS: of each operation, and
// of init.
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

struct Options {
  std::map<std::string, std::string> values{
      {"--ranks", "2"}, {"--ops", "1000"}, {"--bytes", "8"},       {"--first", "0"},
      {"--here", ""},   {"--signal", "9"}, {"--store", ""},        {"--do", ""},
      {"--seed", "1"},  {"--rails", "1"},  {"--timeout", "60000"}, {"--messages", "0"}};
  Milliseconds timeout() const { return Milliseconds(number("--timeout")); }
  int number(const char* name) const { return std::atoi(values.at(name).c_str()); }
};

uint32_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<uint32_t>(x >> 32);
}

// Rank r contributes number(op, i) * factor(r): what is lost, doubled, of another operation or out
// of place gives another sum, and checking a sum takes one number() whatever the world's size.
uint32_t number(uint64_t op, size_t i) { return mixed(op << 24 ^ i); }
uint32_t factor(int rank) { return mixed(0x9e3779b97f4a7c15 * (uint64_t(uint32_t(rank)) + 1)) | 1; }

// The words that a message from the rank before this one had wrong.
uint64_t pass_on(Communicator& c, uint64_t op, size_t words, Milliseconds timeout) {
  const int next = (c.rank() + 1) % c.size(), last = (c.rank() + c.size() - 1) % c.size();
  std::vector<uint32_t> out(words), in(words);
  for (size_t i = 0; i < words; ++i) out[i] = number(op, i) * factor(c.rank());
  auto& messages = c.point_to_point();
  const auto recv = messages.recv(in.data(), 4 * words, DType::uint32, last, 1, timeout);
  const auto send = messages.send(out.data(), 4 * words, DType::uint32, next, 1, timeout);
  send->wait(timeout);
  recv->wait(timeout);
  uint64_t wrong = 0;
  for (size_t i = 0; i < words; ++i) wrong += in[i] != number(op, i) * factor(last);
  return wrong;
}

int soak(Communicator& c, const Options& o) {
  const auto most = static_cast<size_t>(o.number("--bytes"));
  const auto seed = static_cast<uint32_t>(o.number("--seed"));
  std::mt19937 random(seed);  // the same sizes on every rank
  uint32_t factors = 0;
  for (int r = 0; r < c.size(); ++r) factors += factor(r);
  uint64_t wrong = 0, bytes_moved = 0;
  int op = 0;
  const uint64_t start = nanoseconds();
  const auto tell = [&] {
    std::printf("rank %d: soak ranks=%d ops=%d bytes=%llu wrong=%llu seconds=%.1f\n", c.rank(),
                c.size(), op, static_cast<unsigned long long>(bytes_moved),
                static_cast<unsigned long long>(wrong), double(nanoseconds() - start) / 1e9);
  };
  try {
    std::vector<uint32_t> v(most / 4);
    for (; op < o.number("--ops"); ++op) {
      const double power =
          std::uniform_real_distribution<double>(2, std::log2(double(most)))(random);
      const size_t count = static_cast<size_t>(std::exp2(power)) / 4;
      const uint64_t id = uint64_t{seed} << 20 ^ uint64_t(op);
      for (size_t i = 0; i < count; ++i) v[i] = number(id, i) * factor(c.rank());
      c.all_reduce(v.data(), v.data(), count, DType::uint32, {}, o.timeout());
      for (size_t i = 0; i < count; ++i) wrong += v[i] != number(id, i) * factors;
      bytes_moved += 4 * count;
      if (const auto words = static_cast<size_t>(o.number("--messages")) / 4; words > 0)
        wrong += pass_on(c, ~id, random() % words, o.timeout());
    }
    c.barrier(o.timeout());
  } catch (const Error&) {
    tell();
    throw;
  }
  if (c.rank() == 0 || wrong) tell();
  return wrong ? 1 : 0;
}

int latency(Communicator& c, const Options& o) {
  std::vector<char> v(static_cast<size_t>(o.number("--bytes")));
  std::vector<double> times;
  for (int op = 0; op < o.number("--ops"); ++op) {
    const uint64_t start = nanoseconds();
    c.all_reduce(v.data(), v.data(), v.size(), DType::uint8, {}, o.timeout());
    times.push_back(double(nanoseconds() - start) / 1e3);
  }
  c.barrier(o.timeout());
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
      if (op == warm && c.rank() == victim) {
        const std::string& command = o.values.at("--do");
        if (command.empty())
          raise(o.number("--signal"));
        else if (std::system(command.c_str()) != 0)
          return 4;
      }
      start = nanoseconds();
      uint32_t x = 1;
      c.all_reduce(&x, &x, 1, DType::uint32, {}, o.timeout());
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
    for (int i = 0; i < rails && devices > 0; ++i)
      config.ib_hca += (i == 0 ? "=rxe" : ",rxe") + std::to_string((rank * rails + i) % devices);
  }
  if (config.host_id == "halves") config.host_id = 2 * rank < o.number("--ranks") ? "a" : "b";
  try {
    FolderBootstrap bootstrap(o.values.at("--store"));
    Communicator c(bootstrap, rank, o.number("--ranks"), config, o.timeout(), "guest");
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
