// Probes: how children are run and what is made of what they say (small shell scripts in their place), the
// results that are kept, and the real inrush-probe on the fake libraries.
#include "loader/probe.hpp"

#include "fakes/fake_cuda.hpp"
#include "fakes/fake_cufile.hpp"
#include "fakes/temp_folder.hpp"
#include "fakes/test_files.hpp"
#include "loader/probe_cache.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <boost/json.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

namespace inrush {
namespace {

namespace fs = std::filesystem;
using engine::ProbeKey;
using engine::ProbePlace;
using engine::ProbeResult;
using engine::ProbeTask;

constexpr std::uint64_t mib = 1ULL << 20;
constexpr const char* gpu_uuid = "GPU-01234567-0000-0000-0000-000000000000";

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A variable of this process for as long as this lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = ::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

std::string script_line(const std::string& path, const std::string& figures = R"("bytes_per_second": 2e9)") {
  return R"(echo '{"path": ")" + path +
         R"(", "usable": true, "wrong_bytes": false, "reason": "every byte equal", "way": "by script", )" +
         figures + R"(, "cpu_seconds_per_gb": 0.5, "timed_bytes": 33554432, "error_code": ""}')" + "\n";
}

template <typename Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorCode::internal, ""};
}

// Probes whose children are shell scripts.
class ProbeScriptTest : public testing::Test {
 protected:
  ProbeScriptTest() { file_ = folder_.write("weights.bin", std::string(5000, 'w')); }
  void TearDown() override {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child was not waited for";
    EXPECT_TRUE(fakes::returns_to(counts_));
  }

  std::string script(const std::string& body) {
    const std::string path = folder_.write("probe.sh", "#!/bin/sh\n" + body);
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }
  ProbeTask task(const Device& device = {}) {
    return {.path = file_,
            .device = device,
            .driver = "driver",
            .cuda_library = "libcuda.so.1",
            .cufile_library = folder_ / "no-libcufile.so",
            .state_folder = folder_ / "state"};
  }
  ProbeReport probe(const std::string& body, ProbeOptions options = {}) {
    options.program = script(body);
    return run_probe(task(), options);
  }
  ProbeReport probe_gpu(const std::string& body) {
    return run_probe(task({.kind = DeviceKind::cuda, .uuid = gpu_uuid}), {.program = script(body)});
  }
  // Of the one row, which must not be usable.
  std::string refusal(const std::string& body, ProbeOptions options = {}) {
    const ProbeReport report = probe(body, std::move(options));
    EXPECT_EQ(report.candidates.size(), 1U);
    EXPECT_FALSE(report.candidates.at(0).usable);
    EXPECT_EQ(report.chosen, "");
    return report.candidates.at(0).reason;
  }

  fakes::TempFolder folder_;
  std::string file_;
  fakes::ProcessCounts counts_ = fakes::process_counts();
};

TEST_F(ProbeScriptTest, RowsAndChoiceComeFromWhatTheChildrenSay) {
  const ProbeReport report = probe_gpu(
      "case $2 in\n"
      "staged) " +
      script_line("staged", R"("bytes_per_second": 2e9)") +
      ";;\n"
      "gds) " +
      script_line("gds", R"("bytes_per_second": 3e9)") +
      ";;\n"
      "*) echo '{\"path\": \"cufile-compat\", \"usable\": false, \"wrong_bytes\": false, \"reason\": \"no\", "
      "\"way\": \"\", \"bytes_per_second\": 0, \"cpu_seconds_per_gb\": 0, \"timed_bytes\": 0, "
      "\"error_code\": \"environment_unfit\"}';;\nesac\n");
  ASSERT_EQ(report.candidates.size(), 3U);
  EXPECT_EQ(report.candidates[0].path, "staged");
  EXPECT_TRUE(report.candidates[0].usable);
  EXPECT_EQ(report.candidates[0].way, "by script");
  EXPECT_DOUBLE_EQ(report.candidates[1].bytes_per_second, 3e9);
  EXPECT_DOUBLE_EQ(report.candidates[1].cpu_seconds_per_gb, 0.5);
  EXPECT_EQ(report.candidates[2].reason, "no");
  EXPECT_EQ(report.chosen, "gds");
  EXPECT_PRED2(has, report.rule, "gds 3.00 GB/s");
  EXPECT_EQ(report.bytes, 5000U);
  EXPECT_EQ(report.file, file_);
  EXPECT_EQ(report.why_not_cached, "");
  EXPECT_TRUE(fs::exists(report.cached_in));
}

