// ROCENANTE_* variables: parsed, refused, explained.
#include "core/config.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/error.h"

namespace rocenante {
namespace {

class ConfigTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const ConfigRow& row : describe({})) unsetenv(row.name.c_str());
    unsetenv("ROCENANTE_SLOT_BITES");
    unsetenv("NCCL_IB_HCA");
  }
  static std::string refusal(const char* name, const char* value) {
    setenv(name, value, 1);
    try {
      Config::from_environment();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::config);
      unsetenv(name);
      return e.what();
    }
    ADD_FAILURE() << name << "=" << value << " was accepted";
    return {};
  }
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
