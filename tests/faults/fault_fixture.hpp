// Whole loads through the public Loader with something going wrong, and what must hold after each: the bytes
// are right or there is one typed error that says where; nothing of a tensor is seen before all of it;
// nothing stays behind; nothing hangs. Every case has a name: FAULT_CASE=<kind>/<number> runs that one alone.
#pragma once

#include <inrush/loader.hpp>

#include "fakes/fake_cuda.hpp"
#include "fakes/test_files.hpp"
#include "faults/system_faults.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::engine {
class Gpu;
}

namespace inrush::faults {

inline constexpr std::uint64_t kib = 1024;

struct Expected {
  bool may_load = true;
  std::set<ErrorCode> codes = {};       // that it may end with
  std::vector<std::string> words = {};  // that every message holds
  int system_error = 0;                 // 0: any
  bool is_usable_afterwards = true;     // the same Loader loads all of it once nothing goes wrong any more
  bool are_files_changed = false;       // bytes of tensors that the report calls suspect may differ
};

struct FaultCase {
  std::string kind;          // a row of the table: "short read"
  std::uint64_t number = 0;  // with the kind, the name of the case; the seed of what is random
  SystemRules rules = {};
  std::function<void()> arm = {};     // right before the load, e.g. faults of the fake GPU
  std::function<void()> disarm = {};  // once the load is gone, before anything is counted
  LoadRequest request = {};
  std::function<void(Load&)> started = {};  // with the Load, before its first tensor is taken
  Expected expected = {};
  bool stays_armed =
      false;  // until the Loader is gone, whose end is part of what is tried; bytes are not compared
  bool is_outside = false;  // the fault is on the disk, or in what `started` does: one for certain
};

// What a process holds, to compare before and after.
struct Held {
  fakes::ProcessCounts counts;
  fakes::FakeCudaLive live;
};

// One kind of fault, as the table shows it.
struct FaultCounts {
  std::uint64_t cases = 0;
  std::uint64_t injected = 0;
  std::uint64_t loaded = 0;
  std::uint64_t refused = 0;
  std::uint64_t wrong = 0;
  std::uint64_t leaks = 0;
};

// Ends the process, with the name of the case, where a case takes longer than any may.
class HangGuard {
 public:
  explicit HangGuard(const std::string& name, unsigned seconds = 60);
  ~HangGuard();
  HangGuard(const HangGuard&) = delete;
  HangGuard& operator=(const HangGuard&) = delete;
};

// Whether this case is to run: all, those that TEST_SCALE leaves, or the one that FAULT_CASE names.
[[nodiscard]] bool is_chosen(std::string_view kind, std::uint64_t number);
// How often something random is tried, under TEST_SCALE.
[[nodiscard]] std::uint64_t scaled(std::uint64_t count);
// One of the lines that tools/trust_table.py collects.
void print_count(const std::string& kind, const FaultCounts& counts);
// "run it again: FAULT_CASE='short read/17' fault_tests --gtest_filter=..."
[[nodiscard]] std::string repeat_text(std::string_view kind, std::uint64_t number);

class FaultTest : public testing::Test {
 protected:
  FaultTest();
  ~FaultTest() override;
  void TearDown() override;  // prints the counts

  // `shard_count` files of mixed tensors; small pieces, so that each takes many reads.
  void write_model(int shard_count = 3, std::uint64_t shard_bytes = 200 * kib);
  // As above, for a model that the test wrote itself.
  void use_model(fakes::TestBytes contents);
  [[nodiscard]] std::string shard(int index) const;

  void set_device(DeviceKind kind) { device_ = {.kind = kind, .index = kind == DeviceKind::cuda ? 1U : 0U}; }
  [[nodiscard]] LoaderOptions& options() { return options_; }
  // Reads and opens of one load in which nothing goes wrong.
  struct Calls {
    std::uint64_t reads = 0;
    std::uint64_t opens = 0;
    std::uint64_t statuses = 0;
  };
  [[nodiscard]] Calls count_calls(const SystemRules& rules, const LoadRequest& request = {});

  // Runs the case and checks all that must hold. Returns how many faults met the load; 0: the case was one
  // too many, and is not counted.
  std::uint64_t run(FaultCase tried);
  // Odd cases of a kind load into memory of the caller, even ones into memory of ours.
  [[nodiscard]] static bool goes_to_targets(const FaultCase& tried) { return tried.number % 2 == 1; }

  // Of what run() does not count itself. Kinds of faults begin with "faults ".
  void count(const std::string& kind, const FaultCounts& counts);

  fakes::FakeCuda cuda_;
  fakes::TempFolder folder_;
  fakes::TestBytes contents_;
  Checkpoint checkpoint_;
  Device device_;

 private:
  struct Attempt;
  void try_load(Loader& loader, const FaultCase& tried, Attempt& attempt);
  void check_tensors(Loader& loader, const FaultCase& tried, Attempt& attempt);
  void check_error(const FaultCase& tried, Attempt& attempt) const;
  void check_targets(const FaultCase& tried, Attempt& attempt);
  void check_again(Loader& loader, Attempt& attempt);
  void check_held(const Held& before, Attempt& attempt);
  void make_targets(Attempt& attempt);
  void check_all(Loader& loader, const FaultCase& tried, Attempt& attempt);
  void reset_driver(Attempt& attempt);
  [[nodiscard]] std::string block_bytes() const;
  [[nodiscard]] Held held() const;

  LoaderOptions options_;
  std::map<std::string, FaultCounts> counts_;
  std::shared_ptr<engine::Gpu> gpu_;
  std::shared_ptr<void> block_;
  std::uint64_t block_bytes_ = 0;
  std::map<std::string, std::uint64_t> offsets_;
  std::size_t mapping_count_ = 0;
  std::uint64_t case_count_ = 0;
};

// On the CPU target and on the second fake GPU.
class DeviceFaultTest : public FaultTest, public testing::WithParamInterface<DeviceKind> {
 protected:
  DeviceFaultTest() { set_device(GetParam()); }
};

[[nodiscard]] std::string device_text(const testing::TestParamInfo<DeviceKind>& tested);

}  // namespace inrush::faults
