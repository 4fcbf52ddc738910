// Opening libcufile, what its counters say by version, registrations, and what is left alone where it fails.
#include "gpu/cufile_driver.hpp"

#include <inrush/error.hpp>

#include "base/unique_fd.hpp"
#include "fakes/child_process.hpp"
#include "fakes/fake_cuda_fixture.hpp"
#include "fakes/fake_cufile.hpp"
#include "fakes/temp_folder.hpp"
#include "transfer/device_ring.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inrush::engine {
namespace {

using namespace fakes;
namespace fs = std::filesystem;

constexpr std::uint64_t block_bytes = 4096;
constexpr RingShape small_ring{16 * block_bytes, 2};

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

class CufileDriverTest : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    load_fake(INRUSH_FAKE_CUFILE_19);
  }
  void TearDown() override {
    driver_ = nullptr;
    gpu_ = nullptr;
    if (fake_) {
      EXPECT_EQ((*fake_)->misuse_count(), 0U) << (*fake_)->last_misuse();
    }
    fake_.reset();
    FakeCudaTest::TearDown();
  }

  void load_fake(const std::string& path) {
    fake_path_ = path;
    fake_.emplace(path);
    gpu_ = open_gpu();
  }
  void open(CufileMode mode = CufileMode::direct) {
    driver_ = gpu_->open_cufile({mode, fake_path_, folder_.path()});
  }
  Error open_error(CufileMode mode = CufileMode::direct) {
    try {
      open(mode);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "it opened";
    return {ErrorCode::internal, ""};
  }
  // As the program that we are loaded into would call it.
  CufileStatus host_call(const char* entry) {
    return reinterpret_cast<CufileStatus (*)()>(::dlsym(fake_->library(), entry))();
  }
  long use_count() { return reinterpret_cast<long (*)()>(::dlsym(fake_->library(), "cuFileUseCount"))(); }
  std::uint64_t calls(const char* entry) { return (*fake_)->entry_count(entry); }

  // `count` reads of one block each, into a ring of their own.
  void read_blocks(std::uint64_t count) {
    const auto ring = std::make_shared<const DeviceRing>(*gpu_, driver_, small_ring);
    const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    ASSERT_TRUE(file.is_open());
    const CufileFile registered(driver_, file.get());
    for (std::uint64_t i = 0; i < count; ++i) {
      const CufileTransfer done =
          registered.read(i * block_bytes, {ring->bytes().data(), i * block_bytes, block_bytes});
      EXPECT_EQ(done, (CufileTransfer{block_bytes, 0}));
    }
    const std::vector<std::byte> bytes = read_back(*gpu_, ring->bytes().data(), count * block_bytes);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), content_.begin()));
  }

  std::optional<FakeCufile> fake_;
  std::string fake_path_;
  const TempFolder folder_;
  const std::vector<std::byte> content_ = patterned_bytes(16 * block_bytes);
  const std::string path_ = folder_.write("data", content_);
  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<CufileDriver> driver_;
};

TEST_F(CufileDriverTest, StrictOpen) {
  open();
  EXPECT_EQ(driver_->facts().mode, CufileMode::direct);
  EXPECT_TRUE(driver_->facts().is_strict);
  EXPECT_FALSE(driver_->facts().was_open);
  EXPECT_EQ(driver_->facts().version, "1.19");
  EXPECT_EQ(driver_->facts().library, fs::canonical(fake_path_));
  EXPECT_EQ(use_count(), 1);
  driver_ = nullptr;
  EXPECT_EQ(use_count(), 0);
}

TEST_F(CufileDriverTest, CompatOpenIsNotStrict) {
  (*fake_)->set_personality(CufilePersonality::compat);
  open(CufileMode::compat);
  EXPECT_FALSE(driver_->facts().is_strict);
  EXPECT_EQ(driver_->facts().mode, CufileMode::compat);
  read_blocks(3);
  EXPECT_EQ(driver_->counts(), (CufileCounts{.p2p_reads = 0, .nvfs_reads = 0, .posix_reads = 3}));
}

TEST_F(CufileDriverTest, ARefusedOpenNamesLibraryVersionCodeAndRemedy) {
  (*fake_)->set_personality(CufilePersonality::compat);
  const Error error = open_error();
  EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
  for (const char* part : {"cufile-1.19/libcufile.so", "(1.19)", "compat mode forbidden", "5001",
                           "CU_FILE_DRIVER_NOT_INITIALIZED", "nvidia-fs", "staged"})
    EXPECT_TRUE(has(error.what(), part)) << part << " is not in: " << error.what();
}

