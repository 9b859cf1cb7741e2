#include "transport/meet.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "core/error.h"
#include "transport/group.h"
#include "transport/shm/transport.h"
#ifdef ROCENANTE_VERBS
#include "transport/verbs/transport.h"
#endif

namespace rocenante {

namespace {

#ifndef ROCENANTE_VERBS
constexpr const char* kNoVerbs =
    "this build has no RDMA: infiniband/verbs.h was not there when it was made";
#endif

std::string hostname() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

uint64_t random_nonce() {
  uint64_t nonce = 0;
  while (nonce == 0)
    if (getrandom(&nonce, sizeof nonce, 0) < 0 && errno != EINTR)
      throw Error(ErrorKind::system, with_errno("getrandom", errno));
  return nonce;
}

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

// Three keys a rank, each overwritten as the meeting goes on: hello/<r>, address/<r>, attached/<r>.
// Address and attached carry the generation, the hash of all ranks' hellos. The store may still
// hold what an earlier group of the same name left there: whoever takes an old hello for new gets
// another generation, is not listened to, and starts over when the hello changes.
class Meeting {
 public:
  Meeting(Bootstrap& bootstrap, int rank, int size, const Config& config,
          std::vector<std::pair<std::string, std::string>> agreed, Milliseconds timeout,
          size_t region_bytes)
      : bootstrap_(bootstrap), deadline_(timeout) {
    group_.rank = rank;
    group_.region_bytes = region_bytes;
    group_.config = config;
    group_.hellos.resize(static_cast<size_t>(size));
    heard_.resize(static_cast<size_t>(size));
    Hello& mine = group_.hellos[static_cast<size_t>(rank)];
    mine.rank = static_cast<uint32_t>(rank);
    mine.size = static_cast<uint32_t>(size);
    mine.pid = getpid();
    mine.nonce = random_nonce();
    mine.machine = machine_identity();
    mine.host = config.host_id.empty() ? host_identity() : "ROCENANTE_HOST_ID " + config.host_id;
    mine.hostname = hostname();
    mine.processors = usable_processors();
    mine.config = std::move(agreed);
    heard_[static_cast<size_t>(rank)] = bytes_of(mine.nonce);
#ifdef ROCENANTE_VERBS
    if (config.transport != "shm") {
      devices_ = verbs::Devices::open(config, mine.verbs_problem);
      mine.ports = devices_->ports();
    }
#else
    mine.verbs_problem = kNoVerbs;
#endif
    bootstrap.set("hello/" + std::to_string(rank), encode(mine));
  }

  std::unique_ptr<Transport> run() {
    Milliseconds nap{1};
    for (;;) {
      if (hear_hellos() || !transport_) start_over();
      if (transport_ && attach_peers() && all_attached()) break;
      if (deadline_.passed()) raise_missing();
      std::this_thread::sleep_for(nap);
      nap = std::min(nap * 2, Milliseconds(20));
    }
    try {
      transport_->open();
    } catch (const Error& e) {
      transport_->leave(e.what());
      throw;
    }
    return std::move(transport_);
  }

 private:
  static Bytes bytes_of(uint64_t number) {
    const auto* p = reinterpret_cast<const uint8_t*>(&number);
    return {p, p + sizeof number};
  }
  std::optional<Bytes> look(const char* what, int rank) {
    const std::string key = what + std::to_string(rank);
    if (!bootstrap_.check(key)) return std::nullopt;
    return bootstrap_.get(key);
  }

  // True if something new was heard.
  bool hear_hellos() {
    bool news = false;
    for (int r = 0; r < group_.size(); ++r) {
      Bytes& heard = heard_[static_cast<size_t>(r)];
      if (r == group_.rank || is_attached(r)) continue;
      auto blob = look("hello/", r);
      if (!blob || (*blob == heard && !heard.empty())) continue;
      Hello hello = decode_hello(*blob);
      if (hello.rank != static_cast<uint32_t>(r) ||
          hello.size != static_cast<uint32_t>(group_.size())) {
        problem_ = "rank " + std::to_string(r) + " announced itself as rank " +
                   std::to_string(hello.rank) + " of " + std::to_string(hello.size);
        continue;
      }
      check_config(hello);
      group_.hellos[static_cast<size_t>(r)] = std::move(hello);
      heard = std::move(*blob);
      news = true;
    }
    return news;
  }

  void check_config(const Hello& theirs) const {
    const Hello& mine = group_.hello(group_.rank);
    const auto variable_of = [](const auto& row) { return row.first; };
    if (!std::ranges::equal(mine.config, theirs.config, {}, variable_of, variable_of))
      throw Error(ErrorKind::config, "rank " + std::to_string(theirs.rank) + " and rank " +
                                         std::to_string(group_.rank) +
                                         " do not have the same settings to agree on: install the "
                                         "same rocenante on every host");
    for (size_t i = 0; i < mine.config.size(); ++i) {
      const auto& [variable, value] = mine.config[i];
      if (theirs.config[i].second != value)
        throw Error(ErrorKind::config, variable + " is \"" + theirs.config[i].second +
                                           "\" on rank " + std::to_string(theirs.rank) + " but \"" +
                                           value + "\" on rank " + std::to_string(group_.rank) +
                                           ": set it alike on all ranks");
    }
  }

