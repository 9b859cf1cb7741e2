// Which ports and addresses a pair of ranks uses, and which ports the user allows.
#include "transport/route.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "transport/group.h"
#include "transport/hca_list.h"

namespace rocenante {
namespace {

// "10.0.0.1/24" or "fe80::1/64"
Gid gid(const std::string& text) {
  const size_t slash = text.find('/');
  std::string address = text.substr(0, slash);
  int prefix = std::stoi(text.substr(slash + 1));
  if (address.find(':') == address.npos) {
    address = "::ffff:" + address;
    prefix += 96;
  }
  Gid g;
  EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), g.bytes.data()), 1) << text;
  g.prefix = static_cast<uint8_t>(prefix);
  return g;
}

Port port(const std::string& device, const std::vector<std::string>& gids) {
  Port p{device, 1, 5, {}};
  for (const auto& text : gids) p.gids.push_back(gid(text));
  return p;
}

TEST(Route, TakesTheSubnetThatBothHaveWhateverTheIndex) {
  const auto found = routes({port("a", {"fe80::1/64", "192.168.1.1/24", "10.0.0.1/24"})},
                            {port("b", {"10.0.0.2/24", "fe80::2/64"})});
  EXPECT_EQ(found, (std::vector<Route>{{{0, 0}, {2, 0}}}));
}

TEST(Route, IsTheSameSeenFromBothEnds) {
  const std::vector<Port> low{port("a", {"10.0.0.1/24"}), port("b", {"10.0.1.1/24"})};
  const std::vector<Port> high{port("x", {"10.0.1.2/24"}), port("y", {"10.0.0.2/24"})};
  EXPECT_EQ(routes(low, high), (std::vector<Route>{{{0, 1}, {0, 0}}, {{1, 0}, {0, 0}}}));
}

TEST(Route, PairsPortsOfOneSubnetByTheirPlace) {
  const std::vector<Port> low{port("a", {"10.0.0.1/24"}), port("b", {"10.0.0.2/24"})};
  const std::vector<Port> high{port("a", {"10.0.0.3/24"}), port("b", {"10.0.0.4/24"})};
  EXPECT_EQ(routes(low, high), (std::vector<Route>{{{0, 0}, {0, 0}}, {{1, 1}, {0, 0}}}));
}

TEST(Route, LinkLocalOnlyIfThereIsNothingElse) {
  const std::vector<std::string> both{"fe80::1/64", "10.0.0.1/24"};
  // Routed IPv4 before link-local.
  EXPECT_EQ(routes({port("a", both)}, {port("b", {"fe80::2/64", "10.0.9.1/24"})}),
            (std::vector<Route>{{{0, 0}, {1, 1}}}));
  EXPECT_EQ(routes({port("a", both)}, {port("b", {"fe80::2/64"})}),
            (std::vector<Route>{{{0, 0}, {0, 0}}}));
}

TEST(Route, ARoutedPortIsNoRailBesideASubnet) {
  EXPECT_EQ(routes({port("a", {"10.0.0.1/24"}), port("b", {"10.0.1.1/24"})},
                   {port("a", {"10.0.0.2/24"}), port("b", {"10.0.7.1/24"})}),
            (std::vector<Route>{{{0, 0}, {0, 0}}}));
}

TEST(Route, NoneBetweenFamilies) {
  EXPECT_TRUE(routes({port("a", {"10.0.0.1/24"})}, {port("b", {"fd00::1/64"})}).empty());
  EXPECT_TRUE(routes({}, {port("b", {"10.0.0.1/24"})}).empty());
}

TEST(Route, IsWrittenAsPeopleWriteAddresses) {
  EXPECT_EQ(text_of({port("rxe0", {"10.0.0.1/24", "fe80::1/64"})}), "rxe0:1 (10.0.0.1, fe80::1)");
}

Hello host(uint32_t rank, const std::string& id, std::vector<Port> ports) {
  Hello h;
  h.rank = rank;
  h.size = 2;
  h.host = id;
  h.hostname = "spark-" + std::to_string(rank);
  h.verbs_problem = ports.empty() ? "it has no RDMA device" : "";
  h.ports = std::move(ports);
  return h;
}

TEST(Reach, SharedMemoryOnOneHostElseRdmaElseAnErrorThatNamesBothEnds) {
  const std::vector<Port> one{port("a", {"10.0.0.1/24"})}, other{port("a", {"10.0.0.2/24"})};
  Config config;
  EXPECT_FALSE(reached_by_push(config, host(0, "x", one), host(1, "x", other)));
  EXPECT_TRUE(reached_by_push(config, host(0, "x", one), host(1, "y", other)));
  config.transport = "verbs";
  EXPECT_TRUE(reached_by_push(config, host(0, "x", one), host(1, "x", other)));
  for (const char* transport : {"auto", "verbs"}) {
    config.transport = transport;
    try {
      reached_by_push(config, host(0, "x", one), host(1, "y", {}));
      ADD_FAILURE() << transport;
    } catch (const Error& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("rank 0 (spark-0): has a:1 (10.0.0.1)"), text.npos) << text;
      EXPECT_NE(text.find("rank 1 (spark-1): it has no RDMA device"), text.npos) << text;
    }
  }
  config.transport = "shm";
  EXPECT_THROW(reached_by_push(config, host(0, "x", one), host(1, "y", other)), Error);
}

TEST(HcaList, FollowsTheSyntaxOfNccl) {
  const auto allows = [](const char* text, const char* device, int port) {
    return HcaList("V", text).allows(device, port);
  };
  EXPECT_TRUE(allows("", "mlx5_0", 1));
  EXPECT_TRUE(allows("mlx5", "mlx5_0", 1));  // the start of the name
  EXPECT_FALSE(allows("=mlx5", "mlx5_0", 1));
  EXPECT_TRUE(allows("=mlx5_0", "mlx5_0", 1));
  EXPECT_FALSE(allows("=mlx5_1", "mlx5_10", 1));
  EXPECT_TRUE(allows("mlx5_1", "mlx5_10", 1));
  EXPECT_FALSE(allows("mlx5_0:2", "mlx5_0", 1));
  EXPECT_TRUE(allows("mlx5_1,mlx5_0:2", "mlx5_0", 2));
  EXPECT_FALSE(allows("^mlx5", "mlx5_0", 1));
  EXPECT_TRUE(allows("^mlx5", "rxe0", 1));
  EXPECT_TRUE(allows("^=mlx5_1", "mlx5_10", 1));
  EXPECT_FALSE(allows("^=mlx5_1", "mlx5_1", 1));
  EXPECT_TRUE(allows("^mlx5_0:2", "mlx5_0", 1));
}

TEST(HcaList, TellsWhatNamesNothing) {
  const std::vector<std::pair<std::string, int>> present{{"rxe0", 1}, {"rxe1", 1}};
  EXPECT_EQ(HcaList("V", "rxe0,rxe7,rxe1:2").unmatched(present),
            (std::vector<std::string>{"rxe7", "rxe1:2"}));
  EXPECT_TRUE(HcaList("V", "^rxe7").unmatched(present).empty());
}

TEST(HcaList, RefusesWhatIsMalformed) {
  for (const char* text : {"^", "=", "^=", ",", "a,,b", "a:", "a:x", "a:0", "a:256", ":1"}) {
    try {
      HcaList("ROCENANTE_IB_HCA", text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::config);
      EXPECT_NE(std::string(e.what()).find("ROCENANTE_IB_HCA=\"" + std::string(text) + "\""),
                std::string::npos)
          << e.what();
    }
  }
}

}  // namespace
}  // namespace rocenante
