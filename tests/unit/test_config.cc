// ROCENANTE_* variables: parsed, refused, explained.
#include "core/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "collective/selector.h"
#include "core/error.h"

namespace rocenante {
namespace {

class ConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("ROCENANTE_TUNE_FILE", "", 1);  // not this user's
    folder_ = testing::TempDir() + "rocenante.XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    if (home_) setenv("HOME", home_->c_str(), 1);
    unsetenv("XDG_CONFIG_HOME");
    for (const ConfigRow& row : describe({})) unsetenv(row.name.c_str());
    unsetenv("ROCENANTE_SLOT_BITES");
    unsetenv("NCCL_IB_HCA");
  }
  static std::string refusal() {
    try {
      Config::from_environment();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::config);
      return e.what();
    }
    return {};
  }
  static std::string refusal(const char* name, const char* value) {
    setenv(name, value, 1);
    const std::string text = refusal();
    EXPECT_NE(text, "") << name << "=" << value << " was accepted";
    unsetenv(name);
    return text;
  }
  // Writes a file of settings and returns its path.
  std::string write(const std::string& text, const std::string& name = "tune.conf") const {
    const std::filesystem::path path = std::filesystem::path(folder_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }
  static std::string one_shot(const Config& config) {
    for (const ConfigRow& row : describe(config))
      if (row.name == "ROCENANTE_ONE_SHOT_MAX_BYTES") return row.value;
    return "?";
  }

  std::string folder_;
  std::optional<std::string> home_;  // to be restored
};

TEST_F(ConfigTest, DefaultsWithoutVariables) {
  for (const ConfigRow& row : describe(Config::from_environment()))
    EXPECT_EQ(row.value, row.default_value) << row.name;
}

TEST_F(ConfigTest, ReadsByteCountsWithUnits) {
  setenv("ROCENANTE_SLOT_BYTES", "64K", 1);
  EXPECT_EQ(Config::from_environment().slot_bytes, 65536u);
  setenv("ROCENANTE_SLOT_BYTES", "2M", 1);
  EXPECT_EQ(Config::from_environment().slot_bytes, 2u << 20);
  setenv("ROCENANTE_SLOT_BYTES", "20000", 1);  // whole pages
  EXPECT_EQ(Config::from_environment().slot_bytes, 16384u);
}

TEST_F(ConfigTest, RefusesWhatIsMalformedAndSaysWhatIsAllowed) {
  for (const char* value :
       {"", "x", "-1", "64KB", "1T", "4K", "2G", "99999999999999999999", " 64K"}) {
    const auto text = refusal("ROCENANTE_SLOT_BYTES", value);
    EXPECT_NE(text.find("ROCENANTE_SLOT_BYTES=\"" + std::string(value) + "\""), text.npos) << text;
    EXPECT_NE(text.find("from 16384 to"), text.npos) << text;
  }
  EXPECT_NE(refusal("ROCENANTE_TRANSPORT", "tcp").find("one of auto, shm, verbs"),
            std::string::npos);
  EXPECT_NE(refusal("ROCENANTE_INIT_TIMEOUT", "1.5").find("whole number"), std::string::npos);
  EXPECT_NE(refusal("ROCENANTE_IB_TC", "256").find("from 0 to 255"), std::string::npos);
  EXPECT_NE(refusal("ROCENANTE_IB_TIMEOUT", "0").find("from 8 to 22"), std::string::npos);
  EXPECT_NE(refusal("ROCENANTE_RAILS", "5").find("from 1 to 4"), std::string::npos);
  EXPECT_NE(refusal("ROCENANTE_LOG", "loud").find("error, warn, info"), std::string::npos);
}

TEST_F(ConfigTest, ReadsLimitsByRanksAndHosts) {
  setenv("ROCENANTE_ONE_SHOT_MAX_BYTES", "host/4:32K,hosts/2:1M", 1);
  const Config config = Config::from_environment();
  EXPECT_EQ(one_shot(config), "host/4:32768,hosts/2:1048576");
  const auto limit = [&](int ranks, bool hosts) {
    size_t bytes = 1;
    while (bytes <= 2u << 20 &&
           select_all_reduce(bytes, ranks, hosts, config) == Algorithm::one_shot)
      bytes *= 2;
    return bytes / 2;
  };
  EXPECT_EQ(limit(4, false), 32u << 10);
  EXPECT_EQ(limit(2, true), config.slot_bytes) << "no limit is above a slot";
  const Config defaults;
  for (const auto& [ranks, hosts] : {std::pair{2, false}, {8, false}, {4, true}})
    for (size_t bytes = 1; bytes <= 2u << 20; bytes *= 2)
      EXPECT_EQ(select_all_reduce(bytes, ranks, hosts, config),
                select_all_reduce(bytes, ranks, hosts, defaults));
  for (const char* value : {"host/4", "host/1:4K", "host/65:4K", "host/4:0", "node/4:4K", "/",
                            "host/4:4K;", "4:4K/host", "host/x:4K", "host/4:4K,,host/8:4K"})
    EXPECT_NE(refusal("ROCENANTE_ONE_SHOT_MAX_BYTES", value).find(value), std::string::npos);
}

