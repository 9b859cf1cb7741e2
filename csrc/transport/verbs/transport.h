// Ranks of several hosts: contributions are pushed into the windows of peers elsewhere by RDMA
// WRITE, over all rails that lead there. Among the ranks of one host everything is as in
// shm/transport.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/rails.h"
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
  // Proves that packets of full size reach every peer over every rail.
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
  struct Rail {
    std::unique_ptr<QueuePair> queue_pair;
    size_t port = 0, remote_port = 0;  // indices
    size_t gid = 0, remote_gid = 0;
    uint8_t mtu = 0;
    // Of a rail that was given up:
    std::string error;      // why; empty: it lives
    bool told = false;      // the peer was sent the note of it over a rail that lives still
    bool reported = false;  // and the user a warning
    bool mended = false;    // the peer gave it up as well, and what was lost with it was sent again
  };
  struct Peer {
    std::vector<Rail> rails;    // none: it is on this host, or is this rank
    std::vector<uint8_t> live;  // those that live; all that goes whole takes the first one
    bool ailing = false;        // a rail died, and not all is done about it yet
    uint64_t window = 0;        // where its window lies in its address space
    std::string error;          // why nothing more can be sent to it: no rail is left
    SentStep steps[2];          // by epoch
    SentFragment fragments[kRingSlots];
    uint64_t credit = 0;
  };
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Port& local_port(const Rail& rail) const { return devices_->ports()[rail.port]; }
  const Port& remote_port(int rank, const Rail& rail) const;
  std::string way_to(int rank, const Rail& rail);
  Memory& memory_of(size_t port, int queue_pairs);
  Notice& notice_from(int rank);

  void connect(int rank, size_t rail, const Address& theirs);
  // What follows is called with mutex_ held, and takes a rail by its place among the peer's. What
  // cannot be sent because the rail dies is left to mend().
  void push(int rank, const Publication& publication, uint32_t line_digest);
  void send_stripe(int rank, uint64_t epoch, size_t stripe);
  void send_fragment(int rank, uint64_t number);
  void send_credit(int rank);
  void send_notice(int rank);
  void finish_deliveries(Milliseconds patience);
  bool make_room(int rank, size_t rail);
  void post(int rank, size_t rail, bool complete = false);
  void reap();
  void take_completion(const ibv_wc& completion);
  // True if every peer that can still be reached is `done`.
  bool wait_for_completions(Milliseconds budget, const std::function<bool(const Peer&)>& done);
  static bool quiet(const Peer& peer);  // everything that was asked for has been acknowledged
  static bool delivered(const Peer& peer) { return quiet(peer) && !peer.ailing; }
  bool ask(int rank);

  // rails.cc: when one dies.
  void give_up(int rank, size_t rail, const std::string& why);
  void attend();
  void tend(int rank);
  void tell(int rank, size_t rail);
  void mend(int rank, size_t rail);
  void report(int rank);
  RailEnd& end_from(int rank, size_t rail);
  RailEnd& end_to(int rank, size_t rail);

  // Of all below: the calling thread posts, and so may those that drive messages, or abort.
  std::mutex mutex_;
  std::shared_ptr<Devices> devices_;
  std::map<ibv_context*, std::unique_ptr<Memory>> memories_;
  std::vector<Peer> peers_;
  bool ailing_ = false;  // some peer is
};

}  // namespace rocenante::verbs