// A failed open forgets the parameters: any call that followed would open with compat mode allowed.
TEST_F(CufileDriverTest, NothingIsCalledAfterARefusedOpen) {
  (*fake_)->set_personality(CufilePersonality::compat);
  open_error();
  EXPECT_EQ(calls("cuFileDriverOpen"), 1U);
  for (const char* entry :
       {"cuFileDriverClose", "cuFileDriverGetProperties", "cuFileHandleRegister", "cuFileBufRegister",
        "cuFileRead", "cuFileGetStatsLevel", "cuFileStatsStart", "cuFileGetStatsL3"})
    EXPECT_EQ(calls(entry), 0U) << entry;
  EXPECT_EQ((*fake_)->live(), FakeCufileLive{});
}

TEST_F(CufileDriverTest, ParametersThatAreRefusedAreTyped) {
  (*fake_)->fail("cuFileSetParameterBool", 1, 5022);
  const Error error = open_error();
  EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
  EXPECT_TRUE(has(error.what(), "allow_compat_mode")) << error.what();
  EXPECT_TRUE(has(error.what(), "5022")) << error.what();
  EXPECT_EQ(calls("cuFileDriverOpen"), 0U) << "it would have allowed compat mode";
}

// What the driver answers in place of a code of its own is put into words too.
TEST_F(CufileDriverTest, TheCudaDriversOwnErrorIsNamed) {
  (*fake_)->fail("cuFileDriverOpen", 1, cufile_cuda_driver_error);
  const Error error = open_error();
  EXPECT_TRUE(has(error.what(), "5011")) << error.what();
  EXPECT_TRUE(has(error.what(), "CUDA_ERROR_OUT_OF_MEMORY")) << error.what();
}

TEST_F(CufileDriverTest, NoPropertiesMeansNotStrict) {
  (*fake_)->fail("cuFileDriverGetProperties", 1, 5030);
  open();
  EXPECT_FALSE(driver_->facts().is_strict) << "what nobody has seen is not claimed";
}

TEST_F(CufileDriverTest, AHostThatOpenedFirstKeepsItsSettingsAndItsReference) {
  ASSERT_EQ(host_call("cuFileDriverOpen").code, 0);
  open();
  EXPECT_TRUE(driver_->facts().was_open);
  EXPECT_FALSE(driver_->facts().is_strict) << "the host allowed compat mode";
  EXPECT_EQ(calls("cuFileSetParameterBool"), 0U);
  EXPECT_EQ(use_count(), 2);
  read_blocks(2);
  driver_ = nullptr;
  EXPECT_EQ(use_count(), 1);
  EXPECT_EQ(host_call("cuFileDriverClose_v2").code, 0);
}

TEST_F(CufileDriverTest, AHostThatForbadeCompatModeIsStrict) {
  const auto set = reinterpret_cast<CufileStatus (*)(int, unsigned char)>(
      ::dlsym(fake_->library(), "cuFileSetParameterBool"));
  ASSERT_EQ(set(cufile_bool_allow_compat, 0).code, 0);
  ASSERT_EQ(host_call("cuFileDriverOpen").code, 0);
  open();
  EXPECT_TRUE(driver_->facts().was_open);
  EXPECT_TRUE(driver_->facts().is_strict);
  driver_ = nullptr;
  EXPECT_EQ(host_call("cuFileDriverClose_v2").code, 0);
}

TEST_F(CufileDriverTest, TwoOpensOnOneDeviceShareTheLibrary) {
  open();
  const std::shared_ptr<CufileDriver> first = driver_;
  open();
  EXPECT_TRUE(driver_->facts().was_open);
  EXPECT_TRUE(driver_->facts().is_strict);
  EXPECT_EQ(use_count(), 2);
}

TEST_F(CufileDriverTest, TheLogGoesWhereItIsTold) {
  (*fake_)->apply_words("log");
  open();
  EXPECT_TRUE(fs::exists(folder_ / "cufile.log"));
  EXPECT_FALSE(fs::exists("cufile.log"));
}

TEST_F(CufileDriverTest, Before115ThereAreNoCounters) {
  load_fake(INRUSH_FAKE_CUFILE_14);
  open();
  EXPECT_EQ(driver_->facts().version, "1.14");
  EXPECT_TRUE(driver_->facts().is_strict);
  EXPECT_EQ(driver_->counts(), std::nullopt);
  read_blocks(2);
  EXPECT_EQ(driver_->counts(), std::nullopt);
  EXPECT_EQ(driver_->issued_reads(), 2U);
}

