// Ranks of one host: every rank maps every peer's window and reads its contributions in place
// (pull). In a group of several hosts this serves the ranks of this host; see verbs/transport.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/group.h"
#include "transport/shm/memory.h"
#include "transport/transport.h"

namespace rocenante::shm {

class ShmTransport : public Transport {
 public:
  // Makes this rank's window. Then, each once: address(), attach() for every peer, and open() when
  // all ranks have attached to all.
  explicit ShmTransport(const Group& group);
  ~ShmTransport() override;
  virtual Address address();
  virtual void attach(int peer, const Address& theirs);
  virtual void open();

  char* slot(uint64_t epoch) override { return mine_->data() + layout_.slot(epoch); }
  char* inline_data(uint64_t epoch) override { return header().lines[epoch].data; }
  void publish(const Publication& publication) override;
  void sleep_for_signal(int peer, uint64_t waited, bool (*ready)(void*), void* context) override;
  void sleep_for_message(uint64_t waited, bool (*ready)(void*), void* context) override;
  void wake_self() override;
  std::optional<Loss> lost(int peer) override;
  std::string about(int peer) override;
  std::optional<CallRecord> call_of(int peer, uint64_t epoch) override;
  std::optional<uint64_t> operations_of(int peer) override;
  void count_operation(uint64_t operation) override;
  void push_fragment(int peer, uint64_t number, const Fragment& header,
                     const void* payload) override;
  const Fragment& fragment_from(int peer, uint64_t number) override;
  void push_credit(int peer, uint64_t consumed) override;
  const std::atomic<uint64_t>& credit_from(int peer) override;
  char* region() override { return mine_->data() + layout_.region(); }
  void push_region(int peer, const RegionWrite& write) override;
  void leave(const std::string& reason) override { end(reason); }
  bool has_processor_each() const override;

 protected:
  bool pushed(int peer) const { return group_.pushed[static_cast<size_t>(peer)]; }
  WindowHeader& header() { return *reinterpret_cast<WindowHeader*>(mine_->data()); }
  char* window() { return mine_->data(); }
  // What a notice says of a peer's end, wherever the notice lies.
  static std::optional<Loss> end_in(const Notice& notice);
  // Notes that this rank leaves and tells the peers on this host; false if it had done so before.
  bool end(const std::string& reason);

  const Group group_;
  const int rank_, size_;
  const Layout layout_;

 private:
  struct Peer {
    std::shared_ptr<Memory> window;  // null: it is on another host
    int pid_fd = -1;                 // readable once the process has ended
  };
  // Of a peer on this host.
  WindowHeader& header(int peer) {
    return *reinterpret_cast<WindowHeader*>(peers_[static_cast<size_t>(peer)].window->data());
  }
  bool mapped(int peer) const { return peer != rank_ && !pushed(peer); }
  void show(int peer, char* window);
  void wake_receiver(int peer);

  std::shared_ptr<Memory> mine_;
  std::vector<Peer> peers_;
};

}  // namespace rocenante::shm
