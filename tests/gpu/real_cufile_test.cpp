// Real versions of libcufile on a real GPU: compat mode beside the staged path, what is said where GPUDirect
// Storage is not there, and disks that udev does not know. INRUSH_TEST_CUFILE lists them, with colons
// between. A process has one libcufile for good, and a failed open changes it: so each test starts this
// program again for each library and each case, by the name of a disabled test. Run by tests/gpu/run.sh.
#include <inrush/loader.hpp>

#include "fakes/test_files.hpp"

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string_view>

namespace inrush {
namespace {

using namespace fakes;
namespace fs = std::filesystem;

constexpr std::uint64_t mib = 1ULL << 20;
constexpr const char* libraries_variable = "INRUSH_TEST_CUFILE";
constexpr const char* compat_way = "storage -> host -> device (cuFile compat)";

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::vector<std::string> libraries() {
  const char* const text = std::getenv(libraries_variable);
  std::istringstream list(text != nullptr ? text : "");
  std::vector<std::string> paths;
  for (std::string path; std::getline(list, path, ':');) {
    if (!path.empty()) paths.push_back(path);
  }
  return paths;
}

// --- the disk, as udev knows it ---

// Of a file system: the first that mountinfo has for the device.
std::string type_of(dev_t device) {
  std::ifstream table("/proc/self/mountinfo");
  const std::string wanted = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string id, parent, number;
    words >> id >> parent >> number;
    const std::size_t dash = line.find(" - ");
    if (number != wanted || dash == std::string::npos) continue;
    return line.substr(dash + 3, line.find(' ', dash + 3) - dash - 3);
  }
  return "";
}

// A record of the folder's disk for as long as this lives; one that was there is left alone.
class UdevRecord {
 public:
  explicit UdevRecord(const std::string& folder) {
    struct stat facts = {};
    if (::stat(folder.c_str(), &facts) != 0) return;
    path_ = path_of(facts.st_dev);
    if (fs::exists(path_)) return;
    std::error_code ignored;
    for (const char* made : {"/run/udev", "/run/udev/data"}) {
      if (fs::create_directory(made, ignored)) made_folders_.insert(made_folders_.begin(), made);
    }
    std::ofstream(path_) << "E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=" << type_of(facts.st_dev) << "\n";
    is_ours_ = fs::exists(path_);
  }
  ~UdevRecord() {
    std::error_code ignored;
    if (is_ours_) fs::remove(path_, ignored);
    for (const std::string& made : made_folders_) fs::remove(made, ignored);
  }
  UdevRecord(const UdevRecord&) = delete;
  UdevRecord& operator=(const UdevRecord&) = delete;

  [[nodiscard]] static std::string path_of(dev_t device) {
    return "/run/udev/data/b" + std::to_string(major(device)) + ":" + std::to_string(minor(device));
  }
  [[nodiscard]] bool is_there() const { return fs::exists(path_); }

 private:
  std::string path_;
  bool is_ours_ = false;
  std::vector<std::string> made_folders_;  // the inner one first
};

// For the rest of this process there is no /run/udev. False where that is not allowed.
bool hide_udev() {
  if (!fs::exists("/run/udev/data")) return true;
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/run/udev", "tmpfs", 0, nullptr) == 0;
}

// --- one case with one library, in a process of its own ---

class RealCufileCase : public testing::Test {
 protected:
  RealCufileCase() : library_(libraries().at(0)) {
    options_.cufile_library = library_;
    options_.state_folder = state_.path();
  }

  // The data starts `shift` bytes behind a multiple of 4096.
  void write(const std::vector<TestTensor>& tensors, std::uint32_t shift) {
    const std::string path = folder_ / "model.safetensors";
    contents_ = write_safetensors(path, tensors, 7);
    std::uint64_t start = fs::file_size(path);
    for (const auto& [name, content] : contents_) start -= content.size();
    const auto padding = static_cast<std::uint32_t>((4096 - start % 4096) % 4096);
    contents_ = write_safetensors(path, tensors, 7, padding + shift);
    checkpoint_ = discover(path);
  }

  static LoadRequest by(PathPreference path) {
    return {.device = {DeviceKind::cuda, 0}, .path = path, .page_cache = PageCachePolicy::keep};
  }

