#include "gpu/cufile_errors.hpp"

#include "base/text.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <fstream>
#include <limits>
#include <set>
#include <vector>

namespace inrush::engine {
namespace {

constexpr ssize_t result_max = std::numeric_limits<ssize_t>::max();
constexpr ssize_t result_min = std::numeric_limits<ssize_t>::min();

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

TEST(CufileErrorsTest, HasEveryCodeOfTheHeadersOnceInOrder) {
  std::vector<int> expected;
  for (int code = 5001; code <= 5050; ++code) {
    if (code != 5021 && code != 5032) expected.push_back(code);
  }
  std::vector<int> codes;
  for (const Explanation& known : cufile_errors()) codes.push_back(known.code);
  EXPECT_EQ(codes, expected);
}

TEST(CufileErrorsTest, EveryRowSaysWhatItMeansWhyAndWhatToDo) {
  std::set<std::string_view> names;
  for (const Explanation& known : cufile_errors()) {
    EXPECT_TRUE(known.name.starts_with("CU_FILE_")) << known.code;
    EXPECT_TRUE(std::ranges::all_of(known.name, [](char letter) {
      return (letter >= 'A' && letter <= 'Z') || letter == '_';
    })) << known.name;
    EXPECT_TRUE(names.insert(known.name).second) << known.name << " stands twice";
    for (const std::string_view text : {known.meaning, known.cause, known.remedy}) {
      EXPECT_FALSE(text.empty()) << known.code;
      // They become parts of sentences: "meaning; remedy".
      EXPECT_FALSE(text.ends_with('.')) << known.code << ": " << text;
      EXPECT_EQ(printable(text, text.size()), text) << known.code;
    }
  }
}

TEST(CufileErrorsTest, NumbersHaveTheirNames) {
  const std::vector<std::pair<int, std::string_view>> names = {{5001, "CU_FILE_DRIVER_NOT_INITIALIZED"},
                                                               {5007, "CU_FILE_PLATFORM_NOT_SUPPORTED"},
                                                               {5008, "CU_FILE_IO_NOT_SUPPORTED"},
                                                               {5011, "CU_FILE_CUDA_DRIVER_ERROR"},
                                                               {5014, "CU_FILE_CUDA_POINTER_RANGE_ERROR"},
                                                               {5017, "CU_FILE_INVALID_MAPPING_RANGE"},
                                                               {5019, "CU_FILE_INVALID_FILE_OPEN_FLAG"},
                                                               {5020, "CU_FILE_DIO_NOT_SET"},
                                                               {5022, "CU_FILE_INVALID_VALUE"},
                                                               {5026, "CU_FILE_DRIVER_ALREADY_OPEN"},
                                                               {5027, "CU_FILE_HANDLE_NOT_REGISTERED"},
                                                               {5030, "CU_FILE_INTERNAL_ERROR"},
                                                               {5031, "CU_FILE_GETNEWFD_FAILED"},
                                                               {5033, "CU_FILE_NVFS_SETUP_ERROR"},
                                                               {5034, "CU_FILE_IO_DISABLED"},
                                                               {5036, "CU_FILE_GPU_MEMORY_PINNING_FAILED"},
                                                               {5038, "CU_FILE_ASYNC_NOT_SUPPORTED"},
                                                               {5047, "CU_FILE_INVALID_CONTEXT_ERROR"},
                                                               {5050, "CU_FILE_IO_MAX_ERROR"}};
  for (const auto& [code, name] : names) {
    for (const int signed_code : {code, -code}) {
      const Explanation* const known = explain_cufile_error(signed_code);
      ASSERT_NE(known, nullptr) << signed_code;
      EXPECT_EQ(known->code, code);
      EXPECT_EQ(known->name, name);
    }
  }
}

// Empty where there is none.
Explanation row(int code) {
  const Explanation* const known = explain_cufile_error(code);
  return known == nullptr ? Explanation{} : *known;
}

TEST(CufileErrorsTest, WhatWasSeenIsSaid) {
  EXPECT_TRUE(has(row(5001).cause, "compat"));
  EXPECT_TRUE(has(row(5017).cause, "registered"));
  EXPECT_TRUE(has(row(5019).cause, "O_APPEND"));
  EXPECT_TRUE(has(row(5023).cause, "freed"));
  EXPECT_TRUE(has(row(5027).cause, "udev"));
  EXPECT_TRUE(has(row(5027).remedy, "/run/udev"));
  EXPECT_TRUE(has(row(5033).cause, "driver"));
  EXPECT_TRUE(has(row(5034).remedy, "denylist"));
  EXPECT_TRUE(has(row(5036).cause, "BAR1"));
}

TEST(CufileErrorsTest, OtherNumbersHaveNoExplanation) {
  for (const int code :
       {0, 1, -1, EIO, 5000, 5021, -5021, 5032, -5032, 5051, 6001, INT_MAX, -INT_MAX, INT_MIN}) {
    EXPECT_EQ(explain_cufile_error(code), nullptr) << code;
  }
}

TEST(CufileTransferTest, CountsUpToWhatWasAskedAreBytes) {
  EXPECT_EQ(decode_cufile_transfer(4096, 0, 4096), (CufileTransfer{4096, 0}));
  EXPECT_EQ(decode_cufile_transfer(100, 0, 4096), (CufileTransfer{100, 0})) << "a short read goes on";
  EXPECT_EQ(decode_cufile_transfer(0, 0, 4096), (CufileTransfer{0, 0})) << "the end of the file";
  EXPECT_EQ(decode_cufile_transfer(0, 0, 0), (CufileTransfer{0, 0}));
  EXPECT_EQ(decode_cufile_transfer(4096, EIO, 4096), (CufileTransfer{4096, 0})) << "errno says nothing then";
  EXPECT_EQ(decode_cufile_transfer(result_max, 0, UINT64_MAX),
            (CufileTransfer{static_cast<std::uint64_t>(result_max), 0}));
}

TEST(CufileTransferTest, MoreThanWasAskedIsAnErrorOfTheLibrary) {
  EXPECT_EQ(decode_cufile_transfer(4097, 0, 4096), (CufileTransfer{0, 5030}));
  EXPECT_EQ(decode_cufile_transfer(1, 0, 0), (CufileTransfer{0, 5030}));
  EXPECT_EQ(decode_cufile_transfer(result_max, 0, 4096), (CufileTransfer{0, 5030}));
}

TEST(CufileTransferTest, EachShapeOfFailureBecomesItsError) {
  EXPECT_EQ(decode_cufile_transfer(-1, EINVAL, 4096), (CufileTransfer{0, EINVAL}));
  EXPECT_EQ(decode_cufile_transfer(-1, 5022, 4096), (CufileTransfer{0, 5022}));
  EXPECT_EQ(decode_cufile_transfer(-1, 5017, 4096), (CufileTransfer{0, 5017}));
  EXPECT_EQ(decode_cufile_transfer(-5027, 0, 4096), (CufileTransfer{0, 5027}));
  EXPECT_EQ(decode_cufile_transfer(-5011, EINTR, 4096), (CufileTransfer{0, 5011})) << "not the errno";
  EXPECT_EQ(decode_cufile_transfer(-1, 0, 4096), (CufileTransfer{0, EIO})) << "failed without a reason";
}

TEST(CufileTransferTest, NothingElseIsEverTakenForBytes) {
  std::vector<ssize_t> results = {result_min,           result_min + 1,   result_max,
                                  ssize_t{INT_MIN} - 1, ssize_t{INT_MIN}, ssize_t{1} << 32,
                                  -(ssize_t{1} << 32)};
  for (ssize_t result = -6001; result <= 6001; ++result) results.push_back(result);
  for (const ssize_t result : results) {
    for (const int error : {0, EIO, 5030, 5999, -1, INT_MIN, INT_MAX}) {
      const CufileTransfer transfer = decode_cufile_transfer(result, error, 4096);
      const bool moved = result >= 0 && result <= 4096;
      EXPECT_EQ(transfer.error == 0, moved) << result << ", errno " << error;
      EXPECT_GE(transfer.error, 0) << result << ", errno " << error;
      EXPECT_EQ(transfer.moved_bytes, moved ? static_cast<std::uint64_t>(result) : 0U) << result;
    }
  }
}

TEST(CufileErrorTextTest, NamesCodesAndErrnos) {
  const std::string meaning(row(5027).meaning);
  EXPECT_EQ(cufile_error_text(5027), "CU_FILE_HANDLE_NOT_REGISTERED (5027): " + meaning);
  EXPECT_EQ(cufile_error_text(EIO), errno_text(EIO));
  EXPECT_EQ(cufile_error_text(5000), errno_text(5000)) << "the last errno";
  EXPECT_EQ(cufile_error_text(5021), "cuFile error 5021");
  EXPECT_EQ(cufile_error_text(5999), "cuFile error 5999");
  EXPECT_EQ(cufile_error_text(INT_MAX), fmt::format("cuFile error {}", INT_MAX));
}

// A cell of a table in Markdown.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char letter : text) escaped += letter == '|' ? "\\|" : std::string(1, letter);
  return escaped;
}

TEST(CufileErrorsDocumentTest, TheDocumentSaysTheSame) {
  const std::string path = std::string(INRUSH_TEST_DATA) + "/../docs/gds-errors.md";
  std::ifstream file(path);
  ASSERT_TRUE(file.is_open()) << path;
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| 5")) rows.push_back(line);
  }
  std::vector<std::string> expected;
  for (const Explanation& known : cufile_errors()) {
    expected.push_back(fmt::format("| {} | `{}` | {} | {} | {} |", known.code, known.name,
                                   cell(known.meaning), cell(known.cause), cell(known.remedy)));
  }
  EXPECT_EQ(rows.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(i < rows.size() ? rows[i] : "", expected[i]) << "the row of docs/gds-errors.md should be\n"
                                                           << expected[i];
  }
}

}  // namespace
}  // namespace inrush::engine
