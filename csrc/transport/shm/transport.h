// Ranks of one host: every rank maps every peer's window and reads its contributions in place
// (pull).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/bootstrap.h"
#include "core/clock.h"
#include "transport/shm/address.h"
#include "transport/shm/memory.h"
#include "transport/transport.h"

namespace rocenante::shm {

class ShmTransport final : public Transport {
 public:
  // Publishes this rank's address, attaches to all peers' windows and waits until all have attached
  // to this one, at most `timeout`. `config` rows that differ from rank 0's raise on every rank.
  ShmTransport(Bootstrap& bootstrap, int rank, int size, size_t slot_bytes,
               std::vector<std::pair<std::string, std::string>> config, Milliseconds timeout);
  ~ShmTransport() override;

  char* slot(uint64_t epoch) override { return mine_->data() + layout_.slot(epoch); }
  char* inline_data(uint64_t epoch) override { return header().lines[epoch].data; }
  void publish(const Publication& publication) override;
  void sleep_for_signal(int peer, bool (*ready)(void*), void* context) override;
  void sleep_for_message(bool (*ready)(void*), void* context) override;
  void wake_self() override;
  std::optional<Loss> lost(int peer) override;
  std::string about(int peer) override;
  CallRecord call_of(int peer, uint64_t epoch) override { return header(peer).calls[epoch]; }
  uint64_t operations_of(int peer) override;
  void count_operation(uint64_t operation) override;
  void push_fragment(int peer, uint64_t number, const Fragment& header,
                     const void* payload) override;
  const Fragment& fragment_from(int peer, uint64_t number) override;
  void push_credit(int peer, uint64_t consumed) override;
  const std::atomic<uint64_t>& credit_from(int peer) override;
  void leave(const std::string& reason) override;
  int local_ranks() const override { return size_; }

 private:
  struct Peer {
    Address address;
    std::shared_ptr<Memory> window;
    int pid_fd = -1;  // readable once the process has ended
    std::string last_problem;
  };
  WindowHeader& header() { return *reinterpret_cast<WindowHeader*>(mine_->data()); }
  WindowHeader& header(int peer) {
    return *reinterpret_cast<WindowHeader*>(peers_[static_cast<size_t>(peer)].window->data());
  }
  void make_window();
  void attach_all(Bootstrap& bootstrap, Milliseconds timeout);
  bool try_attach(Bootstrap& bootstrap, int peer);
  void check_config(const Address& theirs) const;
  void wake_receiver(int peer);
  [[noreturn]] void raise_missing(const Deadline& deadline);

  const int rank_, size_;
  const Layout layout_;
  Address address_;
  std::shared_ptr<Memory> mine_;
  std::vector<Peer> peers_;
};

}  // namespace rocenante::shm
