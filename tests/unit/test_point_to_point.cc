// send and recv: matching by tag, order, messages longer than the ring, failures.
#include "collective/point_to_point.h"

#include "ranks.h"
#include "window/layout.h"

namespace rocenante::test {
namespace {

std::vector<char> message(int tag, size_t bytes) {
  std::vector<char> v(bytes);
  for (size_t i = 0; i < bytes; ++i)
    v[i] = static_cast<char>((i * 31 + static_cast<size_t>(tag)) % 251);
  return v;
}

std::shared_ptr<Transfer> send(Communicator& c, const std::vector<char>& v, int to, int tag,
                               Milliseconds timeout = kTimeout) {
  return c.point_to_point().send(v.data(), v.size(), DType::uint8, to, tag, timeout);
}

std::shared_ptr<Transfer> recv(Communicator& c, std::vector<char>& v, int from, int tag,
                               Milliseconds timeout = kTimeout) {
  return c.point_to_point().recv(v.data(), v.size(), DType::uint8, from, tag, timeout);
}

TEST(PointToPoint, MovesMessagesOfAnySizeBothWaysAtOnce) {
  run_ranks(2, [](Communicator& c) {
    const int peer = 1 - c.rank();
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, kFragmentBytes, kFragmentBytes + 1,
                         size_t{3'000'001}}) {
      const auto out = message(c.rank(), bytes);
      std::vector<char> in(bytes);
      auto s = send(c, out, peer, 0);
      auto r = recv(c, in, peer, 0);
      s->wait(kTimeout);
      r->wait(kTimeout);
      ASSERT_EQ(in, message(peer, bytes));
      ASSERT_EQ(r->source(), peer);
    }
  });
}

TEST(PointToPoint, MatchesByTagWhateverTheOrder) {
  run_ranks(2, [](Communicator& c) {
    const std::vector<size_t> sizes{100, 400'000, 7, 90'000};
    if (c.rank() == 0) {
      for (int tag = 0; tag < 4; ++tag)
        send(c, message(tag, sizes[static_cast<size_t>(tag)]), 1, tag)->wait(kTimeout);
    } else {
      for (int tag : {3, 1, 0, 2}) {
        std::vector<char> in(sizes[static_cast<size_t>(tag)]);
        recv(c, in, 0, tag)->wait(kTimeout);
        ASSERT_EQ(in, message(tag, in.size())) << tag;
      }
    }
  });
}

TEST(PointToPoint, SameTagArrivesInOrder) {
  run_ranks(2, [](Communicator& c) {
    for (int i = 0; i < 300; ++i) {
      if (c.rank() == 0) {
        send(c, message(i, 50), 1, 5)->wait(kTimeout);
      } else {
        std::vector<char> in(50);
        recv(c, in, 0, 5)->wait(kTimeout);
        ASSERT_EQ(in, message(i, 50));
      }
    }
  });
}

TEST(PointToPoint, ReceivesFromAnySource) {
  run_ranks(4, [](Communicator& c) {
    if (c.rank() != 0) {
      send(c, message(c.rank(), 1000), 0, 9)->wait(kTimeout);
      return;
    }
    std::vector<bool> seen(4);
    for (int i = 1; i < 4; ++i) {
      std::vector<char> in(1000);
      auto r = recv(c, in, kAnySource, 9);
      r->wait(kTimeout);
      ASSERT_EQ(in, message(r->source(), 1000));
      ASSERT_FALSE(seen[static_cast<size_t>(r->source())]);
      seen[static_cast<size_t>(r->source())] = true;
    }
  });
}

TEST(PointToPoint, ABlockedRecvHoldsUpNoCollective) {
  run_ranks(2, [](Communicator& c) {
    std::vector<char> in(10);
    std::shared_ptr<Transfer> r;
    if (c.rank() == 0) r = recv(c, in, 1, 0);
    for (int i = 0; i < 100; ++i) c.barrier(kTimeout);
    if (c.rank() == 1) send(c, message(1, 10), 0, 0)->wait(kTimeout);
    if (r) r->wait(kTimeout);
  });
}

