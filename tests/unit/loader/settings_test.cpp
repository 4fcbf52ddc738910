#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>
#include <inrush/loader.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace inrush {
namespace {

constexpr const char* variables[] = {
    "INRUSH_READERS", "INRUSH_PIECE_BYTES", "INRUSH_STAGING_BYTES", "INRUSH_IO_URING", "INRUSH_PROCESSES",
    "INRUSH_CONFIG",  "INRUSH_READRES",     "LOCAL_WORLD_SIZE",     "XDG_CONFIG_HOME", "HOME",
    "INRUSH_STATE",   "XDG_STATE_HOME",     "INRUSH_CUFILE_LIBRARY"};

// An environment of its own: no variable of ours, and a home that is an empty folder with an empty
// configuration file, so that a file in /etc of this machine is not reached.
class SettingsTest : public testing::Test {
 protected:
  SettingsTest() {
    std::string pattern = testing::TempDir() + "inrush_settings_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    for (const char* variable : variables) {
      const char* value = ::getenv(variable);
      if (value != nullptr) saved_.emplace_back(variable, value);
      ::unsetenv(variable);
    }
    set("XDG_CONFIG_HOME", folder_ / "xdg");
    write("xdg/inrush/config.json", "{}");
  }

  ~SettingsTest() override {
    for (const char* variable : variables) ::unsetenv(variable);
    for (const auto& [name, value] : saved_) ::setenv(name.c_str(), value.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }

  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

  std::string write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }

  static Setting setting(const std::string& name) {
    for (Setting& row : rows()) {
      if (row.name == name) return row;
    }
    ADD_FAILURE() << name << " is not listed";
    return {};
  }

  static std::vector<Setting>& rows() {
    static std::vector<Setting> list;
    list = settings_from_environment();
    return list;
  }

