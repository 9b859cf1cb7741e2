#include "transport/route.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace rocenante {

namespace {

bool is_ipv4(const Gid& g) {
  constexpr uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(g.bytes.data(), mapped, sizeof mapped) == 0;
}

bool is_link_local(const Gid& g) { return g.bytes[0] == 0xfe && (g.bytes[1] & 0xc0) == 0x80; }

bool same_subnet(const Gid& a, const Gid& b) {
  if (a.prefix != b.prefix) return false;
  for (int bit = 0; bit < std::min<int>(a.prefix, 128); ++bit) {
    const auto at = static_cast<size_t>(bit / 8);
    if ((a.bytes[at] ^ b.bytes[at]) & (0x80 >> bit % 8)) return false;
  }
  return true;
}

// 0: cannot reach each other.
int fitness(const Gid& a, const Gid& b) {
  if (is_ipv4(a) != is_ipv4(b) || is_link_local(a) != is_link_local(b)) return 0;
  if (is_link_local(a)) return 1;
  const int family = is_ipv4(a) ? 1 : 0;
  return (same_subnet(a, b) ? 4 : 2) + family;
}

struct Candidate {
  int fitness;
  Route route;
  // Ports in the same place of both lists first: cabled alike, hosts name their ports alike.
  bool operator<(const Candidate& other) const {
    if (fitness != other.fitness) return fitness > other.fitness;
    const auto shift = [](const Route& r) {
      return r.port[0] > r.port[1] ? r.port[0] - r.port[1] : r.port[1] - r.port[0];
    };
    if (shift(route) != shift(other.route)) return shift(route) < shift(other.route);
    return route.port[0] < other.route.port[0];
  }
};

}  // namespace

std::vector<Route> routes(const std::vector<Port>& lower, const std::vector<Port>& higher) {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < lower.size(); ++i)
    for (size_t j = 0; j < higher.size(); ++j) {
      Candidate best{0, {}};
      for (size_t a = 0; a < lower[i].gids.size(); ++a)
        for (size_t b = 0; b < higher[j].gids.size(); ++b)
          if (const int f = fitness(lower[i].gids[a], higher[j].gids[b]); f > best.fitness)
            best = {f, {{i, j}, {a, b}}};
      if (best.fitness > 0) candidates.push_back(best);
    }
  std::sort(candidates.begin(), candidates.end());
  std::vector<Route> chosen;
  for (const Candidate& c : candidates) {
    if (c.fitness != candidates.front().fitness) break;
    const bool taken = std::any_of(chosen.begin(), chosen.end(), [&](const Route& r) {
      return r.port[0] == c.route.port[0] || r.port[1] == c.route.port[1];
    });
    if (!taken) chosen.push_back(c.route);
  }
  return chosen;
}

std::string text_of(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_ipv4(gid))
    inet_ntop(AF_INET, gid.bytes.data() + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, gid.bytes.data(), text, sizeof text);
  return text;
}

std::string text_of(const std::vector<Port>& ports) {
  std::string text;
  for (const Port& p : ports) {
    text += (text.empty() ? "" : ", ") + p.device + ":" + std::to_string(p.number) + " (";
    for (size_t i = 0; i < p.gids.size(); ++i) text += (i == 0 ? "" : ", ") + text_of(p.gids[i]);
    text += ")";
  }
  return text;
}

}  // namespace rocenante
