// Many processes, many threads, many files, and one tensor larger than the machine.
#include "fakes/child_process.hpp"
#include "fakes/safetensors_text.hpp"
#include "faults/fault_fixture.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace inrush::faults {
namespace {

using namespace fakes;

class ProcessesTest : public FaultTest {
 protected:
  // A whole load with a Loader of its own: empty where every byte is right.
  std::string load_all(DeviceKind kind) {
    Loader loader(options());
    const Device device{.kind = kind, .index = kind == DeviceKind::cuda ? 1U : 0U};
    const auto load = loader.start(checkpoint_, {.device = device});
    std::size_t right = 0;
    while (const std::optional<Tensor> tensor = load->next()) {
      std::string bytes(tensor->size_bytes, '\0');
      loader.copy_to_host(*tensor, 0, std::as_writable_bytes(std::span(bytes)));
      right += bytes == contents_.at(tensor->name) ? 1U : 0U;
    }
    return right == contents_.size() ? "" : std::to_string(right) + " tensors are right";
  }
};

TEST_F(ProcessesTest, ThirtyTwoAtOnce) {
  const HangGuard guard(repeat_text("processes at once", 0), 120);
  write_model(3, 500 * kib);
  std::vector<pid_t> children;
  for (int i = 0; i < 32; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::string problem;
      try {
        for (int round = 0; round < 3; ++round)
          problem += load_all(i % 2 == 0 ? DeviceKind::cpu : DeviceKind::cuda);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      ::_exit(problem.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const bool is_right = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    EXPECT_TRUE(is_right) << "status " << status;
    count("crowd of processes", {1, 1, is_right ? 1U : 0U, 0, is_right ? 0U : 1U, 0});
  }
}

TEST_F(ProcessesTest, SixtyFourThreadsWithALoaderEach) {
  const HangGuard guard(repeat_text("thread at once", 0), 120);
  write_model(2, 100 * kib);
#ifdef __SANITIZE_THREAD__
  // liburing maps and unmaps its rings past the C library: a ring at the address of one that another thread
  // had is a race to the sanitizer.
  options().io_uring = IoUring::off;
#endif
  std::vector<std::string> problems(64);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        problems[i] = load_all(i % 2 == 0 ? DeviceKind::cpu : DeviceKind::cuda);
      } catch (const std::exception& error) {
        problems[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) {
    EXPECT_EQ(problem, "");
    count("crowd of threads", {1, 1, problem.empty() ? 1U : 0U, 0, problem.empty() ? 0U : 1U, 0});
  }
}

#ifndef __SANITIZE_THREAD__  // which lets no thread start in the child of a process with several
// The child of a process whose Loader has threads and a load under way makes one of its own. On the CPU: CUDA
// itself does not survive a fork.
TEST_F(ProcessesTest, ForkAfterInit) {
  write_model(2, 100 * kib);
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    set_device(kind);
    for (std::uint64_t i = 0; i < scaled(8); ++i) {
      const HangGuard guard(repeat_text("fork", i));
      Loader loader(options());
      LoadRequest request{.device = device_};
      request.window_bytes_max = 1;  // so that it is under way for as long as nobody takes
      const auto load = loader.start(checkpoint_, request);
      // Until the window is full and every thread waits: one that allocates may hold a lock of a sanitizer's.
      std::uint64_t first_slab_bytes = 0;
      for (const Placement& placement : load->plan().placements)
        first_slab_bytes += placement.slab == 0 ? placement.size_bytes : 0;
      while (load->progress().loaded_bytes < first_slab_bytes) std::this_thread::yield();
      const std::string problem = run_in_child([&]() -> std::string {
        const HangGuard inner("the forked child", 30);
        if (const std::string wrong = load_all(DeviceKind::cpu); !wrong.empty()) return wrong;
        try {
          static_cast<void>(load->next());
          return "the parent's Load answers in the child";
        } catch (const Error& error) {
          return error.code() == ErrorCode::invalid_request ? "" : error.what();
        }
      });
      EXPECT_EQ(problem, "");
      count("crowd of forked children", {1, 1, problem.empty() ? 1U : 0U, 0, problem.empty() ? 0U : 1U, 0});
    }
  }
}

#endif

TEST_F(ProcessesTest, TenThousandShardsUnderFewDescriptors) {
  const HangGuard guard(repeat_text("shards", 0), 250);
  const std::uint64_t shard_count = scaled(10'000);
  TestBytes contents;
  for (std::uint64_t i = 0; i < shard_count; ++i) {
    const std::string name = "t" + std::to_string(i);
    contents.merge(write_safetensors(folder_ / (name + ".safetensors"), {{name, DType::u8, {40}}}, i));
  }
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 256, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  use_model(std::move(contents));
  EXPECT_EQ(load_all(DeviceKind::cpu), "");
  ::setrlimit(RLIMIT_NOFILE, &before);
  count("crowd of shards under few descriptors", {1, 1, 1, 0, HasFailure() ? 1U : 0U, 0});
}

// 200 GB that are nowhere but in the file's length: the plan, and its first and last rows.
TEST_F(ProcessesTest, OneTensorOf200Gigabytes) {
  const HangGuard guard(repeat_text("200 GB", 0));
  constexpr std::uint64_t row_bytes = 1'000'000;
  constexpr std::uint64_t row_count = 200'000;
  const std::string header =
      R"({"t":{"dtype":"U8","shape":[200000,1000000],"data_offsets":[0,200000000000]}})";
  const std::string path = folder_.write("model.safetensors", safetensors_file(header, 2000));
  std::filesystem::resize_file(path, 8 + header.size() + row_bytes * row_count);
  const Checkpoint checkpoint = discover(path);
  ASSERT_EQ(checkpoint.tensor(0).size_bytes, 200'000'000'000U);
  Loader loader(options());
  Machine machine = loader.machine({});
  machine.host_free_bytes = 1ULL << 40;
  const Plan plan = make_plan(checkpoint, {}, machine);
  EXPECT_EQ(plan.loaded_bytes, row_bytes * row_count);
  EXPECT_EQ(plan.slabs.size(), 1U);
  for (const std::uint64_t start : {std::uint64_t{0}, row_count - 1}) {
    LoadRequest rows;
    rows.slices = {{"t", {0, start, 1}}};
    const auto load = loader.start(checkpoint, rows);
    const Tensor tensor = load->get("t");
    ASSERT_EQ(tensor.size_bytes, row_bytes);
    const std::string bytes(static_cast<const char*>(tensor.data), 3000);
    const std::string expected =
        start == 0 ? safetensors_file(header, 2000).substr(8 + header.size()) + std::string(1000, '\0')
                   : std::string(3000, '\0');
    EXPECT_TRUE(bytes == expected);
  }
  count("tensor larger than the machine", {1, 1, 1, 0, HasFailure() ? 1U : 0U, 0});
}

}  // namespace
}  // namespace inrush::faults
