// Loads into memory that exists, on the CPU and on the fake GPU: what surrounds a target stays as it was.
#include <inrush/loader.hpp>

#include "fakes/safetensors_text.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/gpu.hpp"
#include "unit/loader/loader_fixture.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <thread>

namespace inrush {
namespace {

using namespace fakes;
using tests::LoaderTest;
using tests::mib;

constexpr char poison = '\xA5';

class TargetsTest : public LoaderTest {
 protected:
  using Names = std::vector<std::string>;

  TargetsTest()
      : gpu_(GetParam() == DeviceKind::cpu
                 ? engine::open_host_gpu()
                 : engine::open_cuda_gpu(engine::CudaDriver::open(INRUSH_FAKE_CUDA), device())) {}

  // Poisoned memory of the device for the targets of one test.
  void make_block(std::uint64_t size_bytes) {
    block_bytes_ = size_bytes;
    block_ = gpu_->allocate(size_bytes, 256);
    write_block(std::string(size_bytes, poison));
  }

  void write_block(const std::string& bytes) {
    const auto stream = gpu_->open_stream();
    stream->copy(std::vector<engine::Copy>{{.source = reinterpret_cast<const std::byte*>(bytes.data()),
                                            .target = block_.get(),
                                            .row_bytes = bytes.size()}});
    stream->wait(stream->record());
  }

