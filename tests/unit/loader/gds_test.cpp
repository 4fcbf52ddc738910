// Loads by cuFile through the public API, with a driver and a libcufile of ours: what the report says, what a
// library that refuses, hangs or lies leads to, and that nothing stays behind.
#include <inrush/loader.hpp>

#include "fakes/fake_cufile.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/gpu.hpp"
#include "unit/loader/loader_fixture.hpp"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

namespace inrush {
namespace {

using namespace fakes;
using namespace std::chrono_literals;
using tests::LoaderTest;
using tests::mib;

constexpr const char* p2pdma_way = "storage -> device (cuFile P2PDMA)";
constexpr const char* compat_way = "storage -> host -> device (cuFile compat)";
constexpr const char* unproven_way = "storage -> device (cuFile, way unproven)";
constexpr char poison = '\xA5';

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

class GdsTest : public LoaderTest {
 protected:
  GdsTest() { before_ = cuda_->live(); }
  void TearDown() override {
    EXPECT_EQ(cufile_->misuse_count(), 0U) << cufile_->last_misuse();
    EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
  }

  LoaderOptions gds_options() {
    LoaderOptions with = options();
    with.cufile_library = INRUSH_FAKE_CUFILE_19;
    with.state_folder = state_.path();
    with.piece_bytes_max = 256 * 1024;  // many reads
    return with;
  }
  LoadRequest by(PathPreference path) {
    LoadRequest wanted = request();
    wanted.path = path;
    return wanted;
  }
  LoadRequest by_gds() { return by(PathPreference::gds); }

  // The whole checkpoint, compared. Returns the report.
  Report load_equal(Loader& loader, const Checkpoint& checkpoint, const LoadRequest& wanted) {
    const auto load = loader.start(checkpoint, wanted);
    const std::vector<Tensor> tensors = take_all(*load);
    EXPECT_EQ(tensors.size(), checkpoint.tensor_count());
    expect_equal(loader, tensors);
    const Report report = load->report();
    std::uint64_t sum = 0;
    for (const PathBytes& way : report.bytes_by_path) sum += way.bytes;
    EXPECT_EQ(sum, report.loaded_bytes);
    EXPECT_EQ(report.loaded_bytes, report.planned_bytes);
    EXPECT_TRUE(report.complete);
    return report;
  }

  static std::uint64_t bytes_by(const Report& report, std::string_view way) {
    std::uint64_t bytes = 0;
    for (const PathBytes& known : report.bytes_by_path) bytes += known.path == way ? known.bytes : 0;
    return bytes;
  }
  static std::vector<std::string> reasons(const Report& report, std::string_view what = "GDS") {
    std::vector<std::string> found;
    for (const Fallback& fallback : report.fallbacks) {
      if (fallback.what == what) found.push_back(fallback.reason);
    }
    return found;
  }
  static Error error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return {ErrorCode::internal, ""};
  }
  Error start_error(Loader& loader, const Checkpoint& checkpoint, const LoadRequest& wanted) {
    return error_of([&] { static_cast<void>(loader.start(checkpoint, wanted)); });
  }