  // Every byte compared on the host.
  Report load_equal(Loader& loader, PathPreference path) {
    const auto load = loader.start(*checkpoint_, by(path));
    std::size_t count = 0;
    std::size_t wrong = 0;
    std::vector<Tensor> tensors;
    while (std::optional<Tensor> tensor = load->next()) tensors.push_back(std::move(*tensor));
    for (const Tensor& tensor : tensors) {
      std::string bytes(tensor.size_bytes, '\0');
      loader.copy_to_host(tensor, 0, std::as_writable_bytes(std::span(bytes)));
      wrong += bytes == contents_.at(tensor.name) ? 0U : 1U;
      ++count;
    }
    EXPECT_EQ(wrong, 0U) << "of " << count;
    EXPECT_EQ(count, checkpoint_->tensor_count());
    const Report report = load->report();
    EXPECT_TRUE(report.complete);
    return report;
  }

  // Libraries before 1.15 do not count, and nothing is claimed for them.
  [[nodiscard]] bool library_counts() const {
    void* const loaded = ::dlopen(library_.c_str(), RTLD_NOW | RTLD_NOLOAD);
    return loaded != nullptr && ::dlsym(loaded, "cuFileGetStatsL3") != nullptr;
  }

  void compare_paths(const std::string& what) {
    const UdevRecord record(folder_.path());
    ASSERT_TRUE(record.is_there()) << "no udev record of the disk, and none could be written";
    Loader loader(options_);
    Report staged;
    Report compat;
    for (int i = 0; i < 3; ++i) {  // the first opens, pins and registers
      staged = load_equal(loader, PathPreference::staged);
      compat = load_equal(loader, PathPreference::cufile_compat);
    }
    EXPECT_EQ(staged.path, "staged");
    EXPECT_EQ(compat.path, library_counts() ? "cufile-compat" : "cufile-compat (unproven)");
    ASSERT_EQ(compat.bytes_by_path.size(), 1U) << report_to_text(compat);
    EXPECT_EQ(compat.bytes_by_path[0].bytes, compat.loaded_bytes);
    if (library_counts()) {
      EXPECT_EQ(compat.bytes_by_path[0].path, compat_way);
    }
    for (const Fallback& fallback : compat.fallbacks)
      ADD_FAILURE() << fallback.what << ": " << fallback.reason;
    const double giga = 1e9;
    std::printf("speed: %s %s staged %.2f GB/s, cufile-compat %.2f GB/s\n", library_.c_str(), what.c_str(),
                staged.bytes_per_second / giga, compat.bytes_per_second / giga);
  }