TEST_F(ProbeScriptTest, TheChildGetsItsWordsAndItsOwnSurroundings) {
  const Variable ours("INRUSH_READERS", "3");
  const Variable cufile("CUFILE_ENV_PATH_JSON", "/users/own.json");
  const Variable other("PROBE_TEST_OTHER", "kept");
  const std::string seen = folder_ / "seen";
  static_cast<void>(
      probe_gpu("exec >>" + seen + "." +
                "$2\necho \"$@\"\npwd\nenv\ncat $CUFILE_ENV_PATH_JSON\nreadlink /proc/$$/fd/0\n"));
  for (const std::string path : {"staged", "gds", "cufile-compat"}) {
    const std::string text = text_of(seen + "." + path);
    EXPECT_TRUE(text.starts_with(file_ + " " + path + " " + gpu_uuid + " 5000 libcuda.so.1 ")) << text;
    EXPECT_PRED2(has, text, "PROBE_TEST_OTHER=kept\n");
    EXPECT_FALSE(has(text, "INRUSH_READERS")) << text;
    EXPECT_TRUE(text.ends_with("/dev/null\n")) << text;
    EXPECT_EQ(has(text, "/users/own.json"), path == "staged") << text;
    EXPECT_EQ(has(text, R"("allow_compat_mode":false)"), path == "gds") << text;
    EXPECT_EQ(has(text, R"("allow_compat_mode":true)"), path == "cufile-compat") << text;
    std::istringstream lines(text);
    std::string place;
    std::getline(std::getline(lines, place), place);
    EXPECT_PRED2(has, place, "/inrush-probe-");
    EXPECT_FALSE(fs::exists(place)) << "the private folder is left";
  }
}

TEST_F(ProbeScriptTest, ATimeOutKillsTheChildAndWhatItStarted) {
  const std::string reason = refusal("sleep 1000 &\necho $! >" + (folder_ / "pid") + "\nsleep 1000\n",
                                     {.timeout = std::chrono::milliseconds(300)});
  EXPECT_PRED2(has, reason, "did not come back within 0.3 s");
  const std::string status = "/proc/" + std::to_string(std::stoi(text_of(folder_ / "pid"))) + "/stat";
  // Killed; whether anybody reaps an orphan is not ours to say.
  const auto is_alive = [&] {
    const std::string text = text_of(status);
    return !text.empty() && !has(text, ") Z");
  };
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (is_alive() && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  EXPECT_FALSE(is_alive());
}

TEST_F(ProbeScriptTest, ACrashIsNamedWithTheLastWords) {
  const std::string reason = refusal("echo first >&2; echo 'no \033[2Jdriver' >&2\nkill -SEGV $$\n");
  EXPECT_PRED2(has, reason, "ended by signal 11 (Segmentation fault)");
  EXPECT_PRED2(has, reason, "\"first; no \\x1b[2Jdriver\"");
}

TEST_F(ProbeScriptTest, ACrashAfterASuccessIsNoSuccess) {
  const std::string reason = refusal(script_line("staged") + "kill -ABRT $$\n");
  EXPECT_PRED2(has, reason, "every byte came, and then it ended by signal 6");
}

TEST_F(ProbeScriptTest, WhatIsNoResultIsSaidSo) {
  EXPECT_PRED2(has, refusal("echo 'all is \033[31mwell'\n"), "no result: \"all is \\x1b[31mwell\"");
  EXPECT_PRED2(has, refusal("true\n"), "said nothing");
  EXPECT_PRED2(has, refusal("exit 3\n"), "exit code 3");
  EXPECT_PRED2(has, refusal("echo '{}'\n"), "no result");
  EXPECT_PRED2(has, refusal(script_line("gds")), "no result");
  for (const char* figures : {R"("bytes_per_second": 0)", R"("bytes_per_second": -1)",
                              R"("bytes_per_second": "many")", R"("bytes_per_second": 1e999)"})
    EXPECT_PRED2(has, refusal(script_line("staged", figures)), "no result") << figures;
}

TEST_F(ProbeScriptTest, TheLastLineCountsHoweverMuchCameBefore) {
  const ProbeReport report =
      probe("head -c 3000000 /dev/zero | tr '\\0' x; echo; yes noise | head -c 3000000 >&2\n" +
            script_line("staged"));
  EXPECT_TRUE(report.candidates.at(0).usable) << report.candidates.at(0).reason;
  EXPECT_EQ(report.chosen, "staged");
}

TEST_F(ProbeScriptTest, InterruptedEndsTheChildAndTheCall) {
  int asked = 0;
  ProbeOptions options;
  options.interrupted = [&] { return ++asked == 3; };
  EXPECT_EQ(error_of([&] { (void)probe("sleep 1000\n", options); }).code(), ErrorCode::cancelled);
  EXPECT_EQ(asked, 3);
  options.interrupted = []() -> bool { throw std::out_of_range("mine"); };
  EXPECT_THROW((void)probe("sleep 1000\n", options), std::out_of_range);
}

TEST_F(ProbeScriptTest, AHostThatIgnoresItsChildrenGetsItsResult) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  const ProbeReport report = probe(script_line("staged"));
  ::signal(SIGCHLD, before);
  EXPECT_TRUE(report.candidates.at(0).usable) << report.candidates.at(0).reason;
}

