#include "checkpoint/name_table.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace inrush::engine {

namespace {

TEST(NameTable, FindsEachOfManyNamesAndNoOther) {
  std::vector<std::string> names;
  for (int i = 0; i < 10'000; ++i) names.push_back("layer." + std::to_string(i));
  const auto name_at = [&](std::uint32_t index) { return std::string_view(names[index]); };
  NameTable table(names.size(), 7);
  for (std::uint32_t i = 0; i < names.size(); ++i) EXPECT_FALSE(table.insert(i, name_at));
  for (std::uint32_t i = 0; i < names.size(); ++i) EXPECT_EQ(table.find(names[i], name_at), i);
  EXPECT_FALSE(table.find("layer.10000", name_at));
  EXPECT_FALSE(table.find("", name_at));
}

TEST(NameTable, ReportsTheFirstOfTwoAlike) {
  const std::vector<std::string_view> names = {"a", "b", "c", "b"};
  const auto name_at = [&](std::uint32_t index) { return names[index]; };
  NameTable table(names.size(), 0);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_FALSE(table.insert(i, name_at));
  EXPECT_EQ(table.insert(3, name_at), 1U);
  EXPECT_EQ(table.find("b", name_at), 1U);
}

TEST(NameTable, EmptyOnesFindNothing) {
  const auto name_at = [](std::uint32_t) { return std::string_view(); };
  EXPECT_FALSE(NameTable().find("a", name_at));
  EXPECT_FALSE(NameTable(0, 1).find("a", name_at));
}

}  // namespace

}  // namespace inrush::engine
