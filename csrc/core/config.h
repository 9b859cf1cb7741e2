// The ROCENANTE_* environment variables: one table, read once per communicator, validated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rocenante {

// Where all_reduce goes over to two steps, in groups of so many ranks.
struct OneShotLimit {
  bool several_hosts = false;  // or all ranks on one
  int ranks = 0;
  size_t bytes = 0;
};

struct Config {
  std::string transport = "auto";  // ROCENANTE_TRANSPORT: auto | shm | verbs
  std::string host_id;             // ROCENANTE_HOST_ID; empty: the kernel's identity
  std::string ib_hca;              // ROCENANTE_IB_HCA, else NCCL_IB_HCA; empty: all ports
  uint8_t ib_traffic_class = 0;    // ROCENANTE_IB_TC
  uint8_t ib_timeout = 14;         // ROCENANTE_IB_TIMEOUT
  uint8_t rails = 4;               // ROCENANTE_RAILS
  size_t slot_bytes = 512 << 10;   // ROCENANTE_SLOT_BYTES
  // ROCENANTE_ONE_SHOT_MAX_BYTES: for all groups, or (0) for some of them; else by world size.
  size_t one_shot_max_bytes = 0;
  std::vector<OneShotLimit> one_shot_limits;
  int proxy_cpu = -1;                 // ROCENANTE_PROXY_CPU; -1: any
  uint64_t init_timeout_seconds = 0;  // ROCENANTE_INIT_TIMEOUT; 0: the group's timeout
  std::string log_level = "warn";     // ROCENANTE_LOG: error | warn | info
  std::string tune_file;              // ROCENANTE_TUNE_FILE; the file that was read

  // Reads the file of `rocenante tune`, then the environment, which prevails. Throws
  // Error(ErrorKind::config) naming the variable, its value, what is allowed, and the line if it is
  // the file's; an unknown ROCENANTE_* name gives a warning on stderr with the nearest known one.
  static Config from_environment();
};

// A row of the table in the README, of `rocenante info` and of the agreement at init.
struct ConfigRow {
  std::string name;   // ROCENANTE_...
  std::string value;  // in force
  std::string default_value;
  std::string meaning;
  bool must_agree;  // every rank of a group must have the same
};
std::vector<ConfigRow> describe(const Config& config);

}  // namespace rocenante