TEST_F(ProbeScriptTest, ABlockedSignalDoesNotReachTheChild) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const std::string reason = refusal("kill -TERM $$\n");
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_PRED2(has, reason, "signal 15");
}

TEST_F(ProbeScriptTest, BadRequestsAreErrors) {
  const auto code = [&](ProbeTask task, ProbeOptions options) {
    if (options.program.empty()) options.program = script("true\n");
    return error_of([&] { (void)run_probe(task, options); }).code();
  };
  EXPECT_EQ(code(task(), {.bytes = 0}), ErrorCode::invalid_request);
  EXPECT_EQ(code(task(), {.timeout = std::chrono::seconds(0)}), ErrorCode::invalid_request);
  EXPECT_EQ(code(task(), {.program = folder_ / "absent"}), ErrorCode::environment_unfit);
  EXPECT_EQ(code(task(), {.program = file_}), ErrorCode::environment_unfit) << "may not be executed";
  ProbeTask other = task();
  other.path = folder_ / "absent";
  EXPECT_EQ(code(other, {}), ErrorCode::not_found);
  other.path = folder_.write("empty", std::string());
  EXPECT_EQ(code(other, {}), ErrorCode::invalid_request);
  other.path = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(other.path.c_str(), 0600), 0);
  EXPECT_EQ(code(other, {}), ErrorCode::invalid_request);
}

TEST_F(ProbeScriptTest, OfAFolderTheLargestFileIsRead) {
  fs::create_directory(folder_ / "m");
  fakes::write_safetensors(folder_ / "m/a.safetensors", {{"a", DType::u8, {100}}}, 1);
  fakes::write_safetensors(folder_ / "m/b.safetensors", {{"b", DType::u8, {9000}}}, 1);
  fakes::write_safetensors(folder_ / "m/c.safetensors", {{"c", DType::u8, {200}}}, 1);
  ProbeTask folder = task();
  folder.path = folder_ / "m";
  const ProbeReport report = run_probe(folder, {.bytes = 1000, .program = script(script_line("staged"))});
  EXPECT_EQ(report.file, folder_ / "m/b.safetensors");
  EXPECT_EQ(report.bytes, 1000U);
}

TEST_F(ProbeScriptTest, WhatSaysLittleIsNotKept) {
  EXPECT_PRED2(has, probe(script_line("staged")).why_not_cached, "nothing to choose");
  const auto why = [&](const std::string& from, const std::string& to) {
    std::string body = "P=$2\n" + script_line("'\"$P\"'");
    const std::size_t place = body.find(from);
    const ProbeReport report = probe_gpu(body.replace(place, from.size(), to));
    EXPECT_EQ(report.cached_in, "");
    return report.why_not_cached;
  };
  EXPECT_PRED2(has, why("33554432", "1000"), "1.00 kB in one read say little");
  EXPECT_PRED2(has, why(R"("error_code": "")", R"("error_code": "out_of_memory")"), "memory ran out");
  EXPECT_PRED2(has, why(R"("usable": true)", R"("usable": false)"), "compared with failed");
  std::string wrong = "P=$2\n" + script_line("'\"$P\"'", R"("bytes_per_second": 0)");
  wrong.replace(wrong.find(R"("usable": true, "wrong_bytes": false)"), 36,
                R"("usable": false, "wrong_bytes": true)");
  EXPECT_NE(probe_gpu(wrong).cached_in, "") << "wrong bytes are never forgotten";
  folder_.write("file", std::string("x"));
  ProbeTask blocked = task({.kind = DeviceKind::cuda, .uuid = gpu_uuid});
  blocked.state_folder = folder_ / "file";
  const ProbeReport report = run_probe(blocked, {.program = script("P=$2\n" + script_line("'\"$P\"'"))});
  EXPECT_PRED2(has, report.why_not_cached, "create ");
  EXPECT_TRUE(report.candidates.at(1).usable);
}