  // All ranks that are heard of: makes the window and says where it is.
  void start_over() {
    for (const Bytes& heard : heard_)
      if (heard.empty()) return;
    group_.generation = generation_of(group_.hellos);
    group_.any_pushed = false;
    group_.pushed.assign(group_.hellos.size(), false);
    // Every rank looks at every pair, so that all of them raise if one pair does not fit.
    for (int a = 0; a < group_.size(); ++a)
      for (int b = 0; b < a; ++b) {
        const bool pushed = reached_by_push(group_.config, group_.hello(b), group_.hello(a));
        group_.any_pushed |= pushed;
        if (a == group_.rank || b == group_.rank)
          group_.pushed[static_cast<size_t>(a + b - group_.rank)] = pushed;
      }
    attached_.assign(group_.hellos.size(), false);
    told_ = false;
    Address mine;
    try {
      transport_.reset();
      transport_ = make_transport();
      mine = transport_->address();
    } catch (const Error& e) {
      tell_of_failure(e);
      throw;
    }
    mine.rank = static_cast<uint32_t>(group_.rank);
    mine.generation = group_.generation;
    bootstrap_.set("address/" + std::to_string(group_.rank), encode(mine));
  }

  void tell_of_failure(const Error& e) {
    Address mine;
    mine.rank = static_cast<uint32_t>(group_.rank);
    mine.generation = group_.generation;
    mine.problem = e.what();
    bootstrap_.set("address/" + std::to_string(group_.rank), encode(mine));
  }

  std::unique_ptr<shm::ShmTransport> make_transport() {
#ifdef ROCENANTE_VERBS
    if (group_.any_pushed) return std::make_unique<verbs::VerbsTransport>(group_, devices_);
#endif
    return std::make_unique<shm::ShmTransport>(group_);
  }

  // True once this rank has attached to all of them, and has told so.
  bool attach_peers() {
    bool all = true;
    for (int r = 0; r < group_.size(); ++r) {
      if (r == group_.rank || is_attached(r)) continue;
      const auto blob = look("address/", r);
      const auto theirs = blob ? std::optional(decode_address(*blob)) : std::nullopt;
      if (!theirs || theirs->generation != group_.generation) {
        all = false;
        continue;
      }
      if (!theirs->problem.empty())
        throw Error(ErrorKind::peer_lost,
                    "rank " + std::to_string(r) + " failed at init: " + theirs->problem);
      try {
        transport_->attach(r, *theirs);
      } catch (const Error& e) {
        tell_of_failure(e);
        throw;
      }
      attached_[static_cast<size_t>(r)] = true;
    }
    if (all && !std::exchange(told_, true))
      bootstrap_.set("attached/" + std::to_string(group_.rank), bytes_of(group_.generation));
    return all;
  }

  bool is_attached(int r) const { return !attached_.empty() && attached_[static_cast<size_t>(r)]; }

  bool has_told(int r) {
    const auto blob = look("attached/", r);
    return blob && *blob == bytes_of(group_.generation);
  }

  bool all_attached() {
    for (int r = 0; r < group_.size(); ++r) {
      if (r == group_.rank || has_told(r)) continue;
      // It may have failed on its side meanwhile.
      const auto blob = look("address/", r);
      if (const auto theirs = decode_address(*blob); !theirs.problem.empty())
        throw Error(ErrorKind::peer_lost,
                    "rank " + std::to_string(r) + " failed at init: " + theirs.problem);
      return false;
    }
    return true;
  }

  template <class Predicate>
  std::vector<int> ranks_that(Predicate predicate) const {
    std::vector<int> ranks;
    for (int r = 0; r < group_.size(); ++r)
      if (r != group_.rank && predicate(r)) ranks.push_back(r);
    return ranks;
  }

  [[noreturn]] void raise_missing() {
    // Those never heard of hold up all others: only if there are none are these to be named.
    std::vector<int> missing =
        ranks_that([&](int r) { return heard_[static_cast<size_t>(r)].empty(); });
    if (missing.empty()) missing = ranks_that([&](int r) { return !is_attached(r); });
    if (missing.empty()) missing = ranks_that([&](int r) { return !has_told(r); });
    throw Error(ErrorKind::timeout,
                list(missing) + " of " + std::to_string(group_.size()) + " did not arrive within " +
                    std::to_string(deadline_.budget().count()) + " ms" +
                    (problem_.empty() ? "" : "; " + problem_) +
                    ". Check that every rank was started with the same world size and address, and "
                    "did not fail before");
  }

  Bootstrap& bootstrap_;
  const Deadline deadline_;
  Group group_;
  std::vector<Bytes> heard_;  // each rank's hello as it was in the store
#ifdef ROCENANTE_VERBS
  std::shared_ptr<verbs::Devices> devices_;
#endif
  std::unique_ptr<shm::ShmTransport> transport_;
  std::vector<bool> attached_;  // by rank: this rank has attached to it
  bool told_ = false;
  std::string problem_;
};

}  // namespace

std::unique_ptr<Transport> meet(Bootstrap& bootstrap, int rank, int size, const Config& config,
                                std::vector<std::pair<std::string, std::string>> agreed,
                                Milliseconds timeout, size_t region_bytes) {
  return Meeting(bootstrap, rank, size, config, std::move(agreed), timeout, region_bytes).run();
}

std::string verbs_problem() {
#ifdef ROCENANTE_VERBS
  std::string problem;
  try {
    verbs::Devices::open(Config::from_environment(), problem);
  } catch (const Error& e) {
    problem = e.what();
  }
  return problem;
#else
  return kNoVerbs;
#endif
}

}  // namespace rocenante