  [[nodiscard]] std::string block() const {
    std::string bytes(block_bytes_, '\0');
    gpu_->copy_to_host(block_.get(), std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  [[nodiscard]] void* at(std::uint64_t offset) const {
    return static_cast<std::byte*>(block_.get()) + offset;
  }

  // One after the other in a block of their own, at odd addresses, some side by side.
  LoadRequest into_block(const Names& names) {
    LoadRequest into = request();
    std::uint64_t offset = 1;
    for (const std::string& name : names) {
      offsets_[name] = offset;
      offset += contents_.at(name).size() + (offsets_.size() % 3 == 0 ? 0 : 1 + offsets_.size() % 61);
    }
    make_block(offset + 100);
    for (const std::string& name : names)
      into.targets.by_name[name] = {at(offsets_[name]), contents_.at(name).size()};
    into.targets.owner = block_;
    return into;
  }

  // The block with the bytes of these tensors where their targets are.
  [[nodiscard]] std::string expected_block(const Names& names) const {
    std::string bytes(block_bytes_, poison);
    for (const std::string& name : names)
      bytes.replace(offsets_.at(name), contents_.at(name).size(), contents_.at(name));
    return bytes;
  }

  [[nodiscard]] Names names_where(const std::function<bool(std::size_t)>& wanted) const {
    Names names;
    std::size_t i = 0;
    for (const auto& [name, bytes] : contents_) {
      if (wanted(i++)) names.push_back(name);
    }
    return names;
  }
  [[nodiscard]] Names all_names() const {
    return names_where([](std::size_t) { return true; });
  }

  // "t00", "t01", ... of 3,000 bytes, a file each.
  void write_shards(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string name = std::string(i < 10 ? "t0" : "t") + std::to_string(i);
      contents_.merge(write_safetensors(folder_ / (name + ".safetensors"), {{name, DType::u8, {3000}}},
                                        static_cast<std::uint64_t>(i)));
    }
  }

  std::shared_ptr<engine::Gpu> gpu_;
  std::shared_ptr<void> block_;
  std::uint64_t block_bytes_ = 0;
  std::map<std::string, std::uint64_t> offsets_;
};

TEST_P(TargetsTest, EveryTensorIsWrittenToItsTargetAndNothingElseIs) {
  const Checkpoint checkpoint = write();
  Loader loader(options());
  const LoadRequest into = into_block(all_names());
  const std::uint64_t allocated_bytes = cuda_->live().allocated_bytes;
  const auto load = loader.start(checkpoint, into);
  const std::vector<Tensor> tensors = take_all(*load);
  EXPECT_EQ(cuda_->live().allocated_bytes, allocated_bytes) << "nothing was allocated";
  EXPECT_EQ(tensors.size(), checkpoint.tensor_count());
  for (const Tensor& tensor : tensors) {
    EXPECT_EQ(tensor.data, at(offsets_.at(tensor.name))) << tensor.name;
    EXPECT_EQ(tensor.memory, block_);
    EXPECT_EQ(tensor.device, gpu_->device().uuid.empty() ? device() : gpu_->device());
  }
  EXPECT_TRUE(block() == expected_block(all_names()));
  const Report report = load->report();
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.loaded_bytes, checkpoint.size_bytes());
  EXPECT_EQ(report.overwritten_targets, Names{});
  for (const PathBytes& way : report.bytes_by_path)
    EXPECT_EQ(way.path.find("in place"), std::string::npos) << "not our memory";
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

TEST_P(TargetsTest, SomeTensorsAllocatedOthersNot) {
  const Checkpoint checkpoint = write(4 * mib);
  const Names names = names_where([](std::size_t i) { return i % 3 != 1; });
  LoadRequest into = into_block(names);
  into.window_bytes_max = mib;
  Loader loader(options());
  const auto load = loader.start(checkpoint, into);
  std::vector<Tensor> tensors;
  for (const char* name : {"layer.1.1", "layer.2.0", "layer.3.1"}) tensors.push_back(load->get(name));
  while (std::optional<Tensor> tensor = load->next()) {
    tensors.push_back(std::move(*tensor));
    const bool is_target = offsets_.contains(tensors.back().name);
    EXPECT_EQ(tensors.back().memory == block_, is_target) << tensors.back().name;
    EXPECT_TRUE(is_target || reinterpret_cast<std::uintptr_t>(tensors.back().data) % 256 == 0);
  }
  EXPECT_EQ(tensors.size(), checkpoint.tensor_count());
  expect_equal(loader, tensors);
  EXPECT_TRUE(block() == expected_block(names));
  const auto by_name = loader.start(checkpoint, into);
  for (const std::string& name : all_names()) EXPECT_EQ(by_name->get(name).name, name);
}

// Were targets counted, the second group would wait for the first one to be taken.
TEST_P(TargetsTest, TheWindowDoesNotHoldThemBack) {
  const Checkpoint checkpoint = write(4 * mib);
  LoadRequest into = into_block(all_names());
  into.window_bytes_max = 1;
  Loader loader(options());
  const auto load = loader.start(checkpoint, into);
  while (load->progress().loaded_bytes < checkpoint.size_bytes()) std::this_thread::yield();
  EXPECT_EQ(take_all(*load).size(), checkpoint.tensor_count());
}

TEST_P(TargetsTest, SlicesAreWrittenRowByRow) {
  contents_ = write_safetensors(
      folder_ / "model.safetensors",
      {{"w", DType::f32, {40, 30}}, {"b", DType::u8, {17}}, {"v", DType::bf16, {64, 8}}}, 3);
  LoadRequest into = request();
  into.slices = {{"w", {1, 5, 10}}, {"v", {0, 3, 2}}};
  make_block(4000);
  into.targets.by_name = {{"w", {at(7), 1600}}, {"b", {at(1607), 17}}, {"v", {at(3001), 32}}};
  Loader loader(options());
  const auto load = loader.start(discover(folder_.path()), into);
  for (const Tensor& tensor : take_all(*load)) {
    EXPECT_TRUE(tensor.name != "w" || tensor.shape == (std::vector<std::uint64_t>{40, 10}));
    EXPECT_EQ(tensor.memory, nullptr) << "the caller keeps it alive by other means";
  }
  std::string expected(4000, poison);
  for (std::size_t row = 0; row < 40; ++row)
    expected.replace(7 + row * 40, 40, contents_["w"].substr(row * 120 + 20, 40));
  expected.replace(1607, 17, contents_["b"]);
  expected.replace(3001, 32, contents_["v"].substr(48, 32));
  EXPECT_TRUE(block() == expected);
}

TEST_P(TargetsTest, TensorsWithoutBytesHaveTheirsToo) {
  write_safetensors(folder_ / "model.safetensors", {{"a", DType::f32, {0}}, {"b", DType::u8, {3, 0}}}, 1);
  make_block(8);
  LoadRequest into = request();
  into.targets.by_name = {{"a", {}}, {"b", {at(3), 0}}};
  into.targets.owner = block_;
  Loader loader(options());
  const auto load = loader.start(discover(folder_.path()), into);
  EXPECT_EQ(load->get("a").data, nullptr);
  const Tensor tensor = load->get("b");
  EXPECT_EQ(tensor.data, at(3));
  EXPECT_EQ(tensor.memory, block_);
  EXPECT_TRUE(load->report().complete);
}

TEST_P(TargetsTest, OverlapsAreRefusedBeforeAnyFileIsOpened) {
  contents_ =
      write_safetensors(folder_ / "model.safetensors", {{"a", DType::u8, {100}}, {"b", DType::u8, {100}}}, 1);
  const Checkpoint checkpoint = discover(folder_.path());
  std::filesystem::remove(folder_ / "model.safetensors");
  make_block(1000);
  LoadRequest into = request();
  into.targets.by_name = {{"a", {at(1), 100}}, {"b", {at(100), 100}}};
  Loader loader(options());
  EXPECT_EQ(code_of([&] { static_cast<void>(loader.start(checkpoint, into)); }), ErrorCode::invalid_request);
  into.targets.by_name["b"].pointer = at(101);
  EXPECT_EQ(code_of([&] { static_cast<void>(loader.start(checkpoint, into)); }), ErrorCode::not_found);
  EXPECT_TRUE(block() == std::string(1000, poison));
}

TEST_P(TargetsTest, TheOwnerGoesWithTheLastTensorAndTheLoad) {
  const Checkpoint checkpoint = write(mib, 1);
  LoadRequest into = into_block(all_names());
  into.targets.owner = std::shared_ptr<void>(block_.get(), [kept = block_](void*) {});
  const std::weak_ptr<void> watched = into.targets.owner;
  Loader loader(options());
  auto load = loader.start(checkpoint, into);
  into = {};
  std::vector<Tensor> tensors = take_all(*load);
  load.reset();
  EXPECT_FALSE(watched.expired());
  tensors.clear();
  EXPECT_TRUE(watched.expired());
}

TEST_P(TargetsTest, AFailureHalfWayNamesWhatItReached) {
  write_shards(60);  // more than stay open, so that the path meets the missing one
  const Checkpoint checkpoint = discover(folder_.path());
  const LoadRequest into = into_block(all_names());
  std::filesystem::remove(folder_ / "t52.safetensors");
  Loader loader(options());
  const auto load = loader.start(checkpoint, into);
  EXPECT_EQ(code_of([&] { static_cast<void>(take_all(*load)); }), ErrorCode::not_found);
  const Names reached = load->report().overwritten_targets;
  EXPECT_EQ(reached, names_where([&](std::size_t i) { return i <= 52; }))
      << "also what it would have read next, and nothing behind it";
  for (const std::string& name : all_names()) {
    const std::string bytes = block().substr(offsets_[name], 3000);
    const bool is_named = std::find(reached.begin(), reached.end(), name) != reached.end();
    EXPECT_TRUE(is_named || bytes == std::string(3000, poison)) << name;
  }
}

// "a" fills the window, so that the load cannot complete before it is cancelled.
TEST_P(TargetsTest, ACancelNamesWhatItReached) {
  contents_ = write_safetensors(
      folder_ / "model.safetensors",
      {{"a", DType::u8, {3 * mib}}, {"b", DType::u8, {3 * mib}}, {"t", DType::u8, {5 * mib}}}, 1);
  LoadRequest into = into_block({"t"});
  into.window_bytes_max = 4 * mib;
  Loader loader(options());
  const auto load = loader.start(discover(folder_.path()), into);
  while (load->progress().loaded_bytes < 8 * mib) std::this_thread::yield();
  EXPECT_EQ(load->report().overwritten_targets, Names{}) << "not while it goes well";
  load->cancel();
  EXPECT_EQ(code_of([&] { static_cast<void>(take_all(*load)); }), ErrorCode::cancelled);
  EXPECT_EQ(load->report().overwritten_targets, Names{"t"});
}

// start() gives no Load that could be asked which ones were reached.
TEST_P(TargetsTest, AStartThatThrowsHasWrittenToNone) {
  const Checkpoint checkpoint = write();
  const Names names = names_where([](std::size_t i) { return i % 2 == 0; });
  LoadRequest into = into_block(names);
  into.allocate = [](const Device&, std::uint64_t, std::uint64_t) -> Allocation {
    for (int i = 0; i < 20'000; ++i) std::this_thread::yield();  // time in which the path could do harm
    throw Error(ErrorCode::out_of_memory, "the caller has none");
  };
  Loader loader(options());
  EXPECT_EQ(code_of([&] { static_cast<void>(loader.start(checkpoint, into)); }), ErrorCode::out_of_memory);
  EXPECT_TRUE(block() == std::string(block_bytes_, poison));
}

TEST_P(TargetsTest, AForkedChildLeavesTheOwnerAlone) {
  const Checkpoint checkpoint = write(mib, 1);
  bool is_dropped = false;
  LoadRequest into = into_block(all_names());
  into.targets.owner = std::shared_ptr<void>(block_.get(), [&](void*) { is_dropped = true; });
  auto loader = std::make_unique<Loader>(options());
  auto load = loader->start(checkpoint, into);
  into = {};
  static_cast<void>(take_all(*load));
  EXPECT_FALSE(is_dropped);
  const pid_t child = ::fork();
  if (child == 0) {
    load.reset();
    ::_exit(is_dropped ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  load.reset();
  EXPECT_TRUE(is_dropped);
}

INSTANTIATE_TEST_SUITE_P(Devices, TargetsTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         [](const auto& tested) {
                           return tested.param == DeviceKind::cpu ? "Cpu" : "FakeCuda";
                         });

class CpuTargetsTest : public TargetsTest {};
INSTANTIATE_TEST_SUITE_P(Device, CpuTargetsTest, testing::Values(DeviceKind::cpu),
                         [](const auto&) { return "Cpu"; });

// Address space as large as that, of which the load touches little before it is given up.
TEST_P(CpuTargetsTest, MoreThanTheHostHasFreeIsTakenWhereTheMemoryExists) {
  constexpr std::uint64_t huge = 1ULL << 40;
  const std::string header =
      R"({"t":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})";
  const std::string path = folder_.write("sparse.safetensors", safetensors_file(header, 0));
  std::filesystem::resize_file(path, 8 + header.size() + huge);
  void* const memory =
      ::mmap(nullptr, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  LoadRequest into = request();
  into.targets.by_name = {{"t", {memory, huge}}};
  Loader loader(options());
  EXPECT_NO_THROW(loader.start(discover(path), into).reset());
  ::munmap(memory, huge);
}

class GpuTargetsTest : public TargetsTest {
 protected:
  // Calls with the context of the load's device current, as torch would have it.
  template <typename Call>
  void bound(Call&& call) {
    const engine::CudaTable& table = driver_->table();
    engine::CuContext context = nullptr;
    ASSERT_EQ(table.primary_ctx_retain(&context, 1), engine::CuResult::success);
    ASSERT_EQ(table.ctx_push_current(context), engine::CuResult::success);
    call(table);
    ASSERT_EQ(table.ctx_pop_current(&context), engine::CuResult::success);
    ASSERT_EQ(table.primary_ctx_release(1), engine::CuResult::success);
  }

  const std::shared_ptr<const engine::CudaDriver> driver_ = engine::CudaDriver::open(INRUSH_FAKE_CUDA);
};
INSTANTIATE_TEST_SUITE_P(Device, GpuTargetsTest, testing::Values(DeviceKind::cuda),
                         [](const auto&) { return "FakeCuda"; });

TEST_P(GpuTargetsTest, NothingIsWrittenBeforeTheCallersStreamIsDone) {
  const Checkpoint checkpoint = write();
  LoadRequest into = into_block(all_names());
  const std::string theirs(block_bytes_, '\x11');
  engine::CuStream stream = nullptr;
  bound([&](const engine::CudaTable& table) {
    ASSERT_EQ(table.stream_create(&stream, engine::cu_stream_non_blocking), engine::CuResult::success);
    cuda_->hold(stream);
    ASSERT_EQ(table.memcpy_htod_async(reinterpret_cast<std::uintptr_t>(block_.get()), theirs.data(),
                                      theirs.size(), stream),
              engine::CuResult::success);
  });
  into.targets.stream = stream;
  into.targets.stream_ordered = true;
  Loader loader(options());
  const std::uint64_t copy_count = cuda_->copy_count();
  const auto load = loader.start(checkpoint, into);
  while (cuda_->copy_count() == copy_count) std::this_thread::yield();
  cuda_->settle();  // whoever did not wait has written by now
  EXPECT_TRUE(block() == std::string(block_bytes_, poison));
  cuda_->let_go(stream);
  EXPECT_EQ(take_all(*load).size(), checkpoint.tensor_count());
  const std::string bytes = block();
  for (const std::string& name : all_names())
    EXPECT_TRUE(bytes.substr(offsets_[name], contents_[name].size()) == contents_[name]) << name;
  bound([&](const engine::CudaTable& table) {
    EXPECT_EQ(table.stream_synchronize(stream), engine::CuResult::success);
    EXPECT_EQ(table.stream_destroy(stream), engine::CuResult::success);
  });
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

// Whoever catches what next() throws may use the memory again.
TEST_P(GpuTargetsTest, OnceNextHasThrownNothingIsWrittenAnyMore) {
  const Checkpoint checkpoint = write();
  LoadRequest into = into_block(all_names());
  engine::CuStream stream = nullptr;
  bound([&](const engine::CudaTable& table) {
    ASSERT_EQ(table.stream_create(&stream, engine::cu_stream_non_blocking), engine::CuResult::success);
  });
  cuda_->hold(stream);
  cuda_->set_delay_max(100'000);
  into.targets.stream = stream;
  into.targets.stream_ordered = true;
  const std::uint64_t copy_count = cuda_->copy_count();
  into.interrupted = [&] {
    if (cuda_->copy_count() == copy_count) return false;
    cuda_->let_go(stream);  // the copies that were queued run from now on, and take their time
    return true;
  };
  Loader loader(options());
  auto load = loader.start(checkpoint, into);
  EXPECT_EQ(code_of([&] { static_cast<void>(take_all(*load)); }), ErrorCode::cancelled);
  const std::string before = block();
  EXPECT_FALSE(load->report().overwritten_targets.empty());
  load.reset();
  loader.release_idle();
  EXPECT_TRUE(block() == before);
  bound([&](const engine::CudaTable& table) {
    EXPECT_EQ(table.stream_destroy(stream), engine::CuResult::success);
  });
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

// Neighbours in the file and in memory, as layers of a model are; and yet no copy may span two allocations.
TEST_P(GpuTargetsTest, NeighboursInMemoryMayBeAllocationsOfTheirOwn) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 50; ++i) tensors.push_back({"t" + std::to_string(i), DType::u8, {256U * (1 + i % 3)}});
  contents_ = write_safetensors(folder_ / "model.safetensors", tensors, 1);
  const Checkpoint checkpoint = discover(folder_.path());
  cuda_->pack_allocations();
  std::vector<std::shared_ptr<void>> blocks;
  LoadRequest into = request();
  for (const TestTensor& tensor : tensors) {
    blocks.push_back(gpu_->allocate(tensor.shape[0], 256));
    into.targets.by_name[tensor.name] = {blocks.back().get(), tensor.shape[0]};
  }
  Loader loader(options());
  const auto load = loader.start(checkpoint, into);
  EXPECT_EQ(load->plan().segments.size(), 1U);
  const std::vector<Tensor> loaded = take_all(*load);
  EXPECT_EQ(loaded.size(), 50U);
  expect_equal(loader, loaded);
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

TEST_P(GpuTargetsTest, ACopyThatFailsNamesWhatItReached) {
  const Checkpoint checkpoint = write(mib, 1);
  const LoadRequest into = into_block(all_names());
  Loader loader(options());
  cuda_->fail_copy(1, engine::CuResult::launch_failed);
  const auto load = loader.start(checkpoint, into);
  EXPECT_EQ(code_of([&] { static_cast<void>(take_all(*load)); }), ErrorCode::device_failed);
  const Names reached = load->report().overwritten_targets;
  EXPECT_FALSE(reached.empty());
  EXPECT_EQ(reached.front(), "layer.0.0");
}

}  // namespace
}  // namespace inrush
