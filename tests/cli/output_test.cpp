#include "cli/output.hpp"

#include <gtest/gtest.h>

namespace inrush::engine {
namespace {

TEST(ExitCode, IsThatOfTheDocumentation) {
  EXPECT_EQ(exit_code(ErrorCode::invalid_request), 2);
  EXPECT_EQ(exit_code(ErrorCode::environment_unfit), 3);
  EXPECT_EQ(exit_code(ErrorCode::not_found), 4);
  EXPECT_EQ(exit_code(ErrorCode::corrupt_checkpoint), 5);
  EXPECT_EQ(exit_code(ErrorCode::out_of_memory), 6);
  EXPECT_EQ(exit_code(ErrorCode::timed_out), 7);
  EXPECT_EQ(exit_code(ErrorCode::cancelled), 7);
  EXPECT_EQ(exit_code(ErrorCode::storage_failed), 1);
  EXPECT_EQ(exit_code(ErrorCode::device_failed), 1);
  EXPECT_EQ(exit_code(ErrorCode::internal), 1);
}

TEST(Table, AlignsByCharacters) {
  Table table({Align::left, Align::right});
  table.add_row({"name", "size"});
  table.add_row({"h\xc3\xb6he", "7"});
  table.add_row({"a longer one", "12345"});
  EXPECT_EQ(table.text(),
            "  name           size\n"
            "  h\xc3\xb6he              7\n"
            "  a longer one  12345\n");
}

TEST(Counted, GroupsDigitsAndCountsOne) {
  EXPECT_EQ(counted(0, "tensor"), "0 tensors");
  EXPECT_EQ(counted(1, "tensor"), "1 tensor");
  EXPECT_EQ(counted(1234567, "byte"), "1,234,567 bytes");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
}

TEST(JsonPath, KeepsUtf8AndEscapesTheRest) {
  EXPECT_EQ(json_path("/m\xc3\xb6"
                      "dels/\"x\""),
            "/m\xc3\xb6"
            "dels/\"x\"");
  EXPECT_EQ(json_path("/models/\xff"), "/models/\\xff");
}

}  // namespace
}  // namespace inrush::engine
