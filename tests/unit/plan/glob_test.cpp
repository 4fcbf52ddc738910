#include "plan/glob.hpp"

#include <gtest/gtest.h>

#include <string>

namespace inrush::engine {

namespace {

struct Case {
  const char* pattern;
  const char* name;
  bool matches;
};

}  // namespace

TEST(Glob, LiteralOf) {
  EXPECT_EQ(literal_of("a.b"), "a.b");
  EXPECT_EQ(literal_of(R"(a\[0\]\*\?\\)"), R"(a[0]*?\)");
  EXPECT_EQ(literal_of("a\\"), "a\\");
  for (const char* pattern : {"*", "a?", "a[0]", R"(\[0[)", R"(\\*)"})
    EXPECT_EQ(literal_of(pattern), std::nullopt);
}

TEST(Glob, Table) {
  const Case cases[] = {
      {"", "", true},
      {"", "a", false},
      {"*", "", true},
      {"*", "model.layers.0.weight", true},
      {"model.*.weight", "model.layers.0.weight", true},
      {"model.*.weight", "model.layers.0.weights", false},
      {"*.weight", "a.weight.weight", true},
      {"a*b*c", "aXbYbZc", true},
      {"a*b*c", "aXbYbZ", false},
      {"**", "x", true},
      {"layers.?.w", "layers.7.w", true},
      {"layers.?.w", "layers.17.w", false},
      {"layers.[0-3].w", "layers.2.w", true},
      {"layers.[0-3].w", "layers.4.w", false},
      {"layers.[!0-3].w", "layers.4.w", true},
      {"layers.[^0-3].w", "layers.1.w", false},
      {"[]]", "]", true},
      {"[a-]", "-", true},
      {"[abc", "[abc", true},
      {"[abc", "a", false},
      {"[[[", "[[[", true},
      {"[a]]", "a]", true},
      {"a][b", "a][b", true},
      {"[!]", "[!]", true},
      {"[!]]", "]", false},
      {"[a-]", "b", false},
      {"*[[", "a[[", true},
      {"a\\*", "a*", true},
      {"a\\*", "ab", false},
      {"a\\", "a\\", true},
      {"gr?n", "grün", true},
      {"gr[ä-ü]n", "grün", true},
      {"gr[!ü]n", "grün", false},
      {"gr?n", "gr\xC3n", true},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(glob_matches(one.pattern, one.name), one.matches) << one.pattern << " on " << one.name;
  }
}

// Backtracking into every star would take longer than the test suite may.
TEST(Glob, ManyStarsStayCheap) {
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "*a";
  EXPECT_FALSE(glob_matches(pattern + "b", std::string(2000, 'a')));
}

// Looking for the end of each set again for each character would take 10^11 steps.
TEST(Glob, ManyOpenBracketsStayCheap) {
  const std::string brackets(10'000, '[');
  EXPECT_FALSE(glob_matches("*" + brackets.substr(0, 5'000) + "b", brackets));
}

TEST(Glob, KnowsPatternsFromNames) {
  EXPECT_FALSE(has_wildcards("model.layers.0.weight"));
  EXPECT_TRUE(has_wildcards("model.*"));
  EXPECT_TRUE(has_wildcards("a\\*"));
}

}  // namespace inrush::engine
