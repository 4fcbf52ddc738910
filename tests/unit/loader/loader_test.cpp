// Whole loads through the public API, on the CPU target and on the fake GPU.
#include <inrush/loader.hpp>

#include "fakes/safetensors_text.hpp"
#include "gpu/copy_stage.hpp"
#include "unit/loader/loader_fixture.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>

namespace inrush {
namespace {

using namespace fakes;
using namespace std::chrono_literals;
using tests::LoaderTest;
using tests::mib;

TEST_P(LoaderTest, LoadsEveryByteAndReportsIt) {
  const Checkpoint checkpoint = write();
  Loader loader(options());
  const auto load = loader.start(checkpoint, request());
  const std::vector<Tensor> tensors = take_all(*load);
  EXPECT_EQ(tensors.size(), checkpoint.tensor_count());
  expect_equal(loader, tensors);
  const Report report = load->report();
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.loaded_bytes, checkpoint.size_bytes());
  const std::uint64_t sum =
      std::accumulate(report.bytes_by_path.begin(), report.bytes_by_path.end(), std::uint64_t{0},
                      [](std::uint64_t all, const PathBytes& way) { return all + way.bytes; });
  EXPECT_EQ(sum, report.loaded_bytes);
  EXPECT_EQ(report.tensor_count, checkpoint.tensor_count()) << "also those without bytes";
  EXPECT_TRUE(report.seconds.open <= report.seconds.headers &&
              report.seconds.first_byte <= report.seconds.last_byte);
  EXPECT_GT(report.host_peak_bytes, 0U);
  EXPECT_TRUE(load->done());
  EXPECT_FALSE(load->next());
  for (const Tensor& tensor : tensors) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % 256, 0U);
}

TEST_P(LoaderTest, ManyAtOnceAreTheSameTensors) {
  const Checkpoint checkpoint = write();
  LoadRequest bounded = request();
  bounded.window_bytes_max = mib / 2;  // each take makes room for what comes next
  Loader loader(options());
  const auto load = loader.start(checkpoint, bounded);
  std::vector<Tensor> tensors;
  while (true) {
    std::vector<Tensor> taken = load->take({.count_max = 3});
    if (taken.empty()) break;
    EXPECT_LE(taken.size(), 3U);
    for (Tensor& tensor : taken) tensors.push_back(std::move(tensor));
  }
  EXPECT_EQ(tensors.size(), checkpoint.tensor_count());
  expect_equal(loader, tensors);
  EXPECT_TRUE(load->done() && load->report().complete);
}

TEST_P(LoaderTest, TensorsOutliveTheLoader) {
  const Checkpoint checkpoint = write();
  std::vector<Tensor> tensors;
  {
    Loader loader(options());
    tensors = take_all(*loader.start(checkpoint, request()));
  }
  Loader other(options());
  const std::vector<Tensor> more = take_all(*other.start(checkpoint, request()));
  expect_equal(other, tensors);
  tensors.clear();
  expect_equal(other, more);
}

TEST_P(LoaderTest, AWindowBoundsTheMemoryOfAConsumerThatDrops) {
  const Checkpoint checkpoint = write(8 * mib);
  std::uint64_t peak = 0;
  LoadRequest bounded = request();
  bounded.window_bytes_max = 2 * mib;
  Loader loader(options());
  std::size_t count = 0;
  const auto load = loader.start(checkpoint, bounded);
  std::uint64_t largest_slab = 0;
  for (const Slab& slab : load->plan().slabs) largest_slab = std::max(largest_slab, slab.size_bytes);
  EXPECT_LE(largest_slab, bounded.window_bytes_max);
  EXPECT_GT(load->plan().slabs.size(), 4U);
  while (const std::optional<Tensor> tensor = load->next()) {
    EXPECT_EQ(bytes_of(loader, *tensor), contents_.at(tensor->name));
    ++count;
    peak = std::max(peak, cuda_->live().allocated_bytes);
  }
  EXPECT_EQ(count, checkpoint.tensor_count());
  EXPECT_LE(peak, bounded.window_bytes_max + largest_slab) << "a slab lives until its last tensor is dropped";
}