TEST(ProbeProgram, IsLookedForWhereInstallationsPutIt) {
  const fakes::TempFolder prefix;
  prefix.write("lib/python3.11/site-packages/inrush/inrush-probe", std::string("x"));
  const auto places = [&](const std::string& module) {
    return engine::probe_program_places(prefix / module);
  };
  const auto is_there = [](const std::vector<std::string>& list, const std::string& path) {
    return std::find(list.begin(), list.end(), path) != list.end();
  };
  EXPECT_EQ(places("lib/libinrush.so").at(0), prefix / "lib/inrush-probe");
  EXPECT_TRUE(is_there(places("lib/libinrush.so"), prefix / "libexec/inrush/inrush-probe"));
  EXPECT_TRUE(is_there(places("lib/x86_64-linux-gnu/libinrush.so"), prefix / "libexec/inrush/inrush-probe"));
  EXPECT_TRUE(is_there(places("bin/inrush"), prefix / "lib/python3.11/site-packages/inrush/inrush-probe"));
  EXPECT_EQ(places("lib/python3.11/site-packages/inrush/_inrush.so").at(0),
            prefix / "lib/python3.11/site-packages/inrush/inrush-probe");
}

TEST(ProbeText, WrongBytesComeFirst) {
  ProbeReport report;
  report.file = "/models/\033[2J";
  report.candidates = {{.path = "staged", .usable = true, .way = "w", .bytes_per_second = 2e9},
                       {.path = "gds", .wrong_bytes = true, .reason = "WRONG BYTES at offset 7"}};
  report.chosen = "staged";
  report.why_not_cached = "because";
  const std::string text = probe_to_text(report);
  EXPECT_TRUE(text.starts_with("!!! WRONG BYTES by the path \"gds\"")) << text;
  EXPECT_FALSE(has(text, "\033")) << text;
  EXPECT_PRED2(has, text, "not kept: because\n");
  const boost::json::value json = boost::json::parse(probe_to_json(report));
  EXPECT_TRUE(json.at("wrong_bytes").as_bool());
  EXPECT_TRUE(json.at("candidates").at(1).at("wrong_bytes").as_bool());
  report.candidates.pop_back();
  EXPECT_FALSE(has(probe_to_text(report), "WRONG"));
  EXPECT_FALSE(boost::json::parse(probe_to_json(report)).at("wrong_bytes").as_bool());
}

TEST(CufileConfiguration, AllowsThePathAndNoOther) {
  const auto gds = boost::json::parse(cufile_configuration(PathPreference::gds, "/logs"));
  EXPECT_FALSE(gds.at("properties").at("allow_compat_mode").as_bool());
  EXPECT_TRUE(gds.at("properties").at("use_pci_p2pdma").as_bool());
  EXPECT_TRUE(gds.at("block").at("nvme").at("use_pci_p2pdma").as_bool());
  EXPECT_EQ(gds.at("profile").at("cufile_stats").as_int64(), 3);
  EXPECT_EQ(gds.at("logging").at("dir").as_string(), "/logs");
  EXPECT_EQ(gds.at("logging").at("level").as_string(), "WARN");
  const auto compat = boost::json::parse(cufile_configuration(PathPreference::cufile_compat, "/logs"));
  EXPECT_TRUE(compat.at("properties").at("allow_compat_mode").as_bool());
  EXPECT_FALSE(compat.at("properties").at("use_pci_p2pdma").as_bool());
  EXPECT_FALSE(compat.at("block").at("nvme").at("use_pci_p2pdma").as_bool());
}

// Results that are kept, and what loads make of them.
class ProbeCacheTest : public testing::Test {
 protected:
  ProbePlace place() {
    return {.path = folder_.path(),
            .gpu = gpu_uuid,
            .driver = "Fake H200, driver API 13.0",
            .cufile_library = INRUSH_FAKE_CUFILE_15,
            .state_folder = folder_ / "state"};
  }
  // Kept for place().
  std::string keep(std::vector<ProbeCandidate> candidates) {
    ProbeKey key = engine::probe_key(place()).value();
    key.cufile = engine::find_cufile(place().cufile_library).text;
    return engine::write_probe_result(place().state_folder, {key, "2026-11-30", std::move(candidates)});
  }
  static std::vector<PathChoice> choices() {
    return {{.name = "staged", .usable = true, .reason = "by the ring"},
            {.name = "gds", .usable = true, .reason = "by cuFile"},
            {.name = "cufile-compat", .usable = true, .reason = "by compat"}};
  }
  static std::vector<PathChoice> applied(const ProbePlace& place) {
    std::vector<PathChoice> paths = choices();
    engine::apply_probe_results(place, paths);
    return paths;
  }
  static std::vector<ProbeCandidate> rows() {
    return {{.path = "staged", .usable = true, .reason = "r", .way = "w", .bytes_per_second = 2e9},
            {.path = "gds",
             .usable = true,
             .reason = "counted 9 reads by P2PDMA",
             .way = "straight",
             .bytes_per_second = 3.5e9,
             .cpu_seconds_per_gb = 0.25},
            {.path = "cufile-compat", .reason = "did not come back within 60 s"}};
  }

