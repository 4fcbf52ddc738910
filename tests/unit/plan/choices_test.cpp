#include "plan/choices.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace inrush::engine {

namespace {

Machine with_paths(std::vector<PathChoice> paths) {
  Machine machine;
  machine.paths = std::move(paths);
  return machine;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
    return error.what();
  }
  return "";
}

std::string path_refusal(PathPreference preference, const Machine& machine) {
  return refusal([&] { static_cast<void>(choose_path(preference, machine)); });
}

}  // namespace

TEST(Choices, StagedUnlessAnotherMeasuredFaster) {
  const auto automatic = [](double staged, double gds) {
    return choose_path(PathPreference::automatic,
                       with_paths({{"gds", true, "", gds}, {"staged", true, "", staged}}))
        .name;
  };
  EXPECT_EQ(automatic(0, 0), "staged");
  EXPECT_EQ(automatic(0, 9e9), "staged") << "nothing to compare with";
  EXPECT_EQ(automatic(5e9, 0), "staged");
  EXPECT_EQ(automatic(5e9, 9e9), "gds");
  EXPECT_EQ(automatic(9e9, 5e9), "staged");
  const Machine unusable = with_paths({{"staged", true, "", 5e9}, {"gds", false, "no driver", 9e9}});
  EXPECT_EQ(choose_path(PathPreference::automatic, unusable).name, "staged");
}

TEST(Choices, EqualSpeedForLessCpuIsEnoughAndTheFiguresAreSaid) {
  const auto chosen = [](double speed, double cpu_seconds) {
    return choose_path(PathPreference::automatic,
                       with_paths({{"staged", true, "", 10e9, 0.05}, {"gds", true, "", speed, cpu_seconds}}));
  };
  EXPECT_EQ(chosen(9.8e9, 0.01).name, "gds");
  EXPECT_EQ(chosen(9.8e9, 0.045).name, "staged") << "no less CPU time";
  EXPECT_EQ(chosen(9.5e9, 0.01).name, "staged") << "slower";
  EXPECT_EQ(chosen(9.8e9, 0.01).rule,
            "measured here: staged 10.0 GB/s and 0.05 CPU-s/GB, gds 9.80 GB/s and 0.01 CPU-s/GB");
  EXPECT_EQ(chosen(0, 0).rule, "measured here: staged 10.0 GB/s and 0.05 CPU-s/GB");
}

TEST(Choices, CompatModeHasToWinClearly) {
  const auto chosen = [](double speed) {
    return choose_path(PathPreference::automatic, with_paths({{"staged", true, "", 10e9, 0.05},
                                                              {"cufile-compat", true, "", speed, 0.01}}))
        .name;
  };
  EXPECT_EQ(chosen(10.4e9), "staged");
  EXPECT_EQ(chosen(10.6e9), "cufile-compat");
}

TEST(Choices, ForcedPathsSayWhyTheyCannotBe) {
  const Machine machine = with_paths({{"staged", true, "", 0}, {"gds", false, "not built: later", 0}});
  EXPECT_EQ(choose_path(PathPreference::staged, machine).name, "staged");
  EXPECT_NE(path_refusal(PathPreference::gds, machine)
                .find("\"gds\" was asked for and cannot be used: not built: later"),
            std::string::npos);
  EXPECT_NE(path_refusal(PathPreference::gds, with_paths({})).find("does not offer it"), std::string::npos);
  EXPECT_NE(path_refusal(PathPreference::automatic, with_paths({})).find("none is offered"),
            std::string::npos);
  EXPECT_NE(path_refusal(PathPreference::automatic, with_paths({{"staged", false, "no memory", 0}}))
                .find("staged: no memory"),
            std::string::npos);
}

TEST(Choices, DeviceIsMatchedByValue) {
  Machine machine;
  machine.devices = {Device{}, Device{DeviceKind::cuda, 1, ""}};
  require_device(Device{DeviceKind::cuda, 1, ""}, machine);
  const std::string text = refusal([&] { require_device(Device{DeviceKind::cuda, 0, ""}, machine); });
  EXPECT_EQ(text, "device cuda:0 is not on this machine; it has cpu, cuda:1");
  EXPECT_NE(refusal([] { require_device(Device{}, Machine{}); }).find("it has none"), std::string::npos);
}

TEST(Choices, PageCacheRule) {
  Machine machine;
  machine.host_free_bytes = 1100;
  EXPECT_EQ(choose_page_cache(PageCachePolicy::automatic, 1000, machine).policy, PageCachePolicy::keep);
  EXPECT_EQ(choose_page_cache(PageCachePolicy::automatic, 1000, machine).rule,
            "automatic: 1.00 kB and 10 % fit in the 1.10 kB of host memory that is free");
  machine.host_free_bytes = 1099;
  EXPECT_EQ(choose_page_cache(PageCachePolicy::automatic, 1000, machine).policy, PageCachePolicy::bypass);
  EXPECT_EQ(choose_page_cache(PageCachePolicy::keep, 1000, machine).policy, PageCachePolicy::keep);
  EXPECT_EQ(choose_page_cache(PageCachePolicy::keep, 1000, machine).rule, "asked for");
}

}  // namespace inrush::engine
