// What only a GPU can show. Run by tests/gpu/run.sh on a machine that has one; not part of `make test`.
#include <inrush/loader.hpp>

#include "base/host_pages.hpp"
#include "fakes/test_files.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/gpu.hpp"
#include "gpu/raw_driver.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <thread>

namespace inrush {
namespace {

using namespace fakes;
using gpu_tests::RawDriver;

constexpr std::uint64_t mib = 1ULL << 20;
constexpr unsigned char poison = 0xA5;

std::uint64_t address_of(const Tensor& tensor) { return reinterpret_cast<std::uint64_t>(tensor.data); }

class RealGpuTest : public testing::Test {
 protected:
  Checkpoint write(std::uint64_t bytes, const std::string& name = "model", std::uint64_t seed = 1) {
    for (const auto& [tensor, content] :
         write_safetensors(folder_ / (name + ".safetensors"), mixed_tensors(bytes, seed), seed, 5)) {
      contents_[tensor] = content;
    }
    return discover(folder_ / (name + ".safetensors"));
  }

  LoadRequest request() { return {.device = {DeviceKind::cuda, 0}}; }

  static std::vector<Tensor> take_all(Load& load) {
    std::vector<Tensor> tensors;
    while (std::optional<Tensor> tensor = load.next()) tensors.push_back(std::move(*tensor));
    return tensors;
  }

  // On the host by a copy back, and on the GPU against bytes that came another way.
  void expect_equal(const std::vector<Tensor>& tensors) {
    std::size_t wrong_on_host = 0;
    std::size_t wrong_on_device = 0;
    for (const Tensor& tensor : tensors) {
      const std::string& expected = contents_.at(tensor.name);
      std::string bytes(tensor.size_bytes, '\0');
      loader_.copy_to_host(tensor, 0, std::as_writable_bytes(std::span(bytes)));
      if (bytes != expected) ++wrong_on_host;
      if (tensor.size_bytes == 0) continue;
      const std::uint64_t reference = driver_.allocate(tensor.size_bytes);
      driver_.upload(reference, std::as_bytes(std::span(expected)));
      if (driver_.count_different(address_of(tensor), reference, tensor.size_bytes) != 0) ++wrong_on_device;
      driver_.free(reference);
    }
    EXPECT_EQ(wrong_on_host, 0U) << "of " << tensors.size();
    EXPECT_EQ(wrong_on_device, 0U) << "of " << tensors.size();
  }

  // Memory of the driver's own, poisoned.
  AllocateFunction poisoned_memory(void* stream = nullptr) {
    return [this, stream](const Device&, std::uint64_t size_bytes, std::uint64_t) -> Allocation {
      const std::uint64_t address = driver_.allocate(size_bytes);
      driver_.fill(address, poison, size_bytes);
      auto* const pointer = reinterpret_cast<void*>(address);
      return {pointer, std::shared_ptr<void>(pointer, [this, address](void*) { driver_.free(address); }),
              stream, stream != nullptr};
    };
  }