TEST_F(CufileDriverTest, ReadsAreCountedInBothLayouts) {
  for (const char* path : {INRUSH_FAKE_CUFILE_15, INRUSH_FAKE_CUFILE_19}) {
    SCOPED_TRACE(path);
    driver_ = nullptr;
    load_fake(path);
    for (const bool is_nvfs : {false, true}) {
      (*fake_)->set_personality(is_nvfs ? CufilePersonality::nvfs : CufilePersonality::p2pdma);
      open();
      ASSERT_EQ(driver_->counts(), CufileCounts{});
      read_blocks(5);
      EXPECT_EQ(driver_->counts(),
                is_nvfs ? (CufileCounts{.nvfs_reads = 5}) : (CufileCounts{.p2p_reads = 5}));
      driver_ = nullptr;
    }
  }
}

// The trap: 1.19 writes 14 numbers more before the counters of GPUs. Read by the older layout they are
// others.
TEST_F(CufileDriverTest, TheLayoutsAreNotEachOther) {
  open();
  read_blocks(5);
  const auto newer = std::make_unique<CufileCounters19>();
  const auto get = reinterpret_cast<CufileStatus (*)(void*)>(::dlsym(fake_->library(), "cuFileGetStatsL3"));
  ASSERT_EQ(get(newer.get()).code, 0);
  ASSERT_EQ(newer->gpu_count, 1U);
  ASSERT_EQ(newer->gpus[0].p2p_reads, 5U);
  CufileCounters15 older{};
  std::memcpy(&older, newer.get(), sizeof(older));
  EXPECT_NE(older.gpus[0].p2p_reads, 5U);
  EXPECT_EQ(sizeof(CufileCounters19) - sizeof(CufileCounters15), 14 * sizeof(std::uint64_t));
}

TEST_F(CufileDriverTest, WhereOurGpuIsNotListedAllStandForIt) {
  open();
  read_blocks(4);
  ASSERT_EQ(driver_->counts(), (CufileCounts{.p2p_reads = 4}));
  // As a MIG instance, which may be counted under its GPU.
  const std::array<unsigned char, 16> other{1, 2, 3};
  (*fake_)->set_uuid(other.data());
  EXPECT_EQ(driver_->counts(), (CufileCounts{.p2p_reads = 4}));
}

TEST_F(CufileDriverTest, CountersThatCannotBeHadAreNothing) {
  for (const char* entry : {"cuFileGetStatsLevel", "cuFileStatsStart", "cuFileGetStatsL3"}) {
    SCOPED_TRACE(entry);
    (*fake_)->reset();
    (*fake_)->fail_from(entry, 1, 5022);
    open();
    read_blocks(1);
    EXPECT_EQ(driver_->counts(), std::nullopt);
    driver_ = nullptr;
  }
  // The level was not taken before the open, and is not afterwards.
  (*fake_)->reset();
  (*fake_)->fail_from("cuFileSetStatsLevel", 1, 5022);
  open();
  EXPECT_EQ(driver_->counts(), std::nullopt);
  EXPECT_EQ(calls("cuFileSetStatsLevel"), 2U);
}

TEST_F(CufileDriverTest, RegistrationsThatFailAreTyped) {
  open();
  const std::shared_ptr<void> memory = gpu_->allocate(4 * block_bytes, block_bytes);
  for (const int code : {5036, 5012, 5014, 5016, 5023, 5001}) {
    (*fake_)->fail("cuFileBufRegister", 1, code);
    try {
      static_cast<void>(driver_->register_memory({static_cast<std::byte*>(memory.get()), 4 * block_bytes}));
      ADD_FAILURE() << code;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
      EXPECT_TRUE(has(error.what(), std::to_string(code))) << error.what();
      EXPECT_TRUE(has(error.what(), "16.4 kB on cuda:0")) << error.what();
    }
  }
  EXPECT_EQ((*fake_)->live().buffers, 0U);
}

TEST_F(CufileDriverTest, AFailedRegistrationFreesItsRing) {
  open();
  const FakeCudaLive before = cuda_->live();
  (*fake_)->fail("cuFileBufRegister", 1, 5036);
  EXPECT_THROW(DeviceRing(*gpu_, driver_, small_ring), Error);
  EXPECT_TRUE(cuda_->live() == before);
  EXPECT_EQ(calls("cuFileBufDeregister"), 0U);
}

