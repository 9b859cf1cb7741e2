// Ranks as threads of one process, each with a communicator of its own, meeting through a map.
// ROCENANTE_TEST_TRANSPORT says how they reach each other: shm (the default); verbs, over a RoCE
// device for each; rails, the same over two; mixed, as if the even and the odd ranks were on two
// hosts.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collective/communicator.h"
#include "core/bootstrap.h"
#include "core/error.h"

namespace rocenante::test {

inline constexpr Milliseconds kTimeout{20'000};

class MapBootstrap : public Bootstrap {
 public:
  void set(const std::string& key, const Bytes& value) override {
    std::lock_guard lock(mutex_);
    map_[key] = value;
  }
  bool check(const std::string& key) override {
    std::lock_guard lock(mutex_);
    return map_.contains(key);
  }
  Bytes get(const std::string& key) override {
    std::lock_guard lock(mutex_);
    return map_.at(key);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Bytes> map_;
};

inline std::string transport_under_test() {
  const char* transport = std::getenv("ROCENANTE_TEST_TRANSPORT");
  return transport ? transport : "shm";
}

// `config` as rank `r` must have it for the transport under test.
inline Config config_of(int r, Config config = {}) {
  const std::string transport = transport_under_test();
  if (transport == "shm") return config;
  const auto devices = std::distance(std::filesystem::directory_iterator("/sys/class/infiniband"),
                                     std::filesystem::directory_iterator());
  config.ib_hca = "=rxe" + std::to_string(r % devices);
  if (transport == "rails") config.ib_hca += ",rxe" + std::to_string((r + devices / 2) % devices);
  if (transport != "mixed")
    config.transport = "verbs";
  else
    config.host_id = r % 2 == 0 ? "even" : "odd";
  return config;
}

// Runs `body(communicator)` on `size` ranks; rethrows the lowest rank's exception.
inline void run_ranks(int size, const std::function<void(Communicator&)>& body,
                      const Config& config = {}, Milliseconds timeout = kTimeout) {
  MapBootstrap bootstrap;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      try {
        Communicator c(bootstrap, r, size, config_of(r, config), timeout, "test");
        body(c);
      } catch (...) {
        errors[static_cast<size_t>(r)] = std::current_exception();
      }
    });
  for (auto& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
}

// The Error that `f` throws, as "kind: text"; fails the test if there is none.
template <class F>
std::string error_of(F&& f, ErrorKind kind) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace rocenante::test
