#include "core/config.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "core/tune_file.h"
#include "core/types.h"

extern char** environ;

namespace rocenante {

namespace {

[[noreturn]] void malformed(const std::string& name, std::string_view value,
                            const std::string& allowed) {
  throw Error(ErrorKind::config,
              name + "=\"" + std::string(value) + "\" is not valid: it must be " + allowed);
}

// A byte count: digits and, perhaps, K, M or G (powers of 1024).
size_t parse_bytes(const std::string& name, std::string_view text, size_t low, size_t high) {
  const std::string allowed = "a number of bytes from " + std::to_string(low) + " to " +
                              std::to_string(high) + ", such as 65536 or 64K";
  size_t value = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest == text.data()) malformed(name, text, allowed);
  if (rest != end) {
    constexpr std::string_view units = "KMG";
    const size_t unit = units.find(*rest);
    if (unit == units.npos || rest + 1 != end) malformed(name, text, allowed);
    const size_t bits = 10 * (unit + 1);
    if (value > (high >> bits)) malformed(name, text, allowed);
    value <<= bits;
  }
  if (value < low || value > high) malformed(name, text, allowed);
  return value;
}

std::string parse_word(const std::string& name, std::string_view text,
                       std::initializer_list<const char*> words) {
  std::string allowed;
  for (const char* word : words) {
    if (text == word) return word;
    allowed += (allowed.empty() ? "" : ", ") + std::string(word);
  }
  malformed(name, text, "one of " + allowed);
}

uint64_t parse_number(const std::string& name, std::string_view text, uint64_t low, uint64_t high,
                      const std::string& what) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value < low || value > high)
    malformed(name, text, what + " from " + std::to_string(low) + " to " + std::to_string(high));
  return value;
}

constexpr size_t kMinSlot = 16 << 10,  // so that each of kMaxRanks ranks has a lane
    kMaxSlot = 1 << 30;

// "64K" for all groups, or a list such as "host/4:32K,hosts/2:1M".
void parse_one_shot(Config& config, const std::string& name, std::string_view text) {
  config.one_shot_max_bytes = 0;
  config.one_shot_limits.clear();
  if (text.find('/') == text.npos) {
    config.one_shot_max_bytes = parse_bytes(name, text, 0, kMaxSlot);
    return;
  }
  const auto refuse = [&] {
    malformed(name, text,
              "a number of bytes, or a list of host/RANKS:BYTES (all ranks on one host) and "
              "hosts/RANKS:BYTES, such as host/4:32K,hosts/2:1M");
  };
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
    const size_t slash = entry.find('/'), colon = entry.find(':');
    const std::string_view kind = entry.substr(0, slash);
    if ((kind != "host" && kind != "hosts") || colon == entry.npos || colon < slash) refuse();
    OneShotLimit limit;
    limit.several_hosts = kind == "hosts";
    try {
      limit.ranks = static_cast<int>(
          parse_number(name, entry.substr(slash + 1, colon - slash - 1), 2, kMaxRanks, "ranks"));
      limit.bytes = parse_bytes(name, entry.substr(colon + 1), 1, kMaxSlot);
    } catch (const Error&) {  // which names a part of the value only
      refuse();
    }
    config.one_shot_limits.push_back(limit);
  }
}

std::string show_one_shot(const Config& config) {
  if (config.one_shot_limits.empty()) return std::to_string(config.one_shot_max_bytes);
  std::string text;
  for (const OneShotLimit& limit : config.one_shot_limits) {
    if (!text.empty()) text += ',';
    text += limit.several_hosts ? "hosts/" : "host/";
    text += std::to_string(limit.ranks) + ':' + std::to_string(limit.bytes);
  }
  return text;
}

constexpr const char* kTuneFile = "ROCENANTE_TUNE_FILE";
// What a file of `rocenante tune` may set.
constexpr const char* kTuned = "ROCENANTE_ONE_SHOT_MAX_BYTES";

// The one table of variables: how each is parsed, shown and explained.
struct Variable {
  const char* name;
  const char* meaning;
  bool must_agree;
  std::function<void(Config&, const std::string& name, std::string_view)> parse;
  std::function<std::string(const Config&)> show;
};

