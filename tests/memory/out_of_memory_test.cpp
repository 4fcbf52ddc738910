// Every allocation of discover() and make_plan() is refused once, one after the other, and then it and all
// that follow: the call ends with out_of_memory, and nothing is left behind.
#include "fakes/safetensors_text.hpp"
#include "fakes/temp_folder.hpp"
#include "memory/failing_memory.hpp"

#include <inrush/checkpoint.hpp>
#include <inrush/error.hpp>
#include <inrush/plan.hpp>

#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace inrush {

namespace {

constexpr std::uint64_t allocation_count_max = 100'000;  // of one call; more: the sweep does not end

std::int64_t descriptor_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

struct Tally {
  std::uint64_t refusals = 0;
  std::uint64_t out_of_memory = 0;  // the Error of that code
  std::uint64_t bad_alloc = 0;      // where there was no memory for that Error either
  std::uint64_t survived = 0;       // the call did without
  std::uint64_t wrong = 0;          // another error
  std::uint64_t leaks = 0;          // of memory or descriptors
};

// How one call ends.
struct Ending {
  bool is_bad_alloc = false;
  std::optional<ErrorCode> error;
  std::uint64_t refused_count = 0;
  std::string message;
};

Ending end_of(const std::function<void()>& call, std::uint64_t n, memory::Failure failure) {
  Ending ending;
  {
    std::optional<memory::Refusal> refusal;
    if (n > 0) refusal.emplace(n, failure);
    try {
      call();
    } catch (const Error& error) {
      refusal.reset();
      ending.error = error.code();
      ending.message = error.what();
    } catch (const std::bad_alloc&) {
      ending.is_bad_alloc = true;
    }
  }
  ending.refused_count = memory::refused_count();
  return ending;
}

// A call, and the error that it ends with where there is memory: none where it succeeds.
struct Case {
  std::string name;
  std::function<void()> call;
  std::optional<ErrorCode> error = {};
};

class Sweep {
 public:
  Sweep(const Case& swept, memory::Failure failure) : case_(swept), failure_(failure) {}

  void run() {
    const Ending whole = end_of(case_.call, 0, failure_);  // what is allocated once and kept comes now
    ASSERT_TRUE(whole.error == case_.error && !whole.is_bad_alloc) << whole.message;
    for (std::uint64_t n = 1; n < allocation_count_max; ++n) {
      if (refuse(n) || testing::Test::HasFailure()) return;
    }
    FAIL() << "no end after " << allocation_count_max << " allocations";
  }
  [[nodiscard]] const Tally& tally() const { return tally_; }

 private:
  // True where the call has no n-th allocation.
  bool refuse(std::uint64_t n) {
    const std::int64_t live_before = memory::live_count;
    const std::int64_t open_before = descriptor_count();
    const Ending ending = end_of(case_.call, n, failure_);
    const std::int64_t message_count = ending.message.size() > 15 ? 1 : 0;  // longer ones are allocated
    const std::int64_t left_count = memory::live_count - message_count - live_before;
    const std::int64_t left_open_count = descriptor_count() - open_before;
    if (left_count != 0 || left_open_count != 0) ++tally_.leaks;
    EXPECT_EQ(left_count, 0) << "allocations left after the refusal of number " << n;
    EXPECT_EQ(left_open_count, 0) << "files left open after the refusal of number " << n;
    if (ending.refused_count == 0) return true;
    ++tally_.refusals;
    if (ending.is_bad_alloc) {
      ++tally_.bad_alloc;
      EXPECT_EQ(failure_, memory::Failure::for_good) << "no Error though there was memory for one: " << n;
    } else if (ending.error == ErrorCode::out_of_memory) {
      ++tally_.out_of_memory;
    } else {
      ++(ending.error == case_.error ? tally_.survived : tally_.wrong);
      EXPECT_EQ(ending.error, case_.error) << "number " << n << ": " << ending.message;
    }
    return false;
  }

  const Case& case_;
  const memory::Failure failure_;
  Tally tally_;
};

void sweep(const Case& swept) {
  for (const memory::Failure failure : {memory::Failure::once, memory::Failure::for_good}) {
    Sweep sweep(swept, failure);
    sweep.run();
    const Tally& tally = sweep.tally();
    EXPECT_GT(tally.out_of_memory + tally.bad_alloc, 0U);
    std::cout << fmt::format(
        "count: allocation failures {} out_of_memory {} bad_alloc {} survived {} wrong {} leaks {} name {} "
        "{}\n",
        tally.refusals, tally.out_of_memory, tally.bad_alloc, tally.survived, tally.wrong, tally.leaks,
        swept.name, failure == memory::Failure::once ? "once" : "for_good");
  }
}

constexpr std::string_view header =
    R"({"__metadata__":{"format":"pt","a long key of the metadata":"and a value that is not short"},)"
    R"("model.layers.0.attention.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[16,80]},)"
    R"("model.layers.0.attention.\u0062ias":{"dtype":"U8","shape":[16],"data_offsets":[0,16],"x":{"y":[1]}},)"
    R"("model.layers.1.attention.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[80,144]},)"
    R"("model.empty":{"dtype":"BF16","shape":[0,7],"data_offsets":[144,144]}})";
constexpr std::size_t data_bytes = 144;