// The fake calls it a misuse where memory was freed first, or the driver closed with a buffer alive.
TEST_F(CufileDriverTest, MemoryIsDeregisteredBeforeItIsFreed) {
  open();
  auto ring = std::make_unique<DeviceRing>(*gpu_, driver_, small_ring);
  EXPECT_EQ((*fake_)->live().registered_bytes, small_ring.slot_bytes * small_ring.slot_count);
  ring = nullptr;
  EXPECT_EQ((*fake_)->live().buffers, 0U);
  EXPECT_EQ(use_count(), 1);
}

TEST_F(CufileDriverTest, TheDriverStaysForWhatIsRegistered) {
  open();
  auto ring = std::make_unique<DeviceRing>(*gpu_, driver_, small_ring);
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  auto registered = std::make_unique<CufileFile>(driver_, file.get());
  driver_ = nullptr;
  gpu_ = nullptr;
  EXPECT_EQ(use_count(), 1);
  ring = nullptr;
  EXPECT_EQ(use_count(), 1) << "the file is registered";
  registered = nullptr;
  EXPECT_EQ((*fake_)->live(), FakeCufileLive{});
  EXPECT_EQ(calls("cuFileBufDeregister"), 1U);
  EXPECT_EQ(calls("cuFileDriverClose"), 1U);
}