  fakes::TempFolder folder_;
};

TEST_F(ProbeCacheTest, AResultComesBackAsItWasKept) {
  const std::string path = keep(rows());
  EXPECT_TRUE(path.starts_with(folder_ / "state/probes/")) << path;
  const ProbeKey key = engine::probe_key(place()).value();
  const std::optional<ProbeResult> result = engine::read_probe_result(place().state_folder, key);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->candidates, rows());
  EXPECT_EQ(result->date, "2026-11-30");
  EXPECT_PRED2(has, result->key.cufile, "1150 /");
  EXPECT_PRED2(has, result->key.cufile, "cufile-1.15/libcufile.so.0");
  keep({rows()[0]});
  EXPECT_EQ(engine::read_probe_result(place().state_folder, key)->candidates.size(), 1U) << "replaced";
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "state/probes"), {}), 1) << "nothing else is left";
}

TEST_F(ProbeCacheTest, EachPartOfTheKeyCounts) {
  keep(rows());
  const ProbeKey key = engine::probe_key(place()).value();
  for (std::string ProbeKey::*part : {&ProbeKey::file_system, &ProbeKey::gpu, &ProbeKey::driver,
                                      &ProbeKey::kernel, &ProbeKey::configuration}) {
    EXPECT_FALSE((key.*part).empty());
    ProbeKey other = key;
    other.*part += "x";
    EXPECT_FALSE(engine::read_probe_result(place().state_folder, other).has_value()) << other.*part;
  }
  EXPECT_TRUE(engine::read_probe_result(place().state_folder, key).has_value());
}

TEST_F(ProbeCacheTest, TheKeyInsideCountsAndNotTheName) {
  const std::string path = keep(rows());
  ProbePlace other = place();
  other.gpu = "GPU-of-somebody-else";
  const ProbeKey key = engine::probe_key(other).value();
  const std::string name = engine::write_probe_result(other.state_folder, {key, "2026-11-30", rows()});
  fs::copy_file(path, name, fs::copy_options::overwrite_existing);
  EXPECT_FALSE(engine::read_probe_result(other.state_folder, key).has_value());
}

TEST_F(ProbeCacheTest, ADamagedOrForeignFileIsAsIfItWereNotThere) {
  const std::string path = keep(rows());
  const std::string whole = text_of(path);
  const ProbeKey key = engine::probe_key(place()).value();
  const auto is_read = [&](const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
    EXPECT_EQ(applied(place())[1].usable, true);
    return engine::read_probe_result(place().state_folder, key).has_value();
  };
  ASSERT_TRUE(is_read(whole));
  for (std::size_t size = 0; size + 2 < whole.size(); size += 7) EXPECT_FALSE(is_read(whole.substr(0, size)));
  EXPECT_FALSE(is_read("[]"));
  EXPECT_FALSE(is_read(std::string(100, '\0')));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_FALSE(is_read(changed(R"("schema_version":1)", R"("schema_version":2)")));
  EXPECT_FALSE(is_read(changed(R"("bytes_per_second":2E9)", R"("bytes_per_second":-2E9)")));
  EXPECT_FALSE(is_read(changed(R"("bytes_per_second":2E9)", R"("bytes_per_second":0)")));
  EXPECT_FALSE(is_read(changed(R"("wrong_bytes":false)", R"("wrong_bytes":true)")));
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(engine::read_probe_result(place().state_folder, key).has_value());
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_FALSE(engine::read_probe_result(place().state_folder, key).has_value());
}

TEST_F(ProbeCacheTest, TextsOfAForeignFileCannotDriveATerminal) {
  const std::string path = keep(rows());
  std::string text = text_of(path);
  const std::string from = "counted 9";
  std::ofstream(path, std::ios::trunc) << text.replace(text.find(from), from.size(), "\\u001b[2J");
  EXPECT_PRED2(has, applied(place())[1].reason, "?[2J reads by P2PDMA");
}