TEST_P(LoaderTest, ByNameInAnyOrderAlsoBeyondTheWindow) {
  const Checkpoint checkpoint = write(4 * mib);
  LoadRequest bounded = request();
  bounded.window_bytes_max = mib;
  Loader loader(options());
  const auto load = loader.start(checkpoint, bounded);
  std::vector<Tensor> tensors;
  for (std::size_t i = checkpoint.tensor_count(); i > 0; i -= std::min<std::size_t>(i, 3)) {
    tensors.push_back(load->get(checkpoint.tensor(i - 1).name));
    EXPECT_EQ(tensors.back().name, checkpoint.tensor(i - 1).name);
  }
  EXPECT_EQ(code_of([&] { static_cast<void>(load->get(tensors[0].name)); }), ErrorCode::invalid_request);
  EXPECT_EQ(code_of([&] { static_cast<void>(load->get("absent")); }), ErrorCode::invalid_request);
  for (Tensor& tensor : take_all(*load)) tensors.push_back(std::move(tensor));
  EXPECT_EQ(tensors.size(), checkpoint.tensor_count());
  expect_equal(loader, tensors);
}

TEST_P(LoaderTest, SubsetsAndSlices) {
  contents_ = write_safetensors(
      folder_ / "model.safetensors",
      {{"a.w", DType::f32, {40, 30}}, {"a.b", DType::bf16, {30}}, {"c", DType::f4, {6, 8}}}, 3);
  Loader loader(options());
  LoadRequest part = request();
  part.only = {"a.*"};
  part.slices = {{"a.w", {1, 5, 10}}};
  part.select = [](const TensorInfo& tensor) { return tensor.shape.size() == 2; };
  const std::vector<Tensor> tensors = take_all(*loader.start(discover(folder_.path()), part));
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0].shape, (std::vector<std::uint64_t>{40, 10}));
  std::string expected;
  for (std::size_t row = 0; row < 40; ++row) expected += contents_["a.w"].substr(row * 120 + 20, 40);
  EXPECT_EQ(bytes_of(loader, tensors[0]), expected);
}

TEST_P(LoaderTest, MemoryOfTheCaller) {
  const Checkpoint checkpoint = write();
  std::vector<std::unique_ptr<char[]>> blocks;
  Loader loader(options());
  LoadRequest mine = request();
  const std::thread::id caller = std::this_thread::get_id();
  const FakeCudaLive before = cuda_->live();
  std::uint64_t asked = 0;
  // The fake GPU's memory is host memory, but only what its driver allocated counts as device memory: only
  // the CPU can be served.
  mine.allocate = [&](const Device& where, std::uint64_t size_bytes,
                      std::uint64_t alignment_bytes) -> Allocation {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(where.kind, device().kind);
    ++asked;
    if (GetParam() == DeviceKind::cuda) throw Error(ErrorCode::out_of_memory, "the caller has none");
    auto block =
        std::shared_ptr<void>(std::aligned_alloc(alignment_bytes, (size_bytes + alignment_bytes - 1) /
                                                                      alignment_bytes * alignment_bytes),
                              std::free);
    return {.pointer = block.get(), .owner = block};
  };
  if (GetParam() == DeviceKind::cuda) {
    EXPECT_EQ(code_of([&] { static_cast<void>(loader.start(checkpoint, mine)); }), ErrorCode::out_of_memory);
    loader.release_idle();
    EXPECT_EQ(cuda_->live().allocations, before.allocations);
  } else {
    const auto load = loader.start(checkpoint, mine);
    const std::vector<Tensor> tensors = take_all(*load);
    EXPECT_EQ(tensors.size(), checkpoint.tensor_count());
    expect_equal(loader, tensors);
    for (const PathBytes& way : load->report().bytes_by_path)
      EXPECT_NE(way.path, "page cache -> in place") << "not our memory";
  }
  EXPECT_GT(asked, 0U);
}

TEST_P(LoaderTest, MisalignedMemoryOfTheCallerIsRefused) {
  const Checkpoint checkpoint = write();
  std::vector<char> block(8 * mib);
  Loader loader(options());
  LoadRequest mine = request();
  mine.allocate = [&](const Device&, std::uint64_t, std::uint64_t) -> Allocation {
    return {.pointer = block.data() + 1};
  };
  EXPECT_EQ(code_of([&] { static_cast<void>(loader.start(checkpoint, mine)); }), ErrorCode::invalid_request);
}

TEST_P(LoaderTest, AFileThatChangedSinceDiscoveryIsRefused) {
  const Checkpoint checkpoint = write();
  write_safetensors(folder_ / "m1.safetensors", {{"x", DType::u8, {5}}}, 1);
  Loader loader(options());
  EXPECT_EQ(code_of([&] { static_cast<void>(loader.start(checkpoint, request())); }),
            ErrorCode::corrupt_checkpoint);
  std::filesystem::remove(folder_ / "m1.safetensors");
  EXPECT_EQ(code_of([&] { static_cast<void>(loader.start(checkpoint, request())); }), ErrorCode::not_found);
}

