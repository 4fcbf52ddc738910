// Whole loads through the public API, on the CPU target or on the second fake GPU: what the tests of the
// Loader share.
#pragma once

#include <inrush/loader.hpp>

#include "fakes/fake_cuda.hpp"
#include "fakes/test_files.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace inrush::tests {

inline constexpr std::uint64_t mib = 1ULL << 20;

class LoaderTest : public testing::TestWithParam<DeviceKind> {
 protected:
  LoaderTest() : cuda_(INRUSH_FAKE_CUDA) {}

  LoaderOptions options() {
    return {.reader_count_max = 3, .staging_bytes_max = 64 * mib, .cuda_library = INRUSH_FAKE_CUDA};
  }
  Device device() { return {.kind = GetParam(), .index = GetParam() == DeviceKind::cuda ? 1U : 0U}; }
  LoadRequest request() { return {.device = device()}; }

  Checkpoint write(std::uint64_t bytes = 2 * mib, int files = 2) {
    for (int i = 0; i < files; ++i) {
      std::vector<fakes::TestTensor> tensors =
          fakes::mixed_tensors(bytes / static_cast<std::uint64_t>(files), static_cast<std::uint64_t>(i));
      for (fakes::TestTensor& tensor : tensors) tensor.name += "." + std::to_string(i);
      contents_.merge(fakes::write_safetensors(folder_ / ("m" + std::to_string(i) + ".safetensors"), tensors,
                                               static_cast<std::uint64_t>(i)));
    }
    return discover(folder_.path());
  }

  static std::vector<Tensor> take_all(Load& load) {
    std::vector<Tensor> tensors;
    while (std::optional<Tensor> tensor = load.next()) tensors.push_back(std::move(*tensor));
    return tensors;
  }

  static std::string bytes_of(Loader& loader, const Tensor& tensor) {
    std::string bytes(tensor.size_bytes, '\0');
    loader.copy_to_host(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  void expect_equal(Loader& loader, const std::vector<Tensor>& tensors) {
    std::size_t wrong = 0;
    for (const Tensor& tensor : tensors)
      wrong += bytes_of(loader, tensor) == contents_.at(tensor.name) ? 0U : 1U;
    EXPECT_EQ(wrong, 0U) << "of " << tensors.size();
  }

  // A load of the tensors "a" and "b" whose window has room for "a" only: "b" is read once "a" was taken.
  std::unique_ptr<Load> start_one_of_two(Loader& loader) {
    contents_ = fakes::write_safetensors(folder_ / "model.safetensors",
                                         {{"a", DType::u8, {3 * mib}}, {"b", DType::u8, {3 * mib}}}, 5);
    LoadRequest bounded = request();
    bounded.window_bytes_max = 4 * mib;
    return loader.start(discover(folder_.path()), bounded);
  }

  template <typename Call>
  static ErrorCode code_of(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    ADD_FAILURE() << "no error";
    return ErrorCode::internal;
  }

  fakes::FakeCuda cuda_;
  fakes::TempFolder folder_;
  fakes::TestBytes contents_;
};

}  // namespace inrush::tests