TEST_F(ProbeCacheTest, WhatWasMeasuredReachesThePaths) {
  keep(rows());
  const std::vector<PathChoice> paths = applied(place());
  EXPECT_DOUBLE_EQ(paths[0].measured_bytes_per_second, 2e9);
  EXPECT_EQ(paths[0].reason, "by the ring");
  EXPECT_TRUE(paths[1].usable);
  EXPECT_DOUBLE_EQ(paths[1].measured_bytes_per_second, 3.5e9);
  EXPECT_DOUBLE_EQ(paths[1].measured_cpu_seconds_per_gb, 0.25);
  EXPECT_EQ(paths[1].reason, "probed 2026-11-30: counted 9 reads by P2PDMA");
  EXPECT_FALSE(paths[2].usable);
  EXPECT_EQ(paths[2].reason,
            "probed 2026-11-30: did not come back within 60 s; `inrush probe PATH` measures again");
  EXPECT_EQ(paths[2].measured_bytes_per_second, 0);
}

TEST_F(ProbeCacheTest, StagedIsNeverTakenAway) {
  keep({{.path = "staged", .reason = "WRONG BYTES", .way = ""}});
  EXPECT_TRUE(applied(place())[0].usable);
}

TEST_F(ProbeCacheTest, WithoutAResultPathsStayUsable) {
  const auto expect_unmeasured = [&](const ProbePlace& place, std::string_view reason) {
    const std::vector<PathChoice> paths = applied(place);
    EXPECT_EQ(paths[0], choices()[0]);
    EXPECT_EQ(paths[1].reason, "by cuFile; " + std::string(reason));
    EXPECT_TRUE(paths[1].usable && paths[2].usable);
    EXPECT_EQ(paths[1].measured_bytes_per_second, 0);
    EXPECT_EQ(paths[2], choices()[2]);
  };
  constexpr std::string_view unmeasured = "not measured on this file system: `inrush probe PATH` does";
  expect_unmeasured(place(), unmeasured);
  keep(rows());
  ProbePlace other = place();
  other.gpu = "GPU-of-somebody-else";
  expect_unmeasured(other, unmeasured);
  other = place();
  other.driver = "Fake H200, driver API 13.1";
  expect_unmeasured(other, unmeasured);
  other = place();
  other.path = "/proc";
  expect_unmeasured(other, unmeasured);
  other.path = folder_ / "absent";
  expect_unmeasured(other, unmeasured);
  other = place();
  other.cufile_library = INRUSH_FAKE_CUFILE_14;
  expect_unmeasured(other, unmeasured);
  other.cufile_library = folder_ / "none.so";
  expect_unmeasured(other, unmeasured);
  {
    const Variable variable("CUFILE_ALLOW_COMPAT_MODE", "true");
    expect_unmeasured(place(), unmeasured);
  }
  other = place();
  other.state_folder.clear();
  expect_unmeasured(other, "not measured: there is no state folder that results are kept in (INRUSH_STATE)");
  EXPECT_EQ(applied(place())[1].measured_bytes_per_second, 3.5e9) << "all of this was about the place";
  other = place();
  other.path.clear();
  EXPECT_EQ(applied(other), choices()) << "no file system is meant";
}

TEST_F(ProbeCacheTest, TheConfigurationThatHoldsIsPartOfTheKey) {
  const std::string file = folder_.write("cufile.json", std::string(R"({"properties": {}})"));
  const Variable variable("CUFILE_ENV_PATH_JSON", file);
  keep(rows());
  EXPECT_EQ(applied(place())[1].measured_bytes_per_second, 3.5e9);
  folder_.write("cufile.json", std::string(R"({"properties": {"use_pci_p2pdma": true}})"));
  EXPECT_EQ(applied(place())[1].measured_bytes_per_second, 0);
}

TEST_F(ProbeCacheTest, OurOwnConfigurationOfAForcedPathChangesNothing) {
  keep(rows());
  const std::string file =
      folder_.write("own/cufile.json", cufile_configuration(PathPreference::gds, folder_ / "own"));
  const Variable variable("CUFILE_ENV_PATH_JSON", file);
  EXPECT_EQ(applied(place())[1].measured_bytes_per_second, 3.5e9);
  folder_.write("own/cufile.json", cufile_configuration(PathPreference::gds, folder_ / "own") + " ");
  EXPECT_EQ(applied(place())[1].measured_bytes_per_second, 0);
}