  RawDriver driver_;
  TempFolder folder_;
  TestBytes contents_;
  Loader loader_;
};

TEST_F(RealGpuTest, EveryByteIsEqualOnDeviceAndHost) {
  const auto load = loader_.start(write(300 * mib), request());
  expect_equal(take_all(*load));
  EXPECT_TRUE(load->report().complete);
  for (const Fallback& fallback : load->report().fallbacks)
    ADD_FAILURE() << fallback.what << ": " << fallback.reason;
}

TEST_F(RealGpuTest, PoisonedDestinationsAreFilledWhole) {
  LoadRequest poisoned = request();
  poisoned.allocate = poisoned_memory();
  expect_equal(take_all(*loader_.start(write(100 * mib), poisoned)));
}

TEST_F(RealGpuTest, ColdByODirectAndByPopulating) {
  const Checkpoint checkpoint = write(200 * mib);
  for (const PageCachePolicy policy : {PageCachePolicy::bypass, PageCachePolicy::keep}) {
    std::ofstream("/proc/sys/vm/drop_caches") << 3 << std::flush;
    LoadRequest cold = request();
    cold.page_cache = policy;
    const auto load = loader_.start(checkpoint, cold);
    expect_equal(take_all(*load));
    for (const PathBytes& way : load->report().bytes_by_path)
      RecordProperty(way.path, std::to_string(way.bytes));
  }
}

TEST_F(RealGpuTest, SlicesCrossOnlyAsTheyAre) {
  contents_ = write_safetensors(folder_ / "s.safetensors", {{"w", DType::bf16, {4096, 2048}}}, 7);
  LoadRequest sliced = request();
  sliced.slices = {{"w", {1, 256, 256}}};
  const std::vector<Tensor> tensors = take_all(*loader_.start(discover(folder_ / "s.safetensors"), sliced));
  std::string expected;
  for (std::size_t row = 0; row < 4096; ++row) expected += contents_["w"].substr(row * 4096 + 512, 512);
  contents_["w"] = expected;
  expect_equal(tensors);
}

TEST_F(RealGpuTest, TwentyLoadsInARowKeepMemoryFlat) {
  const Checkpoint checkpoint = write(200 * mib);
  std::uint64_t free_after_first = 0;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(take_all(*loader_.start(checkpoint, request())).size(), checkpoint.tensor_count());
    if (i == 0) free_after_first = driver_.free_bytes();
  }
  EXPECT_EQ(driver_.free_bytes(), free_after_first);
}

TEST_F(RealGpuTest, KeptTensorsStayWhileOthersLoad) {
  const std::vector<Tensor> kept = take_all(*loader_.start(write(150 * mib, "kept", 1), request()));
  const TestBytes kept_contents = contents_;
  const Checkpoint other = write(150 * mib, "other", 2);
  for (int i = 0; i < 5; ++i) static_cast<void>(take_all(*loader_.start(other, request())));
  contents_ = kept_contents;
  expect_equal(kept);
}

TEST_F(RealGpuTest, OutOfMemoryHalfWayFreesAll) {
  const Checkpoint checkpoint = write(400 * mib);
  static_cast<void>(take_all(*loader_.start(checkpoint, request())));  // so that ring and context are there
  const std::uint64_t room = 128 * mib;
  const std::uint64_t hog = driver_.allocate(driver_.free_bytes() - room);
  const std::uint64_t before = driver_.free_bytes();
  try {
    const std::vector<Tensor> tensors = take_all(*loader_.start(checkpoint, request()));
    ADD_FAILURE() << "it fitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
  }
  EXPECT_EQ(driver_.free_bytes(), before);
  driver_.free(hog);
  expect_equal(take_all(*loader_.start(checkpoint, request())));
}

// Invariant 10: a block that queued work still reads is not written before that work is done.
TEST_F(RealGpuTest, ABlockInUseOnItsOwnersStreamIsNotOverwrittenEarly) {
  contents_ = write_safetensors(folder_ / "b.safetensors", {{"t", DType::u8, {16 * mib}}}, 3);
  const Checkpoint checkpoint = discover(folder_ / "b.safetensors");
  void* const stream = driver_.open_stream();
  const std::uint64_t witness = driver_.allocate(16 * mib);
  const std::uint64_t expected = driver_.allocate(16 * mib);
  driver_.fill(expected, poison, 16 * mib);
  LoadRequest mine = request();
  const AllocateFunction poisoned = poisoned_memory(stream);
  mine.allocate = [&](const Device& device, std::uint64_t size_bytes, std::uint64_t alignment_bytes) {
    const Allocation block = poisoned(device, size_bytes, alignment_bytes);
    driver_.spin(stream, 200'000'000);
    driver_.copy_on(stream, witness, reinterpret_cast<std::uint64_t>(block.pointer), 16 * mib);
    return block;
  };
  const std::vector<Tensor> tensors = take_all(*loader_.start(checkpoint, mine));
  driver_.synchronize(stream);
  EXPECT_EQ(driver_.count_different(witness, expected, 16 * mib), 0U)
      << "the block was overwritten while it was read";
  expect_equal(tensors);
  driver_.free(witness);
  driver_.free(expected);
  driver_.close_stream(stream);
}

TEST_F(RealGpuTest, ADeviceNamedByItsUuid) {
  const Device first = loader_.devices().front();
  ASSERT_FALSE(first.uuid.empty());
  const Checkpoint checkpoint = write(10 * mib);
  expect_equal(take_all(*loader_.start(checkpoint, {.device = parse_device(first.uuid)})));
}

// The kernel against what the CPU copies: each alignment of either side, each short length, and long ones.
TEST(RealCopyKernel, EveryAlignmentAndLength) {
  constexpr std::uint64_t size_bytes = 4 * mib;
  constexpr std::uint64_t target_bytes = 24 * mib;
  const auto gpu = engine::open_cuda_gpu(engine::CudaDriver::open("libcuda.so.1"), {DeviceKind::cuda, 0});
  engine::HostPages source(size_bytes);
  std::mt19937_64 random(7);
  for (std::byte& byte : source.bytes()) byte = static_cast<std::byte>(random());
  std::string refusal;
  const auto pin = gpu->pin(source.bytes(), refusal);
  ASSERT_NE(pin, nullptr) << refusal;
  const auto target = gpu->allocate(target_bytes, 256);
  const auto stream = gpu->open_stream();
  const std::vector<engine::Copy> nothing(4, {.source = source.bytes().data(), .target = target.get()});
  while (stream->kernel_refusal().empty() && stream->copy(nothing) > 0) std::this_thread::yield();
  std::uint64_t run_count = 0;
  const auto check = [&](auto&& next_length) {
    std::vector<std::byte> expected(target_bytes, std::byte{poison});
    std::vector<engine::Copy> copies;
    std::uint64_t to = 64;
    for (std::uint64_t shift = 0; shift < 256; ++shift) {
      for (std::uint64_t length = next_length(); length > 0; length = next_length()) {
        const std::uint64_t from = random() % (size_bytes - length - 16) / 16 * 16 + shift / 16;
        const std::uint64_t place = (to + 15) / 16 * 16 + shift % 16;
        if (place + length + 64 > target_bytes) break;
        copies.push_back({.source = source.bytes().data() + from,
                          .target = static_cast<std::byte*>(target.get()) + place,
                          .row_bytes = length});
        std::copy_n(source.bytes().begin() + static_cast<std::ptrdiff_t>(from), length,
                    expected.begin() + static_cast<std::ptrdiff_t>(place));
        to = place + length + 1;  // a byte between them must stay as it was
      }
    }
    stream->fill(target.get(), target_bytes, std::byte{poison});
    EXPECT_LT(stream->copy(copies), copies.size() / 100 + 2) << "by copies, not by the kernel";
    stream->wait(stream->record());
    std::vector<std::byte> seen(target_bytes);
    gpu->copy_to_host(target.get(), seen);
    EXPECT_TRUE(seen == expected);
    run_count += copies.size();
  };
  std::uint64_t length = 0;
  check([&] { return length = length == 200 ? 0 : length + 1; });
  int left = 8;
  check([&] { return left-- > 0 ? 1 + random() % 20'000 : (left = 8, 0); });
  left = 1;
  check([&] { return left-- > 0 ? 1 + random() % 90'000 : (left = 1, 0); });
  std::printf("kernel: %llu runs equal\n", static_cast<unsigned long long>(run_count));
  EXPECT_EQ(stream->kernel_refusal(), "");
}

}  // namespace
}  // namespace inrush
