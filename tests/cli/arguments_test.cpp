#include "cli/arguments.hpp"

#include <gtest/gtest.h>
#include <inrush/error.hpp>

#include <vector>

namespace inrush::engine {
namespace {

using std::chrono::milliseconds;

TEST(ParseSlice, NameMayHoldTheSeparators) {
  const auto [name, slice] = parse_slice("a=b:c.weight=1:20:300");
  EXPECT_EQ(name, "a=b:c.weight");
  EXPECT_EQ(slice, (Slice{1, 20, 300}));
}

TEST(ParseSlice, RefusesWhatIsNotThreeNumbers) {
  for (const char* text : {"", "w", "=0:0:1", "w=", "w=0", "w=0:1", "w=0:1:", "w=0:1:2:3", "w=-1:0:1",
                           "w=0:0:18446744073709551616", "w=4294967296:0:1", "w= 0:0:1"}) {
    EXPECT_THROW((void)parse_slice(text), Error) << text;
  }
}

TEST(ParseDuration, AcceptsUnits) {
  EXPECT_EQ(parse_duration("5"), milliseconds(5000));
  EXPECT_EQ(parse_duration("1.5s"), milliseconds(1500));
  EXPECT_EQ(parse_duration("250ms"), milliseconds(250));
  EXPECT_EQ(parse_duration("2m"), milliseconds(120'000));
  EXPECT_EQ(parse_duration("1h"), milliseconds(3'600'000));
}

TEST(ParseDuration, RefusesWhatIsNoTime) {
  for (const char* text :
       {"", "s", "0", "-1", "never", "nan", "inf", "1e300", "5 s", "5d", "99999h", "0.0000000001",
        "-18446744073709551616"}) {
    EXPECT_THROW((void)parse_duration(text), Error) << text;
  }
}

TEST(NearestWord, FindsSlipsAndNothingElse) {
  const std::vector<std::string> words = {"load", "inspect", "env", "version"};
  EXPECT_EQ(nearest_word("laod", words), "load");
  EXPECT_EQ(nearest_word("inspekt", words), "inspect");
  EXPECT_EQ(nearest_word("envs", words), "env");
  EXPECT_EQ(nearest_word("serve", words), "");
  EXPECT_EQ(nearest_word("xyz", words), "");
}

}  // namespace
}  // namespace inrush::engine