// The program inrush-probe on the fake libraries. FAKE_CUFILE steers the child's.
class ProbeProgramTest : public testing::Test {
 protected:
  ProbeProgramTest() : cuda_(INRUSH_FAKE_CUDA), cufile_(INRUSH_FAKE_CUFILE_15) {
    file_ = folder_.write("weights.bin", fakes::patterned_bytes(5 * mib + 4099));
  }

  LoaderOptions options() {
    return {.cuda_library = INRUSH_FAKE_CUDA,
            .cufile_library = INRUSH_FAKE_CUFILE_15,
            .state_folder = folder_ / "state"};
  }
  ProbeReport probe(const std::string& words, ProbeOptions options = {}) {
    const Variable steering("FAKE_CUFILE", words);
    options.program = INRUSH_PROBE_PROGRAM;
    Loader loader(this->options());
    return loader.probe(file_, {.kind = DeviceKind::cuda, .index = 1}, options);
  }
  // The row of one path. That of "staged" is looked at too: it never depends on cuFile.
  ProbeCandidate row(const std::string& words, const std::string& path, ProbeOptions options = {}) {
    const ProbeReport report = probe(words, std::move(options));
    EXPECT_EQ(report.candidates.size(), 3U);
    EXPECT_TRUE(report.candidates.at(0).usable) << report.candidates.at(0).reason;
    EXPECT_PRED2(has, report.candidates.at(0).reason, "every byte equal");
    EXPECT_GT(report.candidates.at(0).bytes_per_second, 0);
    return path == "gds" ? report.candidates.at(1) : report.candidates.at(2);
  }

  fakes::FakeCuda cuda_;
  fakes::FakeCufile cufile_;
  fakes::TempFolder folder_;
  std::string file_;
};

struct Expected {
  const char* words;
  const char* path;
  bool usable;
  const char* way;
  const char* reason;
};

TEST_F(ProbeProgramTest, EachKindOfMachineGetsItsRow) {
  for (const Expected& expected : {
           Expected{"p2pdma", "gds", true, "storage -> device (cuFile P2PDMA)", "reads by P2PDMA"},
           Expected{"nvfs", "gds", true, "storage -> device (cuFile nvidia-fs)", "by nvidia-fs"},
           Expected{"mute", "gds", true, "storage -> device (cuFile, way unproven)", "\"gds (unproven)\""},
           Expected{"compat", "gds", false, "", "5001"},
           Expected{"silent", "gds", false, "storage -> host -> device (cuFile compat)",
                    "did not go straight: the load reports \"cufile-compat\""},
           // Counters that lie look like the truth: only the bytes can be compared.
           Expected{"liar", "gds", true, "storage -> device (cuFile P2PDMA)", "every byte equal"},
           Expected{"no_udev", "gds", false, "O_DIRECT -> ring", "5027"},
           Expected{"prints", "gds", true, "storage -> device (cuFile P2PDMA)", "every byte equal"},
           Expected{"crash=cuFileRead", "gds", false, "", "ended by signal 11"},
           Expected{"fail=cuFileDriverOpen:1:5013", "gds", false, "", "5013"},
           Expected{"compat", "cufile-compat", true, "storage -> host -> device (cuFile compat)", "by POSIX"},
           Expected{"p2pdma", "cufile-compat", true, "storage -> host -> device (cuFile compat)", "by POSIX"},
           Expected{"nvfs", "cufile-compat", true, "storage -> device (cuFile nvidia-fs)", "\"gds\""},
           Expected{"no_udev", "cufile-compat", false, "O_DIRECT -> ring", "cuFile read nothing"},
       }) {
    const ProbeCandidate candidate = row(expected.words, expected.path);
    const std::string what = std::string(expected.words) + " " + expected.path + ": " + candidate.reason;
    EXPECT_EQ(candidate.usable, expected.usable) << what;
    EXPECT_EQ(candidate.way, expected.way) << what;
    EXPECT_PRED2(has, candidate.reason, expected.reason);
    EXPECT_FALSE(candidate.wrong_bytes) << what;
    EXPECT_EQ(candidate.bytes_per_second > 0, expected.usable) << what;
    EXPECT_EQ(candidate.cpu_seconds_per_gb > 0, expected.usable) << what;
  }
}

