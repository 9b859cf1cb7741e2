// Ranks as processes, each with an emulated GPU and a real proxy, over the transport that the
// environment asks for: the way of a GPU's bytes without the GPU.
//   emulated_ranks soak --ranks N --ops K --bytes MOST   random calls: the GPUs' bits must be those
//                                                        of the CPU executor over the same
//                                                        transport
//   emulated_ranks kill --ranks N --signal S             rank N-1 gets S while the others wait for
//                                                        it; prints how long they took to fail
// --seed S: of the calls. Over RDMA each rank takes a device of its own.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "../softroce/guest/folder_bootstrap.h"
#include "collective/communicator.h"
#include "core/error.h"
#include "device/endpoint.h"
#include "job.h"

namespace rocenante::test {
namespace {

constexpr Milliseconds kTimeout{60'000};
constexpr uint64_t kKernelTimeout = 60'000'000'000;
constexpr device::Shape kShape{2, 2048, 1024};
constexpr int kBatch = 20;  // calls that are launched at once

using Options = std::map<std::string, std::string>;

int number(const Options& o, const char* name) { return std::atoi(o.at(name).c_str()); }

// What the CPU executor makes of the call on this rank.
std::vector<char> on_cpu(Communicator& c, const Operation& o) {
  const auto rank = static_cast<size_t>(c.rank());
  const device::Call& call = o.call;
  const size_t bytes = call.count * size_of(call.dtype);
  const std::vector<char>& in = o.in[rank];
  std::vector<char> out(o.out[rank].size());
  std::vector<const void*> from;
  std::vector<void*> to;
  for (size_t r = 0; r < o.in.size(); ++r) {
    from.push_back(in.data() + r * bytes);
    to.push_back(out.data() + r * bytes);
  }
  Reduction reduction = call.reduction;
  reduction.factor = o.factors[rank];
  switch (call.collective) {
    case Collective::all_reduce:
      c.all_reduce(in.data(), out.data(), call.count, call.dtype, reduction, kTimeout);
      break;
    case Collective::reduce_scatter:
      c.reduce_scatter(from.data(), out.data(), call.count, call.dtype, reduction, kTimeout);
      break;
    case Collective::all_gather:
      c.all_gather(in.data(), to.data(), bytes, call.dtype, kTimeout);
      break;
    case Collective::all_to_all:
      c.all_to_all(from.data(), to.data(), bytes, call.dtype, kTimeout);
      break;
    default:
      out = in;
      c.broadcast(out.data(), bytes, call.dtype, call.root, kTimeout);
  }
  return out;
}

struct Rank {
  Rank(const Options& o, int rank, const Config& config)
      : size(static_cast<unsigned>(number(o, "--ranks"))),
        bootstrap(o.at("--store") + "/gpu"),
        endpoint(bootstrap, rank, number(o, "--ranks"), config, kTimeout, "guest", kShape),
        gpu(static_cast<unsigned>(rank), endpoint.layout(), 4, endpoint.window(),
            endpoint.control()) {}
  void run(uint64_t seed) {
    endpoint.proxy().wake();
    gpu.start(live);
    emulator::run(seed, UINT64_MAX, emulator::Clock::wall);
    gpu.clear();
  }
  const unsigned size;
  FolderBootstrap bootstrap;
  device::Endpoint endpoint;
  Gpu gpu;
  std::atomic<unsigned> live{0};
};

int soak(Rank& rank, const Options& o, const Config& config) {
  const unsigned me = rank.gpu.rank();
  FolderBootstrap bootstrap(o.at("--store") + "/cpu");
  Communicator cpu(bootstrap, static_cast<int>(me), static_cast<int>(rank.size), config, kTimeout,
                   "guest");
  Random random(static_cast<uint64_t>(number(o, "--seed")));  // the same calls on every rank
  uint64_t bytes = 0;
  std::string wrong;
  for (int done = 0; done < number(o, "--ops"); done += kBatch) {
    std::deque<Operation> operations;
    std::deque<Job> jobs;
    for (int i = 0; i < kBatch; ++i) {
      operations.push_back(random_operation(rank.endpoint.layout(), random,
                                            static_cast<size_t>(number(o, "--bytes"))));
      Operation& operation = operations.back();
      operation.out[me] = on_cpu(cpu, operation);
      bytes += operation.in[me].size();
      jobs.emplace_back(operation, rank.size, kKernelTimeout);
      jobs.back().add(rank.gpu, operation, wrong);
    }
    rank.run(random());
    if (const auto failure = rank.endpoint.proxy().failure()) wrong += " " + failure->what;
    if (!wrong.empty()) {
      std::printf("rank %u: %s\n", me, wrong.c_str());
      return 1;
    }
  }
  cpu.barrier(kTimeout);
  if (me == 0)
    std::printf("soak ranks=%u ops=%d bytes=%llu: every bit as on the CPU\n", rank.size,
                number(o, "--ops"), static_cast<unsigned long long>(bytes));
  return 0;
}

// A rank that is about to wait for the one that is to be killed writes a byte.
int about_to_wait[2];

void kill_once_all_wait(pid_t victim, int others, int signal) {
  char byte;
  while (others > 0 && read(about_to_wait[0], &byte, 1) == 1) --others;
  kill(victim, signal);
}

int be_killed(Rank& rank) {
  const unsigned me = rank.gpu.rank();
  Random random(1);
  Operation operation = random_operation(rank.endpoint.layout(), random);
  operation.call = {Collective::all_reduce, DType::float32, {ReduceOp::sum, 1}, 0, 100};
  operation.plan = device::make_plan(operation.call, rank.endpoint.layout(), {0, ~size_t{0}});
  operation.in_place = false;
  renew(operation, rank.size, random);
  Job job(operation, rank.size, kKernelTimeout);
  std::string wrong;
  job.add(rank.gpu, operation, wrong);
  rank.run(1);
  if (me == rank.size - 1)
    for (;;) pause();
  std::atomic<unsigned> begun{0};
  job.add_doomed(rank.gpu, begun);
  if (write(about_to_wait[1], "!", 1) != 1) return 1;
  const uint64_t start = nanoseconds();
  rank.run(2);
  const double ms = double(nanoseconds() - start) / 1e6;
  const auto failure = rank.endpoint.proxy().failure();
  std::printf("rank %u: kernel ended after %.0f ms with failure %llu: %s%s\n", me, ms,
              static_cast<unsigned long long>(rank.endpoint.control().record.failure),
              failure ? failure->what.c_str() : "no failure", wrong.c_str());
  return failure && wrong.empty() ? 0 : 1;
}

int run(int rank, const Options& o) {
  Config config = Config::from_environment();
  const std::filesystem::path devices = "/sys/class/infiniband";
  if (config.transport == "verbs" && config.ib_hca.empty()) {
    const auto count = std::distance(std::filesystem::directory_iterator(devices),
                                     std::filesystem::directory_iterator());
    config.ib_hca = "=rxe" + std::to_string(rank % count);
  }
  try {
    Rank r(o, rank, config);
    return o.at("what") == "soak" ? soak(r, o, config) : be_killed(r);
  } catch (const Error& e) {
    std::printf("rank %d: %s\n", rank, e.what());
    return 3;
  }
}

int main(int count, char** words) {
  Options o{
      {"--ranks", "2"}, {"--ops", "100"}, {"--bytes", "8192"}, {"--seed", "1"}, {"--signal", "9"}};
  if (count < 2 || count % 2 != 0) return 2;
  o["what"] = words[1];
  for (int i = 2; i < count; i += 2) o[words[i]] = words[i + 1];
  std::string store = "/tmp/emulated_ranks.XXXXXX";
  o["--store"] = mkdtemp(store.data());
  for (const char* group : {"/cpu", "/gpu"}) std::filesystem::create_directory(store + group);
  if (pipe(about_to_wait) != 0) return 2;
  std::vector<pid_t> children;
  const int ranks = number(o, "--ranks");
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      close(about_to_wait[0]);
      const int code = run(rank, o);
      std::fflush(stdout);
      _exit(code);
    }
    children.push_back(child);
  }
  close(about_to_wait[1]);
  if (o["what"] == "kill") kill_once_all_wait(children.back(), ranks - 1, number(o, "--signal"));
  int worst = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    waitpid(children[static_cast<size_t>(rank)], &status, 0);
    const bool meant = o["what"] == "kill" && rank == ranks - 1;
    if (!meant && status != 0) worst = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  std::filesystem::remove_all(store);
  return worst;
}

}  // namespace
}  // namespace rocenante::test

int main(int count, char** words) { return rocenante::test::main(count, words); }
