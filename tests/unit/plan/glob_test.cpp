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

TEST(Glob, KnowsPatternsFromNames) {
  EXPECT_FALSE(has_wildcards("model.layers.0.weight"));
  EXPECT_TRUE(has_wildcards("model.*"));
  EXPECT_TRUE(has_wildcards("a\\*"));
}

}  // namespace inrush::engine