const std::vector<Variable>& variables() {
  static const std::vector<Variable> table = {
      {"ROCENANTE_TRANSPORT",
       "how ranks reach each other: auto takes shared memory on one host and RDMA between hosts; "
       "shm and verbs insist on one of them",
       true,
       [](Config& c, const std::string& n, std::string_view v) {
         c.transport = parse_word(n, v, {"auto", "shm", "verbs"});
       },
       [](const Config& c) { return c.transport; }},
      {"ROCENANTE_HOST_ID",
       "ranks with the same text count as being on one host, others as on different ones, for "
       "tests and unusual containers; empty: told by the kernel and its process ids",
       false,
       [](Config& c, const std::string& n, std::string_view v) {
         if (v.size() > 255) malformed(n, v, "at most 255 characters");
         c.host_id = v;
       },
       [](const Config& c) { return c.host_id; }},
      {"ROCENANTE_IB_HCA",
       "ports that may carry RDMA, as in NCCL_IB_HCA, which is read if this is not set: "
       "mlx5_0:1,mlx5_1; = for exact names, ^ for all but these; empty: all",
       false, [](Config& c, const std::string&, std::string_view v) { c.ib_hca = v; },
       [](const Config& c) { return c.ib_hca; }},
      {"ROCENANTE_IB_TC", "traffic class (DSCP << 2) of RDMA packets", false,
       [](Config& c, const std::string& n, std::string_view v) {
         c.ib_traffic_class = static_cast<uint8_t>(parse_number(n, v, 0, 255, "a whole number"));
       },
       [](const Config& c) { return std::to_string(c.ib_traffic_class); }},
      {"ROCENANTE_IB_TIMEOUT",
       "patience with a host that does not answer over RDMA: lost after about 7 * 4.096 us * "
       "2^this "
       "(some NICs take up to four times as long)",
       false,
       [](Config& c, const std::string& n, std::string_view v) {
         c.ib_timeout = static_cast<uint8_t>(parse_number(n, v, 8, 22, "a whole number"));
       },
       [](const Config& c) { return std::to_string(c.ib_timeout); }},
      {"ROCENANTE_RAILS",
       "most rails between two ranks: each is a port of both, used once; large contributions are "
       "spread over them, and the others go on when one fails",
       true,
       [](Config& c, const std::string& n, std::string_view v) {
         c.rails = static_cast<uint8_t>(parse_number(n, v, 1, kMaxRails, "a whole number"));
       },
       [](const Config& c) { return std::to_string(c.rails); }},
      {"ROCENANTE_SLOT_BYTES",
       "bytes of one slot: the largest piece that a rank publishes at once; a window holds two",
       true,
       [](Config& c, const std::string& n, std::string_view v) {
         c.slot_bytes = parse_bytes(n, v, kMinSlot, kMaxSlot) / 4096 * 4096;
       },
       [](const Config& c) { return std::to_string(c.slot_bytes); }},
      {"ROCENANTE_ONE_SHOT_MAX_BYTES",
       "largest all-reduce done in one step; larger ones take two: bytes, or a list such as "
       "host/4:32K,hosts/2:1M by ranks, on one host or several; 0, and what is not in the list: "
       "chosen by world size; `rocenante tune` measures it",
       true, parse_one_shot, show_one_shot},
      {"ROCENANTE_PROXY_CPU",
       "processor that the proxy thread of a group of GPUs runs on; empty: any that the process "
       "may use",
       false,
       [](Config& c, const std::string& n, std::string_view v) {
         c.proxy_cpu =
             v.empty() ? -1 : static_cast<int>(parse_number(n, v, 0, 1023, "a whole number"));
       },
       [](const Config& c) { return c.proxy_cpu < 0 ? "" : std::to_string(c.proxy_cpu); }},
      {kTuneFile,
       "file that `rocenante tune` has written; empty: none; without it rocenante/tune.conf in "
       "XDG_CONFIG_HOME or ~/.config, if there is one; variables prevail over it",
       false, [](Config&, const std::string&, std::string_view) {},
       [](const Config& c) { return c.tune_file; }},
      {"ROCENANTE_INIT_TIMEOUT",
       "seconds to wait at init for all ranks to arrive; 0: the group's own timeout", false,
       [](Config& c, const std::string& n, std::string_view v) {
         c.init_timeout_seconds = parse_number(n, v, 0, 86400, "a whole number of seconds");
       },
       [](const Config& c) { return std::to_string(c.init_timeout_seconds); }},
      {"ROCENANTE_LOG", "what is written to stderr: error, warn or info", false,
       [](Config& c, const std::string& n, std::string_view v) {
         c.log_level = parse_word(n, v, {"error", "warn", "info"});
       },
       [](const Config& c) { return c.log_level; }},
  };
  return table;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

void warn_unknown(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> warned;  // once a process, not once a group
  {
    std::lock_guard lock(mutex);
    if (!warned.insert(name).second) return;
  }
  const auto& table = variables();
  auto nearest = std::min_element(table.begin(), table.end(), [&](const auto& a, const auto& b) {
    return edit_distance(name, a.name) < edit_distance(name, b.name);
  });
  log(LogLevel::warn,
      "unknown variable " + name + " is ignored; did you mean " + nearest->name + "?");
}

}  // namespace

Config Config::from_environment() {
  Config config;
  if (const char* hca = getenv("NCCL_IB_HCA")) config.ib_hca = hca;
  const TuneFile file = read_tune_file();
  config.tune_file = file.path;
  for (const TunedSetting& setting : file.settings) {
    if (setting.name != kTuned)
      throw Error(ErrorKind::config,
                  setting.where + ": " + setting.name + " can't be set here, only " + kTuned);
    try {
      parse_one_shot(config, setting.name, setting.value);
    } catch (const Error& e) {
      throw Error(ErrorKind::config, setting.where + ": " + e.what());
    }
  }
  constexpr std::string_view prefix = "ROCENANTE_";
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (!text.starts_with(prefix) || equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals));
    const auto& table = variables();
    auto row =
        std::find_if(table.begin(), table.end(), [&](const auto& v) { return name == v.name; });
    if (row == table.end())
      warn_unknown(name);
    else
      row->parse(config, name, text.substr(equals + 1));
  }
  set_log_level(config.log_level == "info"    ? LogLevel::info
                : config.log_level == "error" ? LogLevel::error
                                              : LogLevel::warn);
  return config;
}

std::vector<ConfigRow> describe(const Config& config) {
  const Config defaults;
  std::vector<ConfigRow> rows;
  for (const Variable& v : variables())
    rows.push_back({v.name, v.show(config), v.show(defaults), v.meaning, v.must_agree});
  return rows;
}

}  // namespace rocenante