TEST_P(LoaderTest, AFileThatChangesDuringTheLoadEndsItAndNamesTheSuspects) {
  Loader loader(options());
  const auto load = start_one_of_two(loader);
  const std::optional<Tensor> first = load->next();
  ASSERT_TRUE(first);
  {
    std::fstream file(folder_ / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(200);
    file << "overwritten in place";
  }
  EXPECT_EQ(code_of([&] { static_cast<void>(take_all(*load)); }), ErrorCode::corrupt_checkpoint);
  EXPECT_EQ(load->report().suspect_tensors, std::vector<std::string>{"a"});
  EXPECT_EQ(bytes_of(loader, *first), contents_["a"]) << "what was handed out stays as it was";
}

TEST_P(LoaderTest, AFileCutShortDuringTheLoadIsAnErrorNotACrash) {
  Loader loader(options());
  const auto load = start_one_of_two(loader);
  ASSERT_TRUE(load->next());
  std::filesystem::resize_file(folder_ / "model.safetensors", 4 * mib);
  try {
    static_cast<void>(take_all(*load));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_checkpoint);
    EXPECT_NE(std::string(error.what()).find("tensor \"b\""), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("model.safetensors bytes ["), std::string::npos) << error.what();
  }
}

TEST_P(LoaderTest, DestroyingALoadInProgressFreesAll) {
  const Checkpoint checkpoint = write(8 * mib);
  Loader loader(options());
  const auto before = cuda_->live();
  for (int taken = 0; taken < 4; ++taken) {
    const auto load = loader.start(checkpoint, request());
    for (int i = 0; i < taken; ++i) static_cast<void>(load->next());
  }
  EXPECT_EQ(cuda_->live().allocations, before.allocations);
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

// Sizes that are no multiple of the alignment, so that each tensor is a run of its own.
TEST_P(LoaderTest, SmallTensorsOfALargeLoadComeThroughAStage) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 1100; ++i) tensors.push_back({"t" + std::to_string(i), DType::u8, {65'001}});
  contents_ = write_safetensors(folder_ / "m.safetensors", tensors, 1);
  const Checkpoint checkpoint = discover(folder_.path());
  Loader loader(options());
  for (int round = 0; round < 2; ++round) {
    const auto load = loader.start(checkpoint, request());
    expect_equal(loader, take_all(*load));
    EXPECT_EQ(load->report().fallbacks, std::vector<Fallback>{});
  }
  constexpr std::uint64_t stage_bytes = engine::CopyStage::buffer_count * engine::CopyStage::buffer_bytes;
  EXPECT_EQ(cuda_->live().allocated_bytes, GetParam() == DeviceKind::cuda ? stage_bytes : 0);
}

TEST_P(LoaderTest, CancelAndDeadline) {
  const Checkpoint checkpoint = write(8 * mib);
  Loader loader(options());
  LoadRequest bounded = request();
  bounded.window_bytes_max = mib;  // so that it cannot complete before it is stopped
  const auto load = loader.start(checkpoint, bounded);
  load->cancel();
  EXPECT_EQ(code_of([&] { static_cast<void>(take_all(*load)); }), ErrorCode::cancelled);
  bounded.deadline = 1ns;
  const auto late = loader.start(checkpoint, bounded);
  EXPECT_EQ(code_of([&] { static_cast<void>(take_all(*late)); }), ErrorCode::timed_out);
  EXPECT_EQ(take_all(*loader.start(checkpoint, request())).size(), checkpoint.tensor_count())
      << "the Loader is as good as new";
}

TEST_P(LoaderTest, SeveralLoadsAtOnceWithinTheBudget) {
  const Checkpoint checkpoint = write();
  Loader loader(options());
  std::vector<std::thread> threads;
  std::vector<std::vector<Tensor>> results(4);
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = take_all(*loader.start(checkpoint, request())); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& tensors : results) {
    EXPECT_EQ(tensors.size(), checkpoint.tensor_count());
    expect_equal(loader, tensors);
  }
}

TEST_P(LoaderTest, AForkedChildIsToldToUseItsOwn) {
  contents_ =
      write_safetensors(folder_ / "model.safetensors", {{"a", DType::u8, {mib}}, {"b", DType::u8, {mib}}}, 1);
  const Checkpoint checkpoint = discover(folder_.path());
  auto loader = std::make_unique<Loader>(options());
  LoadRequest bounded = request();
  bounded.window_bytes_max = mib;
  auto load = loader->start(checkpoint, bounded);
  // Until the window is full and every thread waits: one that allocates may hold a lock of a sanitizer's.
  while (load->progress().loaded_bytes < mib) std::this_thread::yield();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = code_of([&] { static_cast<void>(loader->start(checkpoint, request())); }) ==
                             ErrorCode::invalid_request &&
                         code_of([&] { static_cast<void>(load->next()); }) == ErrorCode::invalid_request &&
                         code_of([&] { static_cast<void>(load->report()); }) == ErrorCode::invalid_request;
    load.reset();    // neither waits for threads that are not there
    loader.reset();  // nor touches the driver
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(take_all(*load).size(), checkpoint.tensor_count()) << "the parent's load goes on";
}

TEST_P(LoaderTest, ManyShardsUnderFewDescriptors) {
  constexpr int shard_count = 600;
  for (int i = 0; i < shard_count; ++i) {
    const std::string name = "t" + std::to_string(i);
    contents_.merge(write_safetensors(folder_ / (name + ".safetensors"), {{name, DType::u8, {3000}}},
                                      static_cast<std::uint64_t>(i)));
  }
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 256, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  Loader loader(options());
  const std::vector<Tensor> tensors = take_all(*loader.start(discover(folder_.path()), request()));
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(tensors.size(), static_cast<std::size_t>(shard_count));
  expect_equal(loader, tensors);
}

TEST_P(LoaderTest, AThousandLoadsLeakNothing) {
  contents_ = write_safetensors(folder_ / "model.safetensors", mixed_tensors(40'000, 1), 1);
  const Checkpoint checkpoint = discover(folder_.path());
  Loader loader(options());
  ProcessCounts counts;
  std::uint64_t held = 0;
  FakeCudaLive live;
  for (int i = 0; i <= 1000; ++i) {
    EXPECT_EQ(take_all(*loader.start(checkpoint, request())).size(), checkpoint.tensor_count());
    if (i == 100) {
      counts = process_counts();
      held = held_bytes();
      live = cuda_->live();
    }
  }
  EXPECT_TRUE(returns_to(counts));
  EXPECT_EQ(cuda_->live(), live);
  EXPECT_LT(held_bytes(), held + 8 * mib);
  loader.release_idle();
  EXPECT_EQ(cuda_->live().registrations, 0U);
}

TEST_P(LoaderTest, TheDeadlineSaysWhatCameInTheTime) {
  const Checkpoint checkpoint = write(8 * mib);
  Loader loader(options());
  LoadRequest late = request();
  late.window_bytes_max = mib;
  late.deadline = 1ms;
  try {
    static_cast<void>(take_all(*loader.start(checkpoint, late)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timed_out);
    EXPECT_NE(std::string(error.what()).find("of 8."), std::string::npos) << error.what();
  }
}

TEST_P(LoaderTest, OnlyTensorsWithoutBytes) {
  write_safetensors(folder_ / "model.safetensors", {{"a", DType::f32, {0}}, {"b", DType::u8, {3, 0}}}, 1);
  Loader loader(options());
  const auto load = loader.start(discover(folder_.path()), request());
  EXPECT_EQ(load->get("b").shape, (std::vector<std::uint64_t>{3, 0}));
  EXPECT_EQ(take_all(*load).size(), 1U);
  EXPECT_TRUE(load->report().complete);
}

TEST_P(LoaderTest, CopyToHostStaysInsideTheTensor) {
  const Checkpoint checkpoint = write();
  Loader loader(options());
  const std::vector<Tensor> tensors = take_all(*loader.start(checkpoint, request()));
  std::vector<std::byte> target(tensors[0].size_bytes + 1);
  EXPECT_EQ(code_of([&] { loader.copy_to_host(tensors[0], 0, target); }), ErrorCode::invalid_request);
  EXPECT_EQ(code_of([&] { loader.copy_to_host(tensors[0], tensors[0].size_bytes + 1, {}); }),
            ErrorCode::invalid_request);
}

INSTANTIATE_TEST_SUITE_P(Devices, LoaderTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         [](const auto& tested) {
                           return tested.param == DeviceKind::cpu ? "Cpu" : "FakeCuda";
                         });

class CpuLoaderTest : public LoaderTest {};
INSTANTIATE_TEST_SUITE_P(Device, CpuLoaderTest, testing::Values(DeviceKind::cpu),
                         [](const auto&) { return "Cpu"; });

TEST_P(CpuLoaderTest, MoreThanTheHostHasIsRefusedBeforeItIsTouched) {
  constexpr std::uint64_t huge = 1ULL << 40;
  const std::string header =
      R"({"t":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})";
  const std::string path = folder_.write("sparse.safetensors", safetensors_file(header, 0));
  std::filesystem::resize_file(path, 8 + header.size() + huge);
  Loader loader(options());
  EXPECT_EQ(code_of([&] { static_cast<void>(loader.start(discover(path), request())); }),
            ErrorCode::out_of_memory);
}

using GpuLoaderTest = LoaderTest;
INSTANTIATE_TEST_SUITE_P(Device, GpuLoaderTest, testing::Values(DeviceKind::cuda),
                         [](const auto&) { return "FakeCuda"; });

TEST_P(GpuLoaderTest, OutOfMemoryHalfWayFreesAll) {
  const Checkpoint checkpoint = write(8 * mib);
  LoaderOptions small = options();
  Loader loader(small);
  const std::vector<Tensor> held = take_all(*loader.start(checkpoint, request()));
  const FakeCudaLive before = cuda_->live();
  LoadRequest bounded = request();
  bounded.window_bytes_max = 2 * mib;
  const std::size_t slab_count = loader.start(checkpoint, bounded)->plan().slabs.size();
  for (std::uint64_t nth = 1; nth <= slab_count; ++nth) {
    cuda_->fail("cuMemAlloc", nth, engine::CuResult::out_of_memory);
    EXPECT_EQ(code_of([&] {
                const auto load = loader.start(checkpoint, bounded);
                const std::vector<Tensor> some = take_all(*load);
              }),
              ErrorCode::out_of_memory);
    EXPECT_EQ(cuda_->live().allocations, before.allocations) << nth;
    cuda_->reset();
  }
  expect_equal(loader, held);
}

TEST_P(GpuLoaderTest, AbsentDevicesAreNamed) {
  Loader loader(options());
  const Checkpoint checkpoint = write();
  EXPECT_EQ(loader.devices().size(), 3U) << "two GPUs and the CPU";
  EXPECT_EQ(code_of([&] { static_cast<void>(loader.start(checkpoint, {.device = parse_device("cuda:7")})); }),
            ErrorCode::environment_unfit);
  Loader without(LoaderOptions{.cuda_library = "libcuda-that-is-not-there.so.1"});
  EXPECT_EQ(without.devices().size(), 1U);
  EXPECT_EQ(code_of([&] { static_cast<void>(without.start(checkpoint, request())); }),
            ErrorCode::environment_unfit);
}

TEST_P(GpuLoaderTest, ATensorSaysTheOrdinalOfItsDeviceHoweverThatWasNamed) {
  const Checkpoint checkpoint = write();
  Loader loader(options());
  const std::vector<Device> devices = loader.devices();
  for (const char* spelling : {"cuda:1", "1", "MIG-f4ce0001", "mig"}) {
    Device named = devices[1];
    if (std::string_view(spelling) != "mig") named = parse_device(spelling);
    if (!named.uuid.empty()) named.index = 0;  // which is not used
    const std::vector<Tensor> tensors = take_all(*loader.start(checkpoint, {.device = named}));
    EXPECT_EQ(tensors.at(0).device.index, 1U) << spelling;
    EXPECT_EQ(tensors.at(0).device.uuid, named.uuid.empty() ? "" : devices[1].uuid);
    expect_equal(loader, tensors);
  }
}

TEST_P(GpuLoaderTest, TheCurrentDeviceIsOneOfDevices) {
  Loader loader(options());
  EXPECT_EQ(loader.current_device(), loader.devices()[0]);
  Loader without(LoaderOptions{.cuda_library = "libcuda-that-is-not-there.so.1"});
  EXPECT_EQ(code_of([&] { static_cast<void>(without.current_device()); }), ErrorCode::environment_unfit);
}

TEST_P(GpuLoaderTest, ALoaderWithoutAFreeBudgetSaysSo) {
  LoaderOptions small = options();
  small.staging_bytes_max = 4 * mib;
  Loader loader(small);
  const Checkpoint checkpoint = write(16 * mib);
  LoadRequest bounded = request();
  bounded.window_bytes_max = mib;
  std::vector<std::unique_ptr<Load>> loads;
  ErrorCode code = ErrorCode::internal;
  for (int i = 0; i < 20 && code == ErrorCode::internal; ++i) {
    try {
      loads.push_back(loader.start(checkpoint, bounded));
    } catch (const Error& error) {
      code = error.code();
    }
  }
  EXPECT_EQ(code, ErrorCode::out_of_memory);
  EXPECT_EQ(take_all(*loads[0]).size(), checkpoint.tensor_count());
}

}  // namespace
}  // namespace inrush
