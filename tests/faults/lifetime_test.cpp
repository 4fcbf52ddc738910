// A tensor stays what it is for as long as it is held, whatever is loaded meanwhile: all tensors of a model
// of 17,165 (as many as a mixture of experts has) are held while another one is loaded, again and again.
#include "faults/fault_fixture.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace inrush::faults {
namespace {

using namespace fakes;

constexpr std::uint64_t tensor_count = 17'165;
constexpr int pass_count = 20;

class LifetimeTest : public DeviceFaultTest {
 protected:
  // Small tensors, of which neighbours share slabs and pieces; bytes that depend on the seed.
  static TestBytes write_experts(const std::string& path, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<TestTensor> tensors;
    for (std::uint64_t i = 0; i < tensor_count; ++i)
      tensors.push_back({"experts." + std::to_string(i) + ".weight", DType::u8, {1 + random() % 1200}});
    return write_safetensors(path, tensors, seed);
  }

  std::vector<Tensor> load_slowly(Loader& loader, const Checkpoint& checkpoint, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    LoadRequest request{.device = device_};
    request.window_bytes_max = seed % 2 == 0 ? 0 : 1ULL << 20;
    request.page_cache = seed % 3 == 0 ? PageCachePolicy::bypass : PageCachePolicy::keep;
    const auto load = loader.start(checkpoint, request);
    std::vector<Tensor> tensors;
    while (std::optional<Tensor> tensor = load->next()) {
      tensors.push_back(std::move(*tensor));
      if (random() % 997 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
    return tensors;
  }

  std::uint64_t count_wrong(Loader& loader, const std::vector<Tensor>& tensors, const TestBytes& contents) {
    std::uint64_t wrong = 0;
    for (const Tensor& tensor : tensors) {
      std::string bytes(tensor.size_bytes, '\0');
      loader.copy_to_host(tensor, 0, std::as_writable_bytes(std::span(bytes)));
      wrong += bytes == contents.at(tensor.name) ? 0U : 1U;
    }
    return wrong + (tensor_count - tensors.size());
  }
};

TEST_P(LifetimeTest, HeldWhileAnotherModelIsLoaded) {
  const HangGuard guard(repeat_text("lifetime", 0), 250);
  const std::string first_path = folder_ / "first.safetensors";
  const std::string second_path = folder_ / "second.safetensors";
  const TestBytes first = write_experts(first_path, 1);
  const TestBytes second = write_experts(second_path, 2);
  const Checkpoint first_model = discover(first_path);
  const Checkpoint second_model = discover(second_path);
  options().piece_bytes_max = 1ULL << 20;
  Loader loader(options());
  std::uint64_t wrong = 0;
  const std::uint64_t passes = scaled(pass_count);
  for (std::uint64_t pass = 0; pass < passes; ++pass) {
    cuda_->set_seed(pass + 1);
    cuda_->set_delay_max(pass % 2 == 0 ? 50 : 400);
    const std::vector<Tensor> held = load_slowly(loader, first_model, pass);
    const std::vector<Tensor> others = load_slowly(loader, second_model, pass + 1000);
    wrong += count_wrong(loader, held, first) + count_wrong(loader, others, second);
    EXPECT_EQ(wrong, 0U) << "seed " << pass << "; " << repeat_text("lifetime", pass);
  }
  std::printf("count: lifetime tensors %llu passes %llu wrong %llu\n",
              static_cast<unsigned long long>(2 * passes * tensor_count),
              static_cast<unsigned long long>(passes), static_cast<unsigned long long>(wrong));
  EXPECT_EQ(cuda_->misuse_count(), 0U) << cuda_->last_misuse();
}

INSTANTIATE_TEST_SUITE_P(Devices, LifetimeTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         device_text);

}  // namespace
}  // namespace inrush::faults