  // The message, and that the code is the expected one.
  static std::string failure(ErrorCode code = ErrorCode::invalid_request) {
    try {
      (void)options_from_environment();
    } catch (const Error& error) {
      EXPECT_EQ(error_code_name(error.code()), error_code_name(code)) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  std::filesystem::path folder_;

 private:
  std::vector<std::pair<std::string, std::string>> saved_;
};

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_F(SettingsTest, DefaultsAreThoseOfLoaderOptions) {
  const LoaderOptions options = options_from_environment();
  const LoaderOptions defaults;
  EXPECT_EQ(options.reader_count_max, defaults.reader_count_max);
  EXPECT_EQ(options.piece_bytes_max, defaults.piece_bytes_max);
  EXPECT_EQ(options.staging_bytes_max, defaults.staging_bytes_max);
  EXPECT_EQ(options.loading_process_count, defaults.loading_process_count);
  EXPECT_EQ(options.io_uring, defaults.io_uring);
  EXPECT_EQ(options.cuda_library, defaults.cuda_library);
  EXPECT_EQ(options.cufile_library, defaults.cufile_library);
  EXPECT_EQ(options.state_folder, defaults.state_folder) << "without a home";
  EXPECT_EQ(setting("INRUSH_READERS").source, "default");
}

TEST_F(SettingsTest, EachVariableReachesItsOption) {
  set("INRUSH_READERS", "3");
  set("INRUSH_PIECE_BYTES", "4MiB");
  set("INRUSH_STAGING_BYTES", "64M");
  set("INRUSH_IO_URING", "off");
  set("INRUSH_PROCESSES", "8");
  set("INRUSH_CUFILE_LIBRARY", "/opt/libcufile.so.0");
  set("INRUSH_STATE", "/var/lib/inrush");
  const LoaderOptions options = options_from_environment();
  EXPECT_EQ(options.cufile_library, "/opt/libcufile.so.0");
  EXPECT_EQ(options.state_folder, "/var/lib/inrush");
  EXPECT_EQ(options.reader_count_max, 3U);
  EXPECT_EQ(options.piece_bytes_max, 4U << 20);
  EXPECT_EQ(options.staging_bytes_max, 64U << 20);
  EXPECT_EQ(options.io_uring, IoUring::off);
  EXPECT_EQ(options.loading_process_count, 8U);
  EXPECT_EQ(setting("INRUSH_PROCESSES").source, "environment INRUSH_PROCESSES");
}

TEST_F(SettingsTest, EachKeyOfTheFileReachesItsOption) {
  set("INRUSH_CONFIG", write("own.json", R"({
    // half of the CPUs
    "readers": 5, "piece_bytes": "1MiB", "staging_bytes": 33554432, "io_uring": "off", "processes": "2",
    "cufile_library": "libcufile.so.0", "state_folder": "/srv/state",
  })"));
  const LoaderOptions options = options_from_environment();
  EXPECT_EQ(options.reader_count_max, 5U);
  EXPECT_EQ(options.piece_bytes_max, 1U << 20);
  EXPECT_EQ(options.staging_bytes_max, 32U << 20);
  EXPECT_EQ(options.io_uring, IoUring::off);
  EXPECT_EQ(options.loading_process_count, 2U);
  EXPECT_EQ(options.cufile_library, "libcufile.so.0");
  EXPECT_EQ(options.state_folder, "/srv/state");
  EXPECT_EQ(setting("INRUSH_READERS").source, "file " + (folder_ / "own.json").string());
  EXPECT_EQ(setting("INRUSH_CONFIG").source, "environment INRUSH_CONFIG");
}

TEST_F(SettingsTest, StateGoesToTheUsersFolderForIt) {
  set("HOME", "/home-of-somebody");
  EXPECT_EQ(setting("INRUSH_STATE").value, "/home-of-somebody/.local/state/inrush");
  EXPECT_EQ(setting("INRUSH_STATE").source, "default");
  set("XDG_STATE_HOME", "/var/state");
  EXPECT_EQ(options_from_environment().state_folder, "/var/state/inrush");
  set("XDG_STATE_HOME", "relative");
  EXPECT_EQ(options_from_environment().state_folder, "/home-of-somebody/.local/state/inrush");
  set("INRUSH_STATE", "/srv/state");
  EXPECT_EQ(options_from_environment().state_folder, "/srv/state");
  set("INRUSH_STATE", "relative");
  EXPECT_PRED2(has, failure(), "environment variable INRUSH_STATE: \"relative\" is not an absolute path");
}

TEST_F(SettingsTest, EnvironmentOutweighsFile) {
  set("INRUSH_CONFIG", write("own.json", R"({"readers": 5, "processes": 2})"));
  set("INRUSH_READERS", "7");
  EXPECT_EQ(setting("INRUSH_READERS").value, "7");
  EXPECT_EQ(setting("INRUSH_READERS").source, "environment INRUSH_READERS");
  EXPECT_EQ(setting("INRUSH_PROCESSES").value, "2");
}

TEST_F(SettingsTest, LocalWorldSizeIsTheWeakestWordOnProcesses) {
  set("LOCAL_WORLD_SIZE", "4");
  EXPECT_EQ(setting("INRUSH_PROCESSES").value, "4");
  EXPECT_EQ(setting("INRUSH_PROCESSES").source, "environment LOCAL_WORLD_SIZE");
  set("INRUSH_CONFIG", write("own.json", R"({"processes": 3})"));
  EXPECT_EQ(setting("INRUSH_PROCESSES").value, "3");
  set("INRUSH_PROCESSES", "2");
  EXPECT_EQ(setting("INRUSH_PROCESSES").value, "2");
}

TEST_F(SettingsTest, FileIsFoundInItsUsualPlaces) {
  write("xdg/inrush/config.json", R"({"readers": 9})");
  EXPECT_EQ(setting("INRUSH_READERS").source, "file " + (folder_ / "xdg/inrush/config.json").string());
  set("XDG_CONFIG_HOME", folder_ / "nowhere");
  set("HOME", folder_ / "home");
  write("home/.config/inrush/config.json", R"({"readers": 10})");
  EXPECT_EQ(setting("INRUSH_READERS").value, "10");
  EXPECT_EQ(setting("INRUSH_CONFIG").value, folder_ / "home/.config/inrush/config.json");
}

TEST_F(SettingsTest, EmptyVariableCountsAsUnset) {
  set("INRUSH_READERS", "");
  set("INRUSH_CONFIG", "");
  EXPECT_EQ(setting("INRUSH_READERS").source, "default");
}

TEST_F(SettingsTest, UnknownVariableIsAnErrorThatNamesTheKnown) {
  set("INRUSH_READRES", "3");
  const std::string message = failure();
  EXPECT_TRUE(has(message, "INRUSH_READRES") && has(message, "INRUSH_READERS")) << message;
}

TEST_F(SettingsTest, UnknownKeyIsAnErrorThatNamesFileAndKnown) {
  set("INRUSH_CONFIG", write("own.json", R"({"cuda_library": "evil.so"})"));
  const std::string message = failure();
  EXPECT_TRUE(has(message, "own.json") && has(message, "cuda_library") && has(message, "readers")) << message;
}

TEST_F(SettingsTest, BadValuesAreErrorsThatSayWhere) {
  const std::pair<const char*, const char*> cases[] = {{"INRUSH_READERS", "0"},
                                                       {"INRUSH_READERS", "-1"},
                                                       {"INRUSH_READERS", "many"},
                                                       {"INRUSH_READERS", "8K"},
                                                       {"INRUSH_READERS", "4294967297"},
                                                       {"INRUSH_PIECE_BYTES", "5000"},
                                                       {"INRUSH_PIECE_BYTES", "2GiB"},
                                                       {"INRUSH_STAGING_BYTES", "1"},
                                                       {"INRUSH_STAGING_BYTES", "8 MiB"},
                                                       {"INRUSH_IO_URING", "on"},
                                                       {"INRUSH_PROCESSES", "1.5"},
                                                       {"LOCAL_WORLD_SIZE", "two"},
                                                       {"INRUSH_READERS", "99999999999999999999"}};
  for (const auto& [name, value] : cases) {
    set(name, value);
    EXPECT_TRUE(has(failure(), name)) << name << "=" << value;
    ::unsetenv(name);
  }
}

TEST_F(SettingsTest, BadFilesAreErrorsThatNameThem) {
  for (const char* text :
       {"", "[]", "{\"readers\": }", "{\"readers\": true}", "{\"readers\": 1.5}", "{} x"}) {
    set("INRUSH_CONFIG", write("own.json", text));
    EXPECT_TRUE(has(failure(), "own.json")) << text;
  }
  set("INRUSH_CONFIG", write("own.json", std::string((1U << 20) + 1, ' ')));
  EXPECT_TRUE(has(failure(), "longer"));
}

TEST_F(SettingsTest, MissingNamedFileIsNotFound) {
  set("INRUSH_CONFIG", folder_ / "absent.json");
  EXPECT_TRUE(has(failure(ErrorCode::not_found), "absent.json"));
}

TEST_F(SettingsTest, FolderInPlaceOfTheFileIsAnError) {
  set("INRUSH_CONFIG", folder_);
  EXPECT_TRUE(has(failure(), "not a regular file"));
}

TEST_F(SettingsTest, EverySettingIsDocumented) {
  std::ifstream file(std::string(INRUSH_TEST_DATA) + "/../docs/cli.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const Setting& row : rows()) {
    EXPECT_TRUE(has(text.str(), row.name)) << row.name;
    EXPECT_FALSE(row.help.empty()) << row.name;
  }
}

TEST(ParseBytesTest, AcceptsBytesAndUnits) {
  EXPECT_EQ(parse_bytes("0"), 0U);
  EXPECT_EQ(parse_bytes("8388608"), 8388608U);
  EXPECT_EQ(parse_bytes("17B"), 17U);
  EXPECT_EQ(parse_bytes("8MiB"), 8U << 20);
  EXPECT_EQ(parse_bytes("4m"), 4U << 20);
  EXPECT_EQ(parse_bytes("64k"), 64U << 10);
  EXPECT_EQ(parse_bytes("3GB"), 3'000'000'000U);
  EXPECT_EQ(parse_bytes("2G"), 2ULL << 30);
  EXPECT_EQ(parse_bytes("1tib"), 1ULL << 40);
  EXPECT_EQ(parse_bytes("18446744073709551615"), UINT64_MAX);
}

TEST(ParseBytesTest, RefusesTheRest) {
  for (const char* text : {"", "M", "-1", "+1", "1.5G", "8 M", "8MiBB", "18446744073709551616",
                           "18446744073709551615k", "16777216T", "0x10", "8\n"}) {
    EXPECT_THROW((void)parse_bytes(text), Error) << text;
  }
}

}  // namespace
}  // namespace inrush