  const std::string library_;
  const TempFolder folder_;  // beneath TMPDIR: a file system with a disk
  const TempFolder state_;
  LoaderOptions options_;
  TestBytes contents_;
  std::optional<Checkpoint> checkpoint_;
};

TEST_F(RealCufileCase, DISABLED_Aligned) {
  write({{"a", DType::bf16, {8192, 4096}}, {"b", DType::bf16, {4096, 8192}}, {"c", DType::f32, {4096, 8192}}},
        0);
  compare_paths("aligned");
}

TEST_F(RealCufileCase, DISABLED_UnalignedDataStart) {
  write(mixed_tensors(256 * mib, 3), 3);
  compare_paths("unaligned");
}

TEST_F(RealCufileCase, DISABLED_ManySmallTensors) {
  std::vector<TestTensor> tensors;
  for (std::uint64_t i = 0; i < 19'000; ++i)
    tensors.push_back({"t" + std::to_string(i), DType::u8, {1 + i * 37 % 8191}});
  write(tensors, 1001);
  compare_paths("19,000 small tensors");
}

// What the machine measures decides, and the plan of the next load says so.
TEST_F(RealCufileCase, DISABLED_TheProbeChooses) {
  const UdevRecord record(folder_.path());
  ASSERT_TRUE(record.is_there()) << "no udev record of the disk, and none could be written";
  write(mixed_tensors(512 * mib, 6), 0);
  Loader loader(options_);
  const Device device{DeviceKind::cuda, 0};
  const ProbeReport probed = loader.probe(folder_.path(), device, {.program = INRUSH_PROBE_PROGRAM});
  std::printf("gds: %s: %s\n", library_.c_str(), probe_to_text(probed).c_str());
  for (const ProbeCandidate& candidate : probed.candidates) {
    EXPECT_FALSE(candidate.wrong_bytes) << candidate.path;
    if (candidate.path == "gds") continue;  // impossible on most machines
    EXPECT_TRUE(candidate.usable && candidate.bytes_per_second > 0) << candidate.path << candidate.reason;
  }
  Loader next(options_);
  const Plan plan =
      make_plan(*checkpoint_, by(PathPreference::automatic), next.machine(device, folder_.path()));
  EXPECT_EQ(plan.path, probed.chosen);
  EXPECT_TRUE(has(plan.path_rule, "measured here")) << plan.path_rule;
  std::printf("speed: %s the probe chose %s: %s\n", library_.c_str(), plan.path.c_str(),
              plan.path_rule.c_str());
  EXPECT_EQ(load_equal(next, PathPreference::automatic).path, plan.path);
}

// Where it cannot be used the reason has a code; where it can, the counters must say so.
TEST_F(RealCufileCase, DISABLED_ForcedGds) {
  const UdevRecord record(folder_.path());
  write(mixed_tensors(16 * mib, 4), 0);
  Loader loader(options_);
  try {
    const Report report = load_equal(loader, PathPreference::gds);
    std::printf("gds: %s: %s\n", library_.c_str(), report_to_text(report).c_str());
    const bool was_refused =
        report.path == "staged" && !report.fallbacks.empty() && has(report.fallbacks[0].reason, "5008");
    EXPECT_TRUE(was_refused || report.path == "gds") << report.path;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment_unfit) << error.what();
    EXPECT_TRUE(has(error.what(), "5001") || has(error.what(), "5008")) << error.what();
    EXPECT_TRUE(has(error.what(), "compat mode forbidden")) << error.what();
    EXPECT_TRUE(has(error.what(), fs::canonical(library_).string())) << error.what();
    std::printf("gds: %s\n", error.what());
  }
  EXPECT_EQ(load_equal(loader, PathPreference::staged).path, "staged") << "the Loader is as good as new";
  EXPECT_FALSE(fs::exists("cufile.log")) << "left in the current folder";
}

TEST_F(RealCufileCase, DISABLED_WithoutAUdevRecord) {
  ASSERT_TRUE(hide_udev()) << "there are records, and hiding them takes CAP_SYS_ADMIN";
  write(mixed_tensors(16 * mib, 5), 0);
  Loader loader(options_);
  const Report report = load_equal(loader, PathPreference::cufile_compat);
  EXPECT_EQ(report.path, "staged");
  ASSERT_EQ(report.fallbacks.size(), 1U) << report_to_text(report);
  EXPECT_EQ(report.fallbacks[0].what, "cuFile compat");
  EXPECT_TRUE(has(report.fallbacks[0].reason, "5027")) << report.fallbacks[0].reason;
  EXPECT_TRUE(has(report.fallbacks[0].reason, "/run/udev")) << report.fallbacks[0].reason;
}

// --- the processes ---

// Runs one of the above for each library.
void run_case(const std::string& name) {
  const std::vector<std::string> paths = libraries();
  ASSERT_FALSE(paths.empty()) << libraries_variable << " is not set: see tests/gpu/run.sh";
  for (const std::string& path : paths) {
    ASSERT_TRUE(fs::exists(path)) << path;
    std::vector<std::string> words = {"gpu_tests", "--gtest_filter=RealCufileCase.DISABLED_" + name,
                                      "--gtest_also_run_disabled_tests", "--gtest_brief=1"};
    std::vector<std::string> environment = {std::string(libraries_variable) + "=" + path};
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (!std::string_view(*entry).starts_with(libraries_variable)) environment.emplace_back(*entry);
    }
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> list;
      for (std::string& text : texts) list.push_back(text.data());
      list.push_back(nullptr);
      return list;
    };
    std::fflush(stdout);
    pid_t child = 0;
    ASSERT_EQ(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, pointers(words).data(),
                            pointers(environment).data()),
              0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << path << ": status " << status << ", its output is above";
  }
}

TEST(RealCufile, Aligned) { run_case("Aligned"); }
TEST(RealCufile, UnalignedDataStart) { run_case("UnalignedDataStart"); }
TEST(RealCufile, ManySmallTensors) { run_case("ManySmallTensors"); }
TEST(RealCufile, TheProbeChooses) { run_case("TheProbeChooses"); }
TEST(RealCufile, ForcedGds) { run_case("ForcedGds"); }
TEST(RealCufile, WithoutAUdevRecord) { run_case("WithoutAUdevRecord"); }

}  // namespace
}  // namespace inrush