TEST_F(CufileDriverTest, FilesThatAreRefusedAreTyped) {
  open();
  const UniqueFd buffered(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd direct(::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  const auto refusal = [&](int descriptor) -> std::string {
    try {
      const CufileFile file(driver_, descriptor);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(has(refusal(buffered.get()), "5008")) << "compat mode is forbidden";
  EXPECT_TRUE(has(refusal(-1), "5022"));
  EXPECT_EQ(refusal(direct.get()), "");
  (*fake_)->set_udev_record(0);
  EXPECT_TRUE(has(refusal(direct.get()), "/run/udev")) << "the remedy";
  EXPECT_EQ((*fake_)->live().handles, 0U);
}

TEST_F(CufileDriverTest, TheCpuTargetHasNoCufile) {
  try {
    static_cast<void>(open_host_gpu()->open_cufile({CufileMode::direct, fake_path_, ""}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
    EXPECT_TRUE(has(error.what(), "\"cpu\"")) << error.what();
  }
  EXPECT_EQ(calls("cuFileGetVersion"), 0U);
}

TEST_F(CufileDriverTest, WhatIsNoLibcufileSaysWhatItLacks) {
  for (const auto& [path, part] : {std::pair<std::string, std::string>{folder_ / "absent.so", "no libcufile"},
                                   {path_, "no libcufile"},
                                   {INRUSH_FAKE_CUDA, "has no cuFileDriverOpen"}}) {
    try {
      static_cast<void>(gpu_->open_cufile({CufileMode::direct, path, ""}));
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
      EXPECT_TRUE(has(error.what(), part)) << error.what();
      EXPECT_TRUE(has(error.what(), "install")) << error.what();
    }
  }
}

struct SeenFile {
  bool is_open = false;
  bool closes_on_exec = false;
  dev_t device = 0;
  ino_t inode = 0;

  bool operator==(const SeenFile&) const = default;
};

SeenFile standard_input() {
  struct stat facts = {};
  if (::fstat(0, &facts) != 0) return {};
  return {true, (::fcntl(0, F_GETFD) & FD_CLOEXEC) != 0, facts.st_dev, facts.st_ino};
}

// In a child of its own: standard input is not the test's to lose. `prepare` sets descriptor 0 up.
class StandardInputTest : public CufileDriverTest {
 protected:
  void expect_unchanged(const std::function<void()>& prepare) {
    gpu_ = nullptr;  // the child opens its own
    const std::string said = run_in_child([&]() -> std::string {
      gpu_ = open_gpu();
      (*fake_)->set_personality(CufilePersonality::compat);
      (*fake_)->close_descriptor_0(1);
      prepare();
      const SeenFile before = standard_input();
      try {
        open();
        return "it opened";
      } catch (const Error&) {
      }
      if (calls("cuFileDriverOpen") != 1) return "the library was not asked";
      const SeenFile after = standard_input();
      if (after == before) return "";
      return !after.is_open ? "closed" : before.is_open ? "another file" : "opened";
    });
    EXPECT_EQ(said, "");
  }

  void put_file_at_0(int flags) const {
    const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    ::dup3(file.get(), 3, 0);  // dup3 refuses equal numbers, and the file may be at 0 already
    ::dup3(3, 0, flags);
    ::close(3);
  }
};

TEST_F(StandardInputTest, IsBackAfterAnOpenThatClosedIt) {
  expect_unchanged([&] { put_file_at_0(0); });
}

TEST_F(StandardInputTest, KeepsItsFlag) {
  expect_unchanged([&] { put_file_at_0(O_CLOEXEC); });
}

TEST_F(StandardInputTest, StaysClosedWhereItWas) {
  expect_unchanged([] { ::close(0); });
}

// The fake logs as the real one does: into the current folder.
class CurrentFolderTest : public CufileDriverTest {
 protected:
  std::string open_in(const TempFolder& folder) {
    gpu_ = nullptr;
    return run_in_child([&]() -> std::string {
      if (::chdir(folder.path().c_str()) != 0) return "no folder";
      gpu_ = open_gpu();
      (*fake_)->set_personality(CufilePersonality::compat);
      (*fake_)->write_log();
      try {
        open();
        return "it opened";
      } catch (const Error&) {
      }
      return std::filesystem::exists("cufile.log") ? "log" : "";
    });
  }
};

TEST_F(CurrentFolderTest, KeepsNoLogOfTheLibrary) { EXPECT_EQ(open_in(TempFolder()), ""); }

TEST_F(CurrentFolderTest, KeepsALogThatWasThere) {
  const TempFolder folder;
  folder.write("cufile.log", std::string("mine"));
  EXPECT_EQ(open_in(folder), "log");
}

// --- which library ---

std::string lay_library(const TempFolder& folder, const std::string& place) {
  return folder.write(place + "/libcufile.so.0", std::string("not opened"));
}

TEST(CufileCandidates, OfAModuleInSitePackages) {
  const TempFolder folder;
  const std::string module = folder / "lib/python3.12/site-packages/inrush/_inrush.so";
  const std::string older = lay_library(folder, "lib/python3.12/site-packages/nvidia/cufile/lib");
  EXPECT_EQ(cufile_candidates(module).front(), older);
  const std::string newer = lay_library(folder, "lib/python3.12/site-packages/nvidia/cu13/lib");
  const std::vector<std::string> candidates = cufile_candidates(module);
  ASSERT_GE(candidates.size(), 3U);
  EXPECT_EQ(candidates[0], newer);
  EXPECT_EQ(candidates[1], older);
  EXPECT_EQ(candidates[2], "libcufile.so.0") << "where the dynamic linker looks";
}

TEST(CufileCandidates, OfDebiansPackages) {
  const TempFolder folder;
  const std::string library = lay_library(folder, "lib/python3/dist-packages/nvidia/cufile/lib");
  EXPECT_EQ(cufile_candidates(folder / "lib/python3/dist-packages/inrush/_inrush.so").front(), library);
}

TEST(CufileCandidates, OfACommandInAnEnvironment) {
  const TempFolder folder;
  const std::string library = lay_library(folder, "lib/python3.11/site-packages/nvidia/cu13/lib");
  EXPECT_EQ(cufile_candidates(folder / "bin/inrush").front(), library);
}

TEST(CufileCandidates, OtherwiseTheSystems) {
  const TempFolder folder;
  lay_library(folder, "lib/python3.11/elsewhere/nvidia/cu13/lib");
  for (const std::string& module : {folder / "bin/inrush", folder / "libinrush.so", std::string("inrush"),
                                    std::string(), folder / "a/b/c/inrush"}) {
    std::vector<std::string> expected = {"libcufile.so.0"};
    if (fs::exists("/usr/local/cuda/lib64/libcufile.so.0"))
      expected.emplace_back("/usr/local/cuda/lib64/libcufile.so.0");
    EXPECT_EQ(cufile_candidates(module), expected) << module;
  }
}

TEST(CufileLibrary, TheOneThatIsLoadedComesFirst) {
  const FakeCufile fake(INRUSH_FAKE_CUFILE_15);
  const CufileLibrary library = open_cufile_library("");
  // Another test of this process may have loaded another version before.
  EXPECT_TRUE(has(library.path, "/fakes/cufile-1.")) << library.path;
  EXPECT_EQ(fake->entry_count("cuFileGetVersion"), 0U) << "nothing of it is called";
}

}  // namespace
}  // namespace inrush::engine