  // Soon: reads that were left behind end on threads of their own.
  void expect_nothing_alive() {
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    const auto is_clean = [&] { return cufile_->live() == FakeCufileLive{} && cuda_->live() == before_; };
    while (!is_clean() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(cufile_->live(), FakeCufileLive{});
    EXPECT_TRUE(cuda_->live() == before_)
        << cuda_->live().contexts << " contexts, " << cuda_->live().allocations << " allocations, "
        << cuda_->live().registrations << " registrations, " << cuda_->live().streams << " streams";
  }

  FakeCufile cufile_{INRUSH_FAKE_CUFILE_19};
  TempFolder state_;
  FakeCudaLive before_;
};

INSTANTIATE_TEST_SUITE_P(Device, GdsTest, testing::Values(DeviceKind::cuda),
                         [](const auto&) { return "FakeCuda"; });

// --- what the report says ---

TEST_P(GdsTest, EveryByteAndWhichWayItCame) {
  const Checkpoint checkpoint = write(3 * mib);
  {
    Loader loader(gds_options());
    const Report report = load_equal(loader, checkpoint, by_gds());
    EXPECT_EQ(report.path, "gds");
    EXPECT_EQ(bytes_by(report, p2pdma_way), report.loaded_bytes);
    EXPECT_TRUE(reasons(report).empty());
    ASSERT_EQ(report.notes.size(), 1U);
    const std::string read_count = std::to_string(cufile_->entry_count("cuFileRead"));
    EXPECT_EQ(report.notes[0], "libcufile 1.19 counted " + read_count +
                                   " reads by P2PDMA, 0 by nvidia-fs and 0 by POSIX for " + read_count +
                                   " of ours");
  }
  expect_nothing_alive();
}

TEST_P(GdsTest, NvidiaFsIsTold) {
  cufile_->set_personality(CufilePersonality::nvfs);
  Loader loader(gds_options());
  const Report report = load_equal(loader, write(), by_gds());
  EXPECT_EQ(report.path, "gds");
  EXPECT_EQ(bytes_by(report, "storage -> device (cuFile nvidia-fs)"), report.loaded_bytes);
}

TEST_P(GdsTest, ALibraryWithoutCountersIsUnproven) {
  const FakeCufile older(INRUSH_FAKE_CUFILE_14);
  LoaderOptions with = gds_options();
  with.cufile_library = INRUSH_FAKE_CUFILE_14;
  Loader loader(with);
  const Report report = load_equal(loader, write(), by_gds());
  EXPECT_EQ(report.path, "gds (unproven)");
  EXPECT_EQ(bytes_by(report, unproven_way), report.loaded_bytes);
  ASSERT_EQ(report.notes.size(), 1U);
  EXPECT_TRUE(has(report.notes[0], "does not count")) << report.notes[0];
}

TEST_P(GdsTest, CountersThatNeverMoveAreUnproven) {
  cufile_->set_personality(CufilePersonality::mute);
  const Checkpoint checkpoint = write();
  Loader loader(gds_options());
  for (int i = 0; i < 2; ++i) {
    const Report report = load_equal(loader, checkpoint, by_gds());
    EXPECT_EQ(report.path, "gds (unproven)") << "and usable again";
    EXPECT_EQ(bytes_by(report, unproven_way), report.loaded_bytes);
    EXPECT_TRUE(reasons(report).empty());
  }
}

TEST_P(GdsTest, CompatIsCalledCompat) {
  cufile_->set_personality(CufilePersonality::compat);
  Loader loader(gds_options());
  const Report report = load_equal(loader, write(), by(PathPreference::cufile_compat));
  EXPECT_EQ(report.path, "cufile-compat");
  EXPECT_EQ(bytes_by(report, compat_way), report.loaded_bytes);
  EXPECT_TRUE(reasons(report).empty());
  EXPECT_TRUE(reasons(report, "cuFile compat").empty());
}

// A machine that could do better does so only where that was asked for.
TEST_P(GdsTest, CompatStaysCompatWhereP2pdmaWorks) {
  Loader loader(gds_options());
  const Report report = load_equal(loader, write(), by(PathPreference::cufile_compat));
  EXPECT_EQ(report.path, "cufile-compat");
  EXPECT_EQ(bytes_by(report, compat_way), report.loaded_bytes);
}

// Strict settings taken, and all read by POSIX: found out by the counters, and not used again.
TEST_P(GdsTest, ALibraryThatSilentlyFallsBackIsFoundOutAndLeft) {
  cufile_->set_personality(CufilePersonality::silent);
  const Checkpoint checkpoint = write();
  Loader loader(gds_options());
  const Report report = load_equal(loader, checkpoint, by_gds());
  EXPECT_EQ(report.path, "cufile-compat");
  EXPECT_EQ(bytes_by(report, compat_way), report.loaded_bytes);
  ASSERT_EQ(reasons(report).size(), 1U);
  EXPECT_TRUE(has(reasons(report)[0], "although that was forbidden")) << reasons(report)[0];

  const std::uint64_t reads = cufile_->entry_count("cuFileRead");
  const Error error = start_error(loader, checkpoint, by_gds());
  EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
  EXPECT_TRUE(has(error.what(), "although that was forbidden")) << error.what();
  EXPECT_EQ(load_equal(loader, checkpoint, request()).path, "staged");
  EXPECT_EQ(cufile_->entry_count("cuFileRead"), reads);

  const Machine machine = loader.machine(device());
  const auto gds = std::find_if(machine.paths.begin(), machine.paths.end(),
                                [](const PathChoice& path) { return path.name == "gds"; });
  ASSERT_NE(gds, machine.paths.end());
  EXPECT_FALSE(gds->usable);
  EXPECT_TRUE(has(gds->reason, "although that was forbidden")) << gds->reason;
}

// --- what cannot be opened ---

// A start() that is refused has allocated nothing and written to no target.
class RefusedTest : public GdsTest {
 protected:
  void expect_refused(const LoaderOptions& with, std::initializer_list<const char*> parts) {
    const Checkpoint checkpoint = write();
    const auto gpu = engine::open_cuda_gpu(engine::CudaDriver::open(INRUSH_FAKE_CUDA), device());
    const std::string name(checkpoint.tensor(0).name);
    const std::uint64_t size_bytes = contents_.at(name).size();
    const std::shared_ptr<void> memory = gpu->allocate(std::max<std::uint64_t>(size_bytes, 1), 256);
    std::string bytes(size_bytes, poison);
    fill(*gpu, memory.get(), bytes);
    LoadRequest wanted = by_gds();
    wanted.targets.by_name[name] = {memory.get(), size_bytes};
    std::uint64_t asked_count = 0;
    wanted.allocate = [&](const Device&, std::uint64_t, std::uint64_t) -> Allocation {
      ++asked_count;
      return {};
    };
    const std::uint64_t allocations = cuda_->live().allocations;
    Loader loader(with);
    for (int i = 0; i < 2; ++i) {  // the second is answered from what is known
      const Error error = start_error(loader, checkpoint, wanted);
      EXPECT_EQ(error.code(), ErrorCode::environment_unfit) << error.what();
      EXPECT_TRUE(has(error.what(), "path \"gds\" was asked for and cannot be used")) << error.what();
      for (const char* part : parts) EXPECT_TRUE(has(error.what(), part)) << part << ": " << error.what();
    }
    EXPECT_EQ(asked_count, 0U);
    EXPECT_EQ(cuda_->live().allocations, allocations);
    gpu->copy_to_host(memory.get(), std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, std::string(size_bytes, poison));
    EXPECT_EQ(load_equal(loader, checkpoint, request()).path, "staged") << "the Loader is as good as new";
    EXPECT_LE(cufile_->entry_count("cuFileDriverOpen"), 1U);
  }

