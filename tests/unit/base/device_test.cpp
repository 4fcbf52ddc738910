#include <inrush/device.hpp>
#include <inrush/error.hpp>

#include <gtest/gtest.h>

namespace inrush {
namespace {

TEST(Device, EverySpellingIsUnderstood) {
  EXPECT_EQ(parse_device("cpu"), Device{});
  EXPECT_EQ(parse_device("cuda"), (Device{.kind = DeviceKind::cuda}));
  EXPECT_EQ(parse_device("cuda:0"), (Device{.kind = DeviceKind::cuda}));
  EXPECT_EQ(parse_device("cuda:12"), (Device{.kind = DeviceKind::cuda, .index = 12}));
  EXPECT_EQ(parse_device("3"), (Device{.kind = DeviceKind::cuda, .index = 3}));
  EXPECT_EQ(parse_device("4294967295").index, 4294967295U);
  const std::string uuid = "F4CE0000-0011-2233-4455-66778899aabb";
  EXPECT_EQ(parse_device("GPU-" + uuid), (Device{.kind = DeviceKind::cuda, .uuid = "GPU-" + uuid}));
  EXPECT_EQ(parse_device("MIG-f4ce"), (Device{.kind = DeviceKind::cuda, .uuid = "MIG-f4ce"}));
}

TEST(Device, OtherSpellingsAreRefusedWithAdvice) {
  for (const char* spelling : {"",
                               "CPU",
                               "cpu:0",
                               "cuda:",
                               "cuda:-1",
                               "cuda:+1",
                               "cuda: 1",
                               "cuda:1 ",
                               "cuda:01",
                               "01",
                               "-1",
                               "4294967296",
                               "cuda:0x1",
                               "mps:0",
                               "gpu",
                               "GPU-",
                               "GPU-xyz",
                               "gpu-f4ce",
                               "GPU-f4ce00000011",
                               "GPU-f4ce-0000",
                               "GPU-f4ce0000-0011-2233-4455-66778899aabbc",
                               "cuda\n0"}) {
    try {
      (void)parse_device(spelling);
      ADD_FAILURE() << spelling;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_request);
      EXPECT_NE(std::string(error.what()).find("say cpu, cuda, cuda:1"), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

TEST(Device, NamesReadBack) {
  EXPECT_EQ(device_name({}), "cpu");
  for (const char* name :
       {"cpu", "cuda:0", "cuda:7", "GPU-f4ce0000", "MIG-f4ce0001-0011-2233-4455-66778899aabb"}) {
    EXPECT_EQ(device_name(parse_device(name)), name);
  }
}

}  // namespace
}  // namespace inrush
