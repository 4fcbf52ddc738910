// Malformed and odd files against the verdict of each. A row of safetensors.jsonl holds: a name, what the
// reference implementation says (safetensors 24b0b28: "accept" or its error), what Inrush says, the number of
// tensors where it accepts, and the file as segments [text, how often]; each character of a text is one byte
// (U+0000..U+00FF).
#include "checkpoint/discover.hpp"
#include "fakes/memory_store.hpp"

#include <inrush/error.hpp>

#include <gtest/gtest.h>
#include <boost/json.hpp>

#include <fstream>
#include <string>
#include <vector>

namespace inrush::engine {

namespace {

namespace json = boost::json;

std::string bytes_of(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes += text[i];
    } else {
      bytes += static_cast<char>((lead & 0x03) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F));
    }
  }
  return bytes;
}

std::string file_of(const json::value& row) {
  std::string file;
  for (const json::value& segment : row.at("segments").as_array()) {
    const std::string bytes = bytes_of(segment.at(0).as_string());
    const auto count = static_cast<std::size_t>(segment.at(1).as_int64());
    if (bytes.size() == 1) {  // 100 MB of blanks
      file.append(count, bytes.front());
    } else {
      for (std::size_t i = 0; i < count; ++i) file += bytes;
    }
  }
  return file;
}

std::vector<json::value> read_rows() {
  std::vector<json::value> rows;
  std::ifstream file(std::string(INRUSH_TEST_DATA) + "/hostile/safetensors.jsonl");
  for (std::string line; std::getline(file, line);) rows.push_back(json::parse(line));
  return rows;
}

class SafetensorsFile : public testing::TestWithParam<json::value> {};

TEST_P(SafetensorsFile, GetsItsVerdict) {
  const json::value& row = GetParam();
  fakes::MemoryStore store;
  store.set("case.safetensors", file_of(row));
  const bool is_accepted = row.at("inrush").as_string() == "accept";
  try {
    const Checkpoint checkpoint = discover_in(store, "case.safetensors", {});
    EXPECT_TRUE(is_accepted) << "accepted, must be refused: " << row.at("name").as_string();
    if (is_accepted) {
      EXPECT_EQ(static_cast<std::int64_t>(checkpoint.tensor_count()), row.at("tensors").as_int64());
    }
  } catch (const Error& error) {
    EXPECT_FALSE(is_accepted) << error.what();
    EXPECT_EQ(error.code(), ErrorCode::corrupt_checkpoint) << error.what();
    EXPECT_TRUE(std::string_view(error.what()).starts_with("case.safetensors: ")) << error.what();
  }
  EXPECT_EQ(store.open_files().now, 0U);
}

std::string row_name(const testing::TestParamInfo<json::value>& row) {
  std::string name = std::to_string(row.index) + "_";
  for (const char letter : std::string(row.param.at("name").as_string())) {
    name += std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Corpus, SafetensorsFile, testing::ValuesIn(read_rows()), row_name);

TEST(SafetensorsCorpus, IsAllThere) { EXPECT_EQ(read_rows().size(), 147U); }

}  // namespace

}  // namespace inrush::engine