TEST_F(ProbeProgramTest, WrongBytesAreFoundAndKept) {
  const ProbeReport report = probe("corrupt_read=2");
  for (const ProbeCandidate& candidate : {report.candidates.at(1), report.candidates.at(2)}) {
    EXPECT_TRUE(candidate.wrong_bytes) << candidate.reason;
    EXPECT_FALSE(candidate.usable);
    EXPECT_PRED2(has, candidate.reason, "WRONG BYTES at offset ");
  }
  EXPECT_EQ(report.chosen, "staged");
  Loader loader(options());
  const Machine machine = loader.machine({.kind = DeviceKind::cuda, .index = 1}, file_);
  EXPECT_FALSE(machine.paths.at(1).usable);
  EXPECT_PRED2(has, machine.paths.at(1).reason, "WRONG BYTES");
}

TEST_F(ProbeProgramTest, ALibraryThatHangsIsLeft) {
  const ProbeOptions options{.timeout = std::chrono::milliseconds(1500)};
  EXPECT_PRED2(has, row("hang=cuFileDriverOpen", "gds", options).reason, "did not come back within 1.5 s");
}

TEST_F(ProbeProgramTest, NoLibraryIsAnAnswer) {
  Loader loader({.cuda_library = INRUSH_FAKE_CUDA, .cufile_library = folder_ / "absent.so"});
  const ProbeReport report =
      loader.probe(file_, {.kind = DeviceKind::cuda}, {.program = INRUSH_PROBE_PROGRAM});
  EXPECT_TRUE(report.candidates.at(0).usable);
  EXPECT_PRED2(has, report.candidates.at(1).reason, "no libcufile");
  EXPECT_EQ(report.chosen, "staged");
}

TEST_F(ProbeProgramTest, NoLogIsLeftBehind) {
  ASSERT_FALSE(fs::exists("cufile.log"));
  EXPECT_TRUE(row("log", "gds").usable);
  EXPECT_FALSE(fs::exists("cufile.log"));
  EXPECT_FALSE(fs::exists(folder_ / "state/cufile.log"));
}

TEST_F(ProbeProgramTest, AnySizeOfFileIsRead) {
  for (const std::uint64_t size : std::initializer_list<std::uint64_t>{1, 2, 4095, 4097, 3 * mib + 1}) {
    file_ = folder_.write("odd.bin", fakes::patterned_bytes(size, size));
    const ProbeReport report = probe("p2pdma");
    for (const ProbeCandidate& candidate : report.candidates)
      EXPECT_TRUE(candidate.usable) << size << ": " << candidate.path << ": " << candidate.reason;
    EXPECT_EQ(report.bytes, size);
  }
}

TEST_F(ProbeProgramTest, TheCpuHasOneRow) {
  Loader loader(options());
  const ProbeReport report = loader.probe(file_, {}, {.program = INRUSH_PROBE_PROGRAM});
  ASSERT_EQ(report.candidates.size(), 1U);
  EXPECT_TRUE(report.candidates[0].usable) << report.candidates[0].reason;
  EXPECT_EQ(report.chosen, "staged");
}

TEST_F(ProbeProgramTest, LoadsUseWhatWasMeasured) {
  const Device device{.kind = DeviceKind::cuda, .index = 1};
  file_ = folder_.write("large.bin", fakes::patterned_bytes(34 * mib));
  Loader loader(options());
  EXPECT_PRED2(has, loader.machine(device, file_).paths.at(1).reason, "not measured on this file system");
  const ProbeReport report = probe("compat");
  EXPECT_TRUE(fs::exists(report.cached_in)) << report.why_not_cached;
  const Machine machine = loader.machine(device, folder_.path());
  EXPECT_EQ(machine.paths.at(0).measured_bytes_per_second, report.candidates.at(0).bytes_per_second);
  EXPECT_FALSE(machine.paths.at(1).usable);
  EXPECT_PRED2(has, machine.paths.at(1).reason, "5001");
  EXPECT_EQ(machine.paths.at(2).measured_bytes_per_second, report.candidates.at(2).bytes_per_second);
  const std::vector<Device> devices = loader.devices();
  EXPECT_EQ(report.device, devices.at(1)) << "by UUID, also where it was named by its number";
  EXPECT_GT(loader.machine(devices.at(1), file_).paths.at(0).measured_bytes_per_second, 0);
  EXPECT_EQ(loader.machine(devices.at(0), file_).paths.at(0).measured_bytes_per_second, 0)
      << "of the other GPU nothing is known";
}

TEST_F(ProbeProgramTest, WordsThatMakeNoSenseAreRefused) {
  EXPECT_NE(::system((std::string(INRUSH_PROBE_PROGRAM) + " >/dev/null 2>&1").c_str()), 0);
}

}  // namespace
}  // namespace inrush