TEST_F(ConfigTest, ReadsTheTunedSettingsAndLetsVariablesPrevail) {
  const std::string path =
      write("# measured\n\n  ROCENANTE_ONE_SHOT_MAX_BYTES=host/2:64K,host/8:4096 \r\n");
  setenv("ROCENANTE_TUNE_FILE", path.c_str(), 1);
  EXPECT_EQ(one_shot(Config::from_environment()), "host/2:65536,host/8:4096");
  EXPECT_EQ(Config::from_environment().tune_file, path);
  setenv("ROCENANTE_ONE_SHOT_MAX_BYTES", "8K", 1);
  EXPECT_EQ(one_shot(Config::from_environment()), "8192");
}

TEST_F(ConfigTest, FindsTheFileInTheUsersFolders) {
  unsetenv("ROCENANTE_TUNE_FILE");
  home_ = getenv("HOME") ? getenv("HOME") : "";
  setenv("HOME", folder_.c_str(), 1);
  setenv("XDG_CONFIG_HOME", "relative", 1);  // which counts as none
  EXPECT_EQ(Config::from_environment().tune_file, "");
  const std::string line = "ROCENANTE_ONE_SHOT_MAX_BYTES=";
  const std::string in_home = write(line + "1K", ".config/rocenante/tune.conf");
  EXPECT_EQ(Config::from_environment().one_shot_max_bytes, 1024u);
  const std::string in_xdg = write(line + "2K", "xdg/rocenante/tune.conf");
  setenv("XDG_CONFIG_HOME", (folder_ + "/xdg").c_str(), 1);
  EXPECT_EQ(Config::from_environment().one_shot_max_bytes, 2048u);
  setenv("ROCENANTE_TUNE_FILE", "", 1);
  EXPECT_EQ(Config::from_environment().one_shot_max_bytes, 0u);
}

TEST_F(ConfigTest, RefusesAMalformedFileAndNamesTheLine) {
  for (const auto& [text, said] :
       {std::pair{"what\n", "line 1: \"what\" is not NAME=VALUE"},
        {"\n=3", "line 2: \"=3\" is not"},
        {"ROCENANTE_LOG=info", "line 1: ROCENANTE_LOG can't be set here"},
        {"#\nROCENANTE_ONE_SHOT_MAX_BYTES=host/4:many", "line 2: ROCENANTE_ONE_SHOT_MAX_BYTES=\""},
        {"\x7f\x45\x4c\x46\x02", "line 1"}}) {
    const std::string path = write(text);
    const std::string message = refusal("ROCENANTE_TUNE_FILE", path.c_str());
    EXPECT_NE(message.find(path), message.npos) << message;
    EXPECT_NE(message.find(said), message.npos) << message;
  }
  EXPECT_NE(refusal("ROCENANTE_TUNE_FILE", "/nonexistent/x").find("No such file"),
            std::string::npos);
  EXPECT_NE(refusal("ROCENANTE_TUNE_FILE", folder_.c_str()).find("Is a directory"),
            std::string::npos);
}

TEST_F(ConfigTest, TakesTheListOfPortsFromNcclUnlessItHasOneOfItsOwn) {
  setenv("NCCL_IB_HCA", "mlx5_0", 1);
  EXPECT_EQ(Config::from_environment().ib_hca, "mlx5_0");
  setenv("ROCENANTE_IB_HCA", "=mlx5_1:1", 1);
  EXPECT_EQ(Config::from_environment().ib_hca, "=mlx5_1:1");
}

TEST_F(ConfigTest, WarnsOfAnUnknownVariableWithTheNearestName) {
  setenv("ROCENANTE_SLOT_BITES", "1", 1);
  testing::internal::CaptureStderr();
  Config::from_environment();
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("ROCENANTE_SLOT_BITES"), text.npos) << text;
  EXPECT_NE(text.find("did you mean ROCENANTE_SLOT_BYTES?"), text.npos) << text;
}

}  // namespace
}  // namespace rocenante
