// Ranks of several hosts: contributions are pushed into the windows of peers elsewhere by RDMA
// WRITE. Among the ranks of one host everything is as in shm/transport.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/route.h"
#include "transport/shm/transport.h"
#include "transport/verbs/device.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/queue_pair.h"

namespace rocenante::verbs {

class VerbsTransport final : public shm::ShmTransport {
 public:
  VerbsTransport(const Group& group, std::shared_ptr<Devices> devices);
  Address address() override;
  void attach(int peer, const Address& theirs) override;
  // Proves that packets of full size reach every peer.
  void open() override;

  void publish(const Publication& publication) override;
  std::optional<Loss> lost(int peer) override;
  std::string about(int peer) override;
  std::optional<CallRecord> call_of(int peer, uint64_t epoch) override;
  std::optional<uint64_t> operations_of(int peer) override;
  void push_fragment(int peer, uint64_t number, const Fragment& header,
                     const void* payload) override;
  void push_credit(int peer, uint64_t consumed) override;
  void push_region(int peer, const RegionWrite& write) override;
  void leave(const std::string& reason) override;

 private:
  struct Peer {
    std::unique_ptr<QueuePair> queue_pair;  // null: it is on this host, or is this rank
    size_t port = 0, remote_port = 0;       // indices of the ports in use
    size_t gid = 0, remote_gid = 0;
    uint8_t mtu = 0;
    uint64_t window = 0;  // where its window lies in its address space
    std::string error;    // why nothing more can be sent to it
  };
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Port& local_port(const Peer& p) const { return devices_->ports()[p.port]; }
  const Port& remote_port(int rank) const;
  std::string way_to(int rank);
  Memory& memory_of(size_t port);
  Notice& notice_from(int rank);

  void push(int rank, const Publication& publication, uint32_t line_digest);
  bool make_room(int rank);
  void post(int rank, bool complete = false);
  void reap();
  void take_completion(const ibv_wc& completion);
  bool wait_for_completions(Milliseconds budget, const std::function<bool(const Peer&)>& done);
  bool ask(int rank);

  // Of all below: the calling thread posts, and so may those that drive messages, or abort.
  std::mutex mutex_;
  std::shared_ptr<Devices> devices_;
  std::map<ibv_context*, std::unique_ptr<Memory>> memories_;
  std::vector<Peer> peers_;
};

}  // namespace rocenante::verbs