TEST(PointToPoint, ALargeSendProgressesWhileNobodyWaitsForIt) {
  run_ranks(2, [](Communicator& c) {
    const auto out = message(3, 2'000'000);
    std::vector<char> in(out.size());
    if (c.rank() == 0) {
      auto s = send(c, out, 1, 0);
      c.barrier(kTimeout);  // reached by rank 1 only after it has everything
      // Whoever sent the last fragment has yet to say so.
      for (const Deadline deadline(kTimeout); !s->done() && !deadline.passed();)
        std::this_thread::yield();
      EXPECT_TRUE(s->done());
      s->wait(kTimeout);  // before its data goes
    } else {
      recv(c, in, 0, 0)->wait(kTimeout);
      ASSERT_EQ(in, out);
      c.barrier(kTimeout);
    }
  });
}

TEST(PointToPoint, DifferentSizesFailTheRecvAndNameBoth) {
  run_ranks(2, [](Communicator& c) {
    if (c.rank() == 0) {
      send(c, message(0, 40), 1, 0)->wait(kTimeout);
      send(c, message(7, 30), 1, 0)->wait(kTimeout);
    } else {
      std::vector<char> in(80);
      auto r = recv(c, in, 0, 0);
      const auto text = error_of([&] { r->wait(kTimeout); }, ErrorKind::mismatch);
      EXPECT_NE(text.find("80 bytes"), text.npos) << text;
      EXPECT_NE(text.find("rank 0 sent uint8, 40 bytes"), text.npos) << text;
      std::vector<char> next(30);  // the channel survives
      recv(c, next, 0, 0)->wait(kTimeout);
      ASSERT_EQ(next, message(7, 30));
    }
  });
}

TEST(PointToPoint, ARecvNobodyServesTimesOut) {
  run_ranks(2, [](Communicator& c) {
    if (c.rank() == 0) {
      std::vector<char> in(8);
      auto r = recv(c, in, 1, 42, Milliseconds(100));
      const auto text = error_of([&] { r->wait(kTimeout); }, ErrorKind::timeout);
      EXPECT_NE(text.find("tag 42"), text.npos) << text;
      EXPECT_NE(text.find("rank 1"), text.npos) << text;
    }
    c.barrier(kTimeout);
  });
}

TEST(PointToPoint, AShortWaitLeavesTheTransferUnderWay) {
  run_ranks(2, [](Communicator& c) {
    std::vector<char> in(8);
    if (c.rank() == 0) {
      auto r = recv(c, in, 1, 0);
      error_of([&] { r->wait(Milliseconds(30)); }, ErrorKind::timeout);
      ASSERT_FALSE(r->done());
      c.barrier(kTimeout);
      r->wait(kTimeout);
      ASSERT_EQ(in, message(1, 8));
    } else {
      c.barrier(kTimeout);
      send(c, message(1, 8), 0, 0)->wait(kTimeout);
    }
  });
}

TEST(PointToPoint, ACancelledSendInMidMessageFailsItsRecvOnly) {
  run_ranks(2, [](Communicator& c) {
    const auto big = message(1, 1'000'000), small = message(2, 10);
    if (c.rank() == 0) {
      auto s = send(c, big, 1, 0);  // fills the ring
      c.point_to_point().cancel(s);
      error_of([&] { s->wait(kTimeout); }, ErrorKind::aborted);
      c.barrier(kTimeout);
      send(c, small, 1, 1)->wait(kTimeout);
      c.barrier(kTimeout);
    } else {
      c.barrier(kTimeout);
      std::vector<char> in(big.size()), next(10);
      auto r = recv(c, in, 0, 0);
      auto n = recv(c, next, 0, 1);
      const auto text = error_of([&] { r->wait(kTimeout); }, ErrorKind::peer_lost);
      EXPECT_NE(text.find("gave up"), text.npos) << text;
      n->wait(kTimeout);
      ASSERT_EQ(next, small);
      c.barrier(kTimeout);
    }
  });
}

TEST(PointToPoint, APeerThatLeavesFailsTheRecv) {
  run_ranks(2, [](Communicator& c) {
    if (c.rank() == 1) return;
    std::vector<char> in(8);
    auto r = recv(c, in, 1, 0);
    const auto text = error_of([&] { r->wait(kTimeout); }, ErrorKind::peer_lost);
    EXPECT_NE(text.find("rank 1 is lost"), text.npos) << text;
  });
}

TEST(PointToPoint, RefusesRanksThatAreNoPeers) {
  run_ranks(1, [](Communicator& c) {
    std::vector<char> v(1);
    for (int rank : {-2, 0, 1}) {
      error_of([&] { send(c, v, rank, 0); }, ErrorKind::usage);
      error_of([&] { recv(c, v, rank, 0); }, ErrorKind::usage);
    }
  });
}

}  // namespace
}  // namespace rocenante::test