  static void fill(engine::Gpu& gpu, void* target, const std::string& bytes) {
    if (bytes.empty()) return;
    const auto stream = gpu.open_stream();
    const engine::Copy copy{.source = reinterpret_cast<const std::byte*>(bytes.data()),
                            .target = target,
                            .row_bytes = bytes.size()};
    stream->copy({&copy, 1});
    stream->wait(stream->record());
  }
};

INSTANTIATE_TEST_SUITE_P(Device, RefusedTest, testing::Values(DeviceKind::cuda),
                         [](const auto&) { return "FakeCuda"; });

TEST_P(RefusedTest, AStrictOpen) {
  cufile_->set_personality(CufilePersonality::compat);
  expect_refused(gds_options(), {"5001", "compat mode forbidden", "libcufile", "staged"});
}

TEST_P(RefusedTest, AnOpenThatFailsForAnyReason) {
  cufile_->fail("cuFileDriverOpen", 1, 5033);
  expect_refused(gds_options(), {"5033"});
}

TEST_P(RefusedTest, AnAbsentLibrary) {
  LoaderOptions with = gds_options();
  with.cufile_library = folder_ / "libcufile.so.0";
  expect_refused(with, {"no libcufile", "nvidia-cufile"});
}

TEST_P(RefusedTest, ALibraryThatIsAnother) {
  LoaderOptions with = gds_options();
  with.cufile_library = INRUSH_FAKE_CUDA;
  expect_refused(with, {"cuFileDriverOpen"});
}

TEST_P(GdsTest, TheCpuTargetHasNoSuchPath) {
  Loader loader(gds_options());
  LoadRequest wanted = by_gds();
  wanted.device = {};
  EXPECT_EQ(start_error(loader, write(), wanted).code(), ErrorCode::environment_unfit);
  EXPECT_EQ(cufile_->entry_count("cuFileGetVersion"), 0U);
}

// No record of the disk, as in bare containers: each file comes staged and says how to mend it.
TEST_P(GdsTest, FilesThatAreRefusedComeStaged) {
  cufile_->set_udev_record(0);
  Loader loader(gds_options());
  const Report report = load_equal(loader, write(), by_gds());
  EXPECT_EQ(report.path, "staged");
  ASSERT_EQ(reasons(report).size(), 2U) << "one a file";
  for (const std::string& reason : reasons(report)) {
    EXPECT_TRUE(has(reason, "5027")) << reason;
    EXPECT_TRUE(has(reason, "/run/udev")) << reason;
    EXPECT_TRUE(has(reason, folder_.path())) << reason;
  }
}

TEST_P(GdsTest, AFileThatIsRefusedComesStagedAndTheOtherDoesNot) {
  cufile_->fail("cuFileHandleRegister", 1, 5008);
  Loader loader(gds_options());
  const Report report = load_equal(loader, write(), by_gds());
  EXPECT_EQ(report.path, "gds");
  EXPECT_EQ(reasons(report).size(), 1U);
  EXPECT_GT(bytes_by(report, p2pdma_way), 0U);
  EXPECT_LT(bytes_by(report, p2pdma_way), report.loaded_bytes);
}

TEST_P(GdsTest, ARingThatCannotBeRegisteredMeansStaged) {
  cufile_->fail("cuFileBufRegister", 1, 5036);
  const Checkpoint checkpoint = write();
  Loader loader(gds_options());
  const Report report = load_equal(loader, checkpoint, by_gds());
  EXPECT_EQ(report.path, "staged");
  ASSERT_EQ(reasons(report).size(), 1U);
  EXPECT_TRUE(has(reasons(report)[0], "5036")) << reasons(report)[0];
  EXPECT_EQ(load_equal(loader, checkpoint, by_gds()).path, "gds") << "the next load may have room";
}

// --- an open that never returns ---

TEST_P(GdsTest, AnOpenThatHangsCanBeInterrupted) {
  cufile_->apply_words("hang=cuFileDriverOpen");
  const Checkpoint checkpoint = write();
  {
    Loader loader(gds_options());
    LoadRequest wanted = by_gds();
    std::uint64_t asked_count = 0;
    wanted.interrupted = [&] { return ++asked_count == 3; };
    // Nobody waits for the patience of 20 s: that would be environment_unfit.
    EXPECT_EQ(start_error(loader, checkpoint, wanted).code(), ErrorCode::cancelled);
    EXPECT_EQ(asked_count, 3U);
    EXPECT_EQ(load_equal(loader, checkpoint, by(PathPreference::staged)).path, "staged");
    EXPECT_EQ(load_equal(loader, checkpoint, request()).path, "staged");
    struct Wanted {};
    wanted.interrupted = []() -> bool { throw Wanted{}; };
    EXPECT_THROW(static_cast<void>(loader.start(checkpoint, wanted)), Wanted);
    EXPECT_EQ(cufile_->entry_count("cuFileDriverOpen"), 1U) << "asked once, and still waited for";
  }  // does not wait for what never comes
}

// --- what is kept ---

TEST_P(GdsTest, TheRingIsRegisteredOnceAndReleasedWhenIdle) {
  const Checkpoint checkpoint = write();
  Loader loader(gds_options());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(load_equal(loader, checkpoint, by_gds()).path, "gds");
  EXPECT_EQ(cufile_->entry_count("cuFileDriverOpen"), 1U);
  EXPECT_EQ(cufile_->entry_count("cuFileBufRegister"), 1U);
  EXPECT_EQ(cufile_->live().buffers, 1U);
  EXPECT_EQ(cufile_->live().handles, 0U);
  loader.release_idle();
  EXPECT_EQ(cufile_->live().buffers, 0U);
  EXPECT_EQ(cuda_->live().allocations, before_.allocations);
  EXPECT_EQ(load_equal(loader, checkpoint, by_gds()).path, "gds");
  EXPECT_EQ(cufile_->entry_count("cuFileBufRegister"), 2U);
  EXPECT_EQ(cufile_->entry_count("cuFileDriverOpen"), 1U) << "the driver stays open";
}

// The counters of the library are of the process: each load must see its own.
TEST_P(GdsTest, LoadsByDifferentWaysOnOneLoader) {
  const Checkpoint checkpoint = write();
  Loader loader(gds_options());
  EXPECT_EQ(load_equal(loader, checkpoint, by_gds()).path, "gds");
  EXPECT_EQ(load_equal(loader, checkpoint, by(PathPreference::staged)).path, "staged");
  const Report report = load_equal(loader, checkpoint, by_gds());
  EXPECT_EQ(report.path, "gds");
  EXPECT_EQ(bytes_by(report, p2pdma_way), report.loaded_bytes);
}

TEST_P(GdsTest, SeveralLoadsAtOnce) {
  const Checkpoint checkpoint = write(4 * mib);
  Loader loader(gds_options());
  std::vector<std::thread> threads;
  std::vector<Report> reports(3);
  for (Report& report : reports)
    threads.emplace_back([&] { report = load_equal(loader, checkpoint, by_gds()); });
  for (std::thread& thread : threads) thread.join();
  for (const Report& report : reports) EXPECT_EQ(report.path, "gds");
  EXPECT_EQ(cufile_->entry_count("cuFileDriverOpen"), 1U);
}

TEST_P(GdsTest, TheLogGoesToTheStateFolder) {
  cufile_->apply_words("log");
  Loader loader(gds_options());
  load_equal(loader, write(), by_gds());
  EXPECT_TRUE(std::filesystem::exists(state_ / "cufile.log"));
  EXPECT_FALSE(std::filesystem::exists("cufile.log"));
}

TEST_P(GdsTest, TensorsOutliveTheLoader) {
  const Checkpoint checkpoint = write();
  std::vector<Tensor> tensors;
  {
    Loader loader(gds_options());
    tensors = take_all(*loader.start(checkpoint, by_gds()));
  }
  EXPECT_EQ(cufile_->live(), FakeCufileLive{});
  Loader other(options());
  expect_equal(other, tensors);
}

// --- what a request may ask for ---

TEST_P(GdsTest, TenThousandTensorsOfOddSizes) {
  std::vector<TestTensor> tensors;
  for (std::uint64_t i = 0; i < 10'000; ++i)
    tensors.push_back({"t" + std::to_string(i), DType::u8, {i * 37 % 1009}});
  contents_ = write_safetensors(folder_ / "model.safetensors", tensors, 3, 5);
  Loader loader(gds_options());
  const Report report = load_equal(loader, discover(folder_.path()), by_gds());
  EXPECT_EQ(report.path, "gds");
  EXPECT_EQ(bytes_by(report, p2pdma_way), report.loaded_bytes);
}

TEST_P(GdsTest, SlicesCrossAsTheyAre) {
  contents_ =
      write_safetensors(folder_ / "m.safetensors",
                        {{"rows", DType::f32, {300, 70}}, {"columns", DType::bf16, {513, 257}}}, 9, 3);
  Loader loader(gds_options());
  LoadRequest wanted = by_gds();
  wanted.slices = {{"rows", {0, 17, 200}}, {"columns", {1, 3, 101}}};
  const auto load = loader.start(discover(folder_.path()), wanted);
  const std::vector<Tensor> tensors = take_all(*load);
  ASSERT_EQ(tensors.size(), 2U);
  const std::string whole = contents_["columns"];
  contents_["rows"] = contents_["rows"].substr(17 * 70 * 4, 200 * 70 * 4);
  contents_["columns"].clear();
  for (std::size_t row = 0; row < 513; ++row)
    contents_["columns"] += whole.substr(row * 257 * 2 + 3 * 2, 101 * 2);
  expect_equal(loader, tensors);
  EXPECT_EQ(load->report().path, "gds");
}

TEST_P(GdsTest, AWindowIsKept) {
  const Checkpoint checkpoint = write(8 * mib);
  Loader loader(gds_options());
  LoadRequest wanted = by_gds();
  wanted.window_bytes_max = mib;
  const auto load = loader.start(checkpoint, wanted);
  std::size_t count = 0;
  while (std::optional<Tensor> tensor = load->next()) {
    expect_equal(loader, {*tensor});
    ++count;
  }
  EXPECT_EQ(count, checkpoint.tensor_count());
  EXPECT_EQ(load->report().path, "gds");
}

TEST_P(GdsTest, ByName) {
  const Checkpoint checkpoint = write();
  Loader loader(gds_options());
  const auto load = loader.start(checkpoint, by_gds());
  std::vector<Tensor> tensors;
  for (std::size_t i = checkpoint.tensor_count(); i > 0; --i)
    tensors.push_back(load->get(checkpoint.tensor(i - 1).name));
  expect_equal(loader, tensors);
  EXPECT_TRUE(load->done());
}

TEST_P(GdsTest, OnlyTensorsWithoutBytes) {
  contents_ = write_safetensors(folder_ / "m.safetensors", {{"none", DType::f32, {0, 4}}}, 1);
  Loader loader(gds_options());
  EXPECT_EQ(take_all(*loader.start(discover(folder_.path()), by_gds())).size(), 1U);
  EXPECT_EQ(cufile_->entry_count("cuFileDriverOpen"), 0U) << "nothing is read";
}

// Targets at odd addresses in one block of the caller's: what stands between them stays.
TEST_P(GdsTest, IntoMemoryOfTheCaller) {
  const Checkpoint checkpoint = write();
  const auto gpu = engine::open_cuda_gpu(engine::CudaDriver::open(INRUSH_FAKE_CUDA), device());
  std::uint64_t size_bytes = 1;
  for (const auto& [name, bytes] : contents_) size_bytes += bytes.size() + 3;
  const std::shared_ptr<void> block = gpu->allocate(size_bytes, 256);
  std::string expected(size_bytes, poison);
  const auto stream = gpu->open_stream();
  const engine::Copy copy{.source = reinterpret_cast<const std::byte*>(expected.data()),
                          .target = block.get(),
                          .row_bytes = size_bytes};
  stream->copy({&copy, 1});
  stream->wait(stream->record());
  LoadRequest wanted = by_gds();
  std::uint64_t offset = 1;
  for (const auto& [name, bytes] : contents_) {
    wanted.targets.by_name[name] = {static_cast<std::byte*>(block.get()) + offset, bytes.size()};
    expected.replace(offset, bytes.size(), bytes);
    offset += bytes.size() + 3;
  }
  wanted.targets.owner = block;
  Loader loader(gds_options());
  const auto load = loader.start(checkpoint, wanted);
  EXPECT_EQ(take_all(*load).size(), checkpoint.tensor_count());
  std::string found(size_bytes, '\0');
  gpu->copy_to_host(block.get(), std::as_writable_bytes(std::span(found)));
  EXPECT_TRUE(found == expected);
  EXPECT_EQ(load->report().path, "gds");
  EXPECT_LT(cufile_->peak_registered_bytes(), 64 * mib) << "only the ring is registered";
}

// --- files that change, loads that are stopped ---

class GdsFaultsTest : public GdsTest {
 protected:
  // What a load of "a" and "b" says where `change` happens to the file after "a" was taken.
  Error changed(PathPreference path, const std::function<void(const std::string&)>& change) {
    Loader loader(gds_options());
    contents_ = write_safetensors(folder_ / "model.safetensors",
                                  {{"a", DType::u8, {3 * mib}}, {"b", DType::u8, {3 * mib}}}, 5);
    LoadRequest bounded = by(path);
    bounded.window_bytes_max = 4 * mib;
    const auto load = loader.start(discover(folder_.path()), bounded);
    const std::optional<Tensor> first = load->next();
    EXPECT_TRUE(first);
    change(folder_ / "model.safetensors");
    const Error error = error_of([&] { static_cast<void>(take_all(*load)); });
    if (first) {
      EXPECT_EQ(bytes_of(loader, *first), contents_["a"]) << "what was handed out stays as it was";
    }
    suspects_ = load->report().suspect_tensors;
    return error;
  }

  void expect_same_error(const std::function<void(const std::string&)>& change) {
    const Error staged = changed(PathPreference::staged, change);
    const std::vector<std::string> staged_suspects = suspects_;
    const Error gds = changed(PathPreference::gds, change);
    EXPECT_EQ(staged.code(), ErrorCode::corrupt_checkpoint) << staged.what();
    EXPECT_EQ(gds.code(), staged.code()) << gds.what();
    EXPECT_EQ(without_numbers(gds.what()), without_numbers(staged.what()));
    EXPECT_EQ(suspects_, staged_suspects);
    EXPECT_GT(cufile_->entry_count("cuFileRead"), 0U);
    expect_nothing_alive();
  }

  // Which of the pieces that are cut off is told of is a matter of which reads were first.
  static std::string without_numbers(std::string text) {
    for (char& letter : text) letter = letter >= '0' && letter <= '9' ? '0' : letter;
    while (const std::size_t twice = text.find("00") + 1) text.erase(twice, 1);
    return text;
  }

  std::vector<std::string> suspects_;
};

INSTANTIATE_TEST_SUITE_P(Device, GdsFaultsTest, testing::Values(DeviceKind::cuda),
                         [](const auto&) { return "FakeCuda"; });

TEST_P(GdsFaultsTest, AFileCutShortIsTheSameError) {
  expect_same_error([](const std::string& path) { std::filesystem::resize_file(path, 4 * mib); });
}

TEST_P(GdsFaultsTest, AFileWrittenOverIsTheSameError) {
  expect_same_error([](const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(200);
    file << "overwritten in place";
  });
}

TEST_P(GdsFaultsTest, AFileReplacedDuringTheLoadIsTheSameError) {
  expect_same_error([&](const std::string& path) {
    write_safetensors(state_ / "new.safetensors", {{"a", DType::u8, {5}}}, 6);
    std::filesystem::rename(state_ / "new.safetensors", path);
  });
}

TEST_P(GdsFaultsTest, ReadsThatFailComeStaged) {
  const Checkpoint checkpoint = write(3 * mib);
  Loader loader(gds_options());
  for (const auto& [shape, code] : {std::pair{CufileFailure::errno_value, EIO},
                                    {CufileFailure::errno_code, 5030},
                                    {CufileFailure::negative_code, 5008}}) {
    cufile_->fail_read(3, shape, code);
    const Report report = load_equal(loader, checkpoint, by_gds());
    EXPECT_EQ(reasons(report).size(), 1U);
    std::uint64_t cufile_bytes = 0;
    for (const PathBytes& way : report.bytes_by_path) cufile_bytes += has(way.path, "cuFile") ? way.bytes : 0;
    EXPECT_GT(cufile_bytes, 0U);
    EXPECT_EQ(bytes_by(report, p2pdma_way), cufile_bytes);
    EXPECT_EQ(report.path, "gds");
    EXPECT_LT(cufile_bytes, report.loaded_bytes);
  }
}

TEST_P(GdsFaultsTest, ShortReadsGoOn) {
  const Checkpoint checkpoint = write(3 * mib);
  Loader loader(gds_options());
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    cufile_->set_short_chance(seed, 300);
    EXPECT_GT(load_equal(loader, checkpoint, by_gds()).retry_count, 0U);
  }
}

// At each step: while it starts, after any number of tensors, while reads hang.
TEST_P(GdsFaultsTest, CancelAtEachStepOfAStartLeavesNothingAlive) {
  const Checkpoint checkpoint = write(2 * mib, 5);
  for (std::uint64_t nth = 1; nth <= 30; ++nth) {
    bool was_cancelled = false;
    {
      Loader loader(gds_options());
      LoadRequest wanted = by_gds();
      std::uint64_t asked_count = 0;
      wanted.interrupted = [&] { return ++asked_count == nth; };
      try {
        static_cast<void>(take_all(*loader.start(checkpoint, wanted)));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::cancelled);
        was_cancelled = true;
      }
    }
    expect_nothing_alive();
    if (!was_cancelled) break;
    EXPECT_LT(nth, 30U) << "there is an end to what asks";
  }
}

TEST_P(GdsFaultsTest, CancelAfterAnyTensorLeavesNothingAlive) {
  const Checkpoint checkpoint = write(3 * mib);
  for (std::size_t taken = 0; taken <= checkpoint.tensor_count(); taken += 7) {
    {
      Loader loader(gds_options());
      const auto load = loader.start(checkpoint, by_gds());
      for (std::size_t i = 0; i < taken; ++i) static_cast<void>(load->next());
      load->cancel();
    }
    expect_nothing_alive();
  }
}

TEST_P(GdsFaultsTest, CancelWhileReadsHangLeavesThemAndTheirRing) {
  const Checkpoint checkpoint = write(3 * mib);
  {
    Loader loader(gds_options());
    cufile_->hold_reads();
    const auto load = loader.start(checkpoint, by_gds());
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (cufile_->live().running_reads == 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    ASSERT_GT(cufile_->live().running_reads, 0U);
    load->cancel();
    EXPECT_EQ(error_of([&] { static_cast<void>(take_all(*load)); }).code(), ErrorCode::cancelled);
    EXPECT_GT(load->report().orphan_count, 0U);
    EXPECT_GT(cufile_->live().registered_bytes, 0U) << "they write there";
    cufile_->let_reads_go();
    EXPECT_EQ(load_equal(loader, checkpoint, by_gds()).path, "gds") << "the Loader is as good as new";
  }
  expect_nothing_alive();
}

TEST_P(GdsFaultsTest, ADeadlineIsKept) {
  const Checkpoint checkpoint = write(3 * mib);
  {
    Loader loader(gds_options());
    static_cast<void>(load_equal(loader, checkpoint, by_gds()));  // so that cuFile is open
    cufile_->hold_reads();
    LoadRequest wanted = by_gds();
    wanted.deadline = 100ms;
    EXPECT_EQ(error_of([&] { static_cast<void>(take_all(*loader.start(checkpoint, wanted))); }).code(),
              ErrorCode::timed_out);
    cufile_->let_reads_go();
  }
  expect_nothing_alive();
}

TEST_P(GdsFaultsTest, AForkedChildTouchesNothing) {
  contents_ =
      write_safetensors(folder_ / "model.safetensors", {{"a", DType::u8, {mib}}, {"b", DType::u8, {mib}}}, 1);
  const Checkpoint checkpoint = discover(folder_.path());
  {
    auto loader = std::make_unique<Loader>(gds_options());
    LoadRequest bounded = by_gds();
    bounded.window_bytes_max = mib;
    auto load = loader->start(checkpoint, bounded);
    // Until the window is full and every thread waits: one that allocates may hold a lock of a sanitizer's.
    while (load->progress().loaded_bytes < mib) std::this_thread::yield();
    const pid_t child = ::fork();
    if (child == 0) {
      const bool refused = code_of([&] { static_cast<void>(loader->start(checkpoint, by_gds())); }) ==
                               ErrorCode::invalid_request &&
                           code_of([&] { static_cast<void>(load->next()); }) == ErrorCode::invalid_request;
      load.reset();
      loader.reset();
      const bool touched = cufile_->entry_count("cuFileDriverClose") +
                               cufile_->entry_count("cuFileBufDeregister") +
                               cufile_->entry_count("cuFileHandleDeregister") >
                           0;
      ::_exit(refused && !touched ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(take_all(*load).size(), checkpoint.tensor_count()) << "the parent's load goes on";
  }
  expect_nothing_alive();
}

}  // namespace
}  // namespace inrush