class OutOfMemory : public testing::Test {
 protected:
  [[nodiscard]] Case discovery(const std::string& name, std::size_t tensor_count,
                               const std::string& path) const {
    return {name, [path, tensor_count] {
              if (discover(path).tensor_count() != tensor_count) throw Error(ErrorCode::internal, "tensors");
            }};
  }
  [[nodiscard]] Case refusal(const std::string& name, const std::string& path, ErrorCode error) const {
    return {name, [path] { static_cast<void>(discover(path)); }, error};
  }
  std::string write_model() const {
    return folder_.write("model.safetensors", fakes::safetensors_file(header, data_bytes));
  }
  // Three shards of two tensors and their index.
  std::string write_sharded(const std::string& name) const {
    std::string map;
    for (const std::string shard : {"a", "b", "c"}) {
      const std::array tensors = {shard + ".one", "a long name, the second of shard " + shard};
      folder_.write(name + "/shard-" + shard + ".safetensors", fakes::one_byte_tensors(tensors));
      for (const std::string& tensor : tensors) {
        map += fmt::format("{}\"{}\":\"shard-{}.safetensors\"", map.empty() ? "" : ",", tensor, shard);
      }
    }
    folder_.write(name + "/model.safetensors.index.json",
                  R"({"metadata":{"total_size":7},"weight_map":{)" + map + "}}");
    return folder_ / name;
  }

  fakes::TempFolder folder_;
};

TEST_F(OutOfMemory, File) { sweep(discovery("file", 4, write_model())); }

TEST_F(OutOfMemory, FolderWithIndex) { sweep(discovery("three_shards", 6, write_sharded("sharded"))); }

TEST_F(OutOfMemory, FolderWithoutIndex) {
  const std::string path = write_sharded("sharded");
  std::filesystem::remove(path + "/model.safetensors.index.json");
  sweep(discovery("no_index", 6, path));
}

TEST_F(OutOfMemory, CacheOfHuggingFace) {
  folder_.write("models--a--b/blobs/0123", fakes::safetensors_file(header, data_bytes));
  const std::string snapshot = folder_ / "models--a--b/snapshots/c0ffee";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_symlink("../../blobs/0123", snapshot + "/model.safetensors");
  sweep(discovery("cache", 4, snapshot));
}

// The message itself takes memory.
TEST_F(OutOfMemory, WhatIsRefusedAnyway) {
  const std::string hole = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})";
  sweep(refusal("hole", folder_.write("hole.safetensors", fakes::safetensors_file(hole, 8)),
                ErrorCode::corrupt_checkpoint));
  sweep(refusal("syntax", folder_.write("syntax.safetensors", fakes::safetensors_file("{\"a\":}", 0)),
                ErrorCode::corrupt_checkpoint));
  sweep(refusal("absent", folder_ / "absent.safetensors", ErrorCode::not_found));
  const std::string sharded = write_sharded("missing");
  std::filesystem::remove(sharded + "/shard-b.safetensors");
  sweep(refusal("missing_shard", sharded, ErrorCode::not_found));
}

class PlanOutOfMemory : public OutOfMemory {
 protected:
  [[nodiscard]] static Case planning(const std::string& name, const Checkpoint& checkpoint,
                                     const LoadRequest& request) {
    const Machine machine = {.devices = {Device{}},
                             .paths = {{.name = "staged", .usable = true, .reason = "always there"}}};
    const Plan expected = make_plan(checkpoint, request, machine);
    return {name, [=] {
              if (make_plan(checkpoint, request, machine) != expected)
                throw Error(ErrorCode::internal, "plan");
            }};
  }
};

TEST_F(PlanOutOfMemory, Everything) { sweep(planning("plan_all", discover(write_sharded("sharded")), {})); }

TEST_F(PlanOutOfMemory, GlobsSlicesAndTargets) {
  std::array<std::byte, 64> memory = {};
  LoadRequest request;
  request.only = {"model.layers.[0-1].*", "*empty"};
  request.select = [](const TensorInfo& tensor) { return !tensor.name.ends_with("a name that nothing has"); };
  request.slices["model.layers.0.attention.weight"] = {.dimension = 1, .start = 1, .length = 2};
  request.targets.by_name["model.layers.1.attention.weight"] = {memory.data(), memory.size()};
  sweep(planning("plan_request", discover(write_model()), request));
}

TEST_F(PlanOutOfMemory, WhatIsRefusedAnyway) {
  const Checkpoint checkpoint = discover(write_model());
  const Machine machine = {.devices = {Device{}},
                           .paths = {{.name = "staged", .usable = true, .reason = ""}}};
  LoadRequest request;
  request.only = {"model.layers.7.attention.weight"};
  sweep({"plan_unknown", [&] { static_cast<void>(make_plan(checkpoint, request, machine)); },
         ErrorCode::invalid_request});
}

// The sweep means something only if refusals reach the C library and what is left behind is seen.
TEST(FailingMemory, RefusesTheChosenAllocation) {
  std::vector<int> kept;
  {
    const memory::Refusal refusal(2, memory::Failure::once);
    kept.reserve(10);
    EXPECT_THROW(kept.reserve(1000), std::bad_alloc);
    kept.reserve(1000);
  }
  EXPECT_EQ(memory::refused_count(), 1U);
  const std::int64_t before = memory::live_count;
  std::string().swap(*std::make_unique<std::string>(100, 'x'));
  EXPECT_EQ(memory::live_count, before);
  const auto held = std::make_unique<int>(1);
  EXPECT_EQ(memory::live_count, before + 1);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(FailingMemory, ReachesTheCLibrary) {
  DIR* folder = nullptr;
  {
    const memory::Refusal refusal(1, memory::Failure::once);
    folder = ::opendir("/");
  }
  EXPECT_EQ(folder, nullptr);
  if (folder != nullptr) ::closedir(folder);
}
#endif

}  // namespace

}  // namespace inrush
