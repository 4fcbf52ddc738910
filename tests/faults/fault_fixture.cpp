#include "faults/fault_fixture.hpp"

#include <inrush/error.hpp>

#include "base/range.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/gpu.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace inrush::faults {

using namespace fakes;

namespace {

constexpr char poison = '\xA5';

std::array<char, 512> hang_text = {};  // what the handler of the alarm may read

void on_alarm(int) {
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, hang_text.data(), std::strlen(hang_text.data()));
  ::abort();
}

std::string test_name() {
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  return test == nullptr ? std::string() : std::string(test->test_suite_name()) + "." + test->name();
}

double scale() {
  const char* const text = std::getenv("TEST_SCALE");
  return text == nullptr ? 1.0 : std::clamp(std::atof(text), 0.001, 1000.0);
}

std::size_t count_mappings() {
  std::ifstream file("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) ++count;
  return count;
}

// The files may be younger than the clock of the file system can tell apart: a change right now might not
// show in their times.
void wait_until_old(const Checkpoint& checkpoint) {
  std::int64_t newest = 0;
  for (const CheckpointFile& file : checkpoint.files()) newest = std::max(newest, file.identity.ctime_ns);
  timespec now = {};
  do {
    ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  } while (std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec <= newest);
}

}  // namespace

HangGuard::HangGuard(const std::string& name, unsigned seconds) {
  std::snprintf(hang_text.data(), hang_text.size(), "\nHANG: %s\n", name.c_str());
  std::signal(SIGALRM, on_alarm);
  ::alarm(seconds);
}

HangGuard::~HangGuard() {
  ::alarm(0);
  std::signal(SIGALRM, SIG_DFL);
}

bool is_chosen(std::string_view kind, std::uint64_t number) {
  if (const char* const only = std::getenv("FAULT_CASE"))
    return only == std::string(kind) + "/" + std::to_string(number);
  // Not every n-th: the number's low digits choose the kind of fault in many tests.
  const std::uint64_t mixed = (number + 1) * 0x9E3779B97F4A7C15ULL >> 32;
  return scale() >= 1 || static_cast<double>(mixed % 1000) < 1000 * scale();
}

std::uint64_t scaled(std::uint64_t count) {
  return std::max<std::uint64_t>(1,
                                 static_cast<std::uint64_t>(std::ceil(static_cast<double>(count) * scale())));
}

void print_count(const std::string& kind, const FaultCounts& counts) {
  std::printf("count: %s %llu injected %llu loaded %llu refused %llu wrong %llu leaks %llu hangs 0\n",
              kind.c_str(), static_cast<unsigned long long>(counts.cases),
              static_cast<unsigned long long>(counts.injected),
              static_cast<unsigned long long>(counts.loaded), static_cast<unsigned long long>(counts.refused),
              static_cast<unsigned long long>(counts.wrong), static_cast<unsigned long long>(counts.leaks));
  std::fflush(stdout);
}

std::string repeat_text(std::string_view kind, std::uint64_t number) {
  return "run it again: FAULT_CASE='" + std::string(kind) + "/" + std::to_string(number) +
         "' fault_tests --gtest_filter='" + test_name() + "'";
}

// What happened in one case.
struct FaultTest::Attempt {
  LoadRequest request;
  std::vector<Tensor> tensors;
  std::optional<Error> error;
  std::optional<Report> report;
  std::optional<std::string> block_at_error;  // as next() threw, with the Load still there
  std::vector<std::string> problems;
  bool leaked = false;
  bool has_loaded = false;

  void require(bool holds, const std::string& problem) {
    if (!holds) problems.push_back(problem);
  }
};

FaultTest::FaultTest() : cuda_(INRUSH_FAKE_CUDA) {
  // ThreadSanitizer starts a thread of its own with the first of a process, which would be counted as ours.
  std::thread([] {}).join();
  cuda_->set_delay_max(50);
  options_ = {.reader_count_max = 2,
              .piece_bytes_max = 64 * kib,
              .staging_bytes_max = 64ULL << 20,
              .cuda_library = INRUSH_FAKE_CUDA};
}

FaultTest::~FaultTest() = default;

void FaultTest::TearDown() {
  block_.reset();
  gpu_.reset();
  for (const auto& [kind, counts] : counts_) print_count(kind, counts);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose own mappings grow
  if (mapping_count_ > 0) {
    // Arenas and stacks that the C library keeps come to a few; a leak comes with every case.
    EXPECT_LE(count_mappings(), mapping_count_ + 64) << "memory mappings after " << case_count_ << " cases";
  }
#endif
}

std::string FaultTest::shard(int index) const {
  return folder_ / ("shard-" + std::to_string(index) + ".safetensors");
}

void FaultTest::write_model(int shard_count, std::uint64_t shard_bytes) {
  TestBytes contents;
  for (int i = 0; i < shard_count; ++i) {
    const auto seed = static_cast<std::uint64_t>(i);
    std::vector<TestTensor> tensors = mixed_tensors(shard_bytes, seed);
    for (TestTensor& tensor : tensors) tensor.name += "." + std::to_string(i);
    // Data starts at odd places, so that nothing is aligned by luck.
    contents.merge(write_safetensors(shard(i), tensors, seed, static_cast<std::uint32_t>(3 + 4087 * i)));
  }
  use_model(std::move(contents));
}

void FaultTest::use_model(TestBytes contents) {
  contents_ = std::move(contents);
  checkpoint_ = discover(folder_.path());
  wait_until_old(checkpoint_);
}

FaultTest::Calls FaultTest::count_calls(const SystemRules& rules, const LoadRequest& request) {
  LoadRequest bound = request;
  bound.device = device_;
  Loader loader(options_);
  static_cast<void>(loader.machine(device_));  // what is read while a device is opened is counted by nobody
  const SystemFaults counter(rules);
  const auto load = loader.start(checkpoint_, bound);
  while (load->next()) {
  }
  return {counter.read_count(), counter.open_count(), counter.status_count()};
}

Held FaultTest::held() const { return {process_counts(), cuda_->live()}; }

std::uint64_t FaultTest::run(FaultCase tried) {
  if (!is_chosen(tried.kind, tried.number)) return 1;
  const std::string repeat = repeat_text(tried.kind, tried.number);
  const HangGuard guard(repeat);
  const Held before = held();
  const std::uint64_t hits_before = cuda_->fault_count();
  Attempt attempt;
  attempt.request = tried.request;
  attempt.request.device = device_;
  std::uint64_t injected = 0;
  {
    Loader loader(options_);
    // A fault of the system must meet the load, and not what is read while its device is being opened.
    if (tried.rules.read || tried.rules.open || tried.rules.status)
      static_cast<void>(loader.machine(device_));
    if (goes_to_targets(tried)) make_targets(attempt);
    {
      const SystemFaults faults(std::move(tried.rules));
      if (tried.arm) tried.arm();
      try_load(loader, tried, attempt);
      injected = faults.injected_count() + cuda_->fault_count() - hits_before + (tried.is_outside ? 1U : 0U);
    }
    if (injected == 0) tried.expected.may_load = true;  // how many copies there are is a matter of time
    if (tried.disarm) tried.disarm();
    if (!tried.stays_armed) check_all(loader, tried, attempt);
    if (tried.stays_armed) check_error(tried, attempt);
    attempt.request.targets = {};
    attempt.tensors.clear();
    block_.reset();
    gpu_.reset();
  }
  if (tried.stays_armed) {
    injected = cuda_->fault_count() - hits_before;
    reset_driver(attempt);
  }
  check_held(before, attempt);
  for (const std::string& problem : attempt.problems) ADD_FAILURE() << problem << "\n" << repeat;
  if (++case_count_ == 20) mapping_count_ = count_mappings();
  if (injected == 0) return 0;
  const bool is_wrong = attempt.problems.size() > (attempt.leaked ? 1U : 0U);
  count("faults " + tried.kind, {1, injected, attempt.has_loaded ? 1U : 0U, attempt.has_loaded ? 0U : 1U,
                                 is_wrong ? 1U : 0U, attempt.leaked ? 1U : 0U});
  return injected;
}

void FaultTest::check_all(Loader& loader, const FaultCase& tried, Attempt& attempt) {
  reset_driver(attempt);
  check_error(tried, attempt);
  if (goes_to_targets(tried)) check_targets(tried, attempt);
  check_tensors(loader, tried, attempt);
  attempt.request.targets = {};
  attempt.tensors.clear();
  const Expected& expected = tried.expected;
  if (expected.is_usable_afterwards && !expected.are_files_changed) check_again(loader, attempt);
}

void FaultTest::count(const std::string& kind, const FaultCounts& counts) {
  FaultCounts& all = counts_[kind];
  all.cases += counts.cases;
  all.injected += counts.injected;
  all.loaded += counts.loaded;
  all.refused += counts.refused;
  all.wrong += counts.wrong;
  all.leaks += counts.leaks;
}

void FaultTest::try_load(Loader& loader, const FaultCase& tried, Attempt& attempt) {
  std::unique_ptr<Load> load;
  try {
    load = loader.start(checkpoint_, attempt.request);
    if (tried.started) tried.started(*load);
    while (std::optional<Tensor> tensor = load->next()) attempt.tensors.push_back(std::move(*tensor));
    attempt.has_loaded = true;
  } catch (const Error& error) {
    attempt.error = error;
  } catch (const std::exception& error) {
    attempt.problems.push_back(std::string("no Error but ") + error.what());
  }
  if (load != nullptr && attempt.error && goes_to_targets(tried)) {
    try {
      attempt.block_at_error = block_bytes();
    } catch (const Error&) {  // the device is beyond that
    }
  }
  if (load != nullptr) attempt.report = load->report();
}

void FaultTest::check_error(const FaultCase& tried, Attempt& attempt) const {
  if (!attempt.error) {
    attempt.require(tried.expected.may_load, "it loaded, and cannot have");
    attempt.require(
        attempt.tensors.size() == contents_.size(),
        std::to_string(attempt.tensors.size()) + " tensors came, of " + std::to_string(contents_.size()));
    attempt.require(attempt.report && attempt.report->complete, "the report says that it is not complete");
    return;
  }
  const Error& error = *attempt.error;
  const std::string text = std::string(error_code_name(error.code())) + ": " + error.what();
  attempt.require(tried.expected.codes.contains(error.code()), "an error of the wrong code: " + text);
  for (const std::string& word : tried.expected.words)
    attempt.require(text.find(word) != std::string::npos, "the error does not say \"" + word + "\": " + text);
  if (tried.expected.system_error != 0)
    attempt.require(error.system_error() == tried.expected.system_error, "the errno is another one: " + text);
}

// Also after an error: what was handed out before stays right.
void FaultTest::check_tensors(Loader& loader, const FaultCase& tried, Attempt& attempt) {
  std::set<std::string> suspects;
  if (tried.expected.are_files_changed && attempt.report)
    suspects.insert(attempt.report->suspect_tensors.begin(), attempt.report->suspect_tensors.end());
  for (const Tensor& tensor : attempt.tensors) {
    if (suspects.contains(tensor.name)) continue;
    std::string bytes(tensor.size_bytes, '\0');
    loader.copy_to_host(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    attempt.require(bytes == contents_.at(tensor.name), "wrong bytes in " + tensor.name);
  }
}

// Targets at odd addresses, with poison in and around them.
void FaultTest::make_targets(Attempt& attempt) {
  offsets_.clear();
  block_bytes_ = 64;
  for (const auto& [name, bytes] : contents_) {
    offsets_[name] = block_bytes_;
    block_bytes_ += bytes.size() + 1 + block_bytes_ % 61;
  }
  block_bytes_ += 64;
  if (device_.kind == DeviceKind::cpu) {
    const auto memory = std::make_shared<std::string>(block_bytes_, poison);
    block_ = {memory, memory->data()};
  } else {  // which the fake poisons itself
    gpu_ = engine::open_cuda_gpu(engine::CudaDriver::open(INRUSH_FAKE_CUDA), device_);
    block_ = gpu_->allocate(block_bytes_, 256);
  }
  for (const auto& [name, offset] : offsets_) {
    attempt.request.targets.by_name[name] = {static_cast<std::byte*>(block_.get()) + offset,
                                             contents_.at(name).size()};
  }
  attempt.request.targets.owner = block_;
  attempt.request.targets.stream_ordered = true;  // after what the default stream of a GPU does
}

std::string FaultTest::block_bytes() const {
  std::string bytes(block_bytes_, '\0');
  const auto target = std::as_writable_bytes(std::span(bytes));
  if (gpu_ == nullptr) {
    std::memcpy(bytes.data(), block_.get(), bytes.size());
  } else {
    gpu_->copy_to_host(block_.get(), target);
  }
  return bytes;
}

// Once next() has thrown nobody writes any more; what the report does not name was never touched; what lies
// between the targets never is.
void FaultTest::check_targets(const FaultCase& tried, Attempt& attempt) {
  const std::string bytes = block_bytes();
  cuda_->settle();
  const bool is_quiet = bytes == block_bytes() && bytes == attempt.block_at_error.value_or(bytes);
  attempt.require(is_quiet, "targets were written to after the error");
  std::set<std::string> reached;
  if (attempt.report)
    reached.insert(attempt.report->overwritten_targets.begin(), attempt.report->overwritten_targets.end());
  std::string expected(block_bytes_, poison);
  for (const auto& [name, offset] : offsets_) {
    const std::uint64_t size = contents_.at(name).size();
    if (attempt.has_loaded && !tried.expected.are_files_changed) {
      expected.replace(offset, size, contents_.at(name));
    } else if (attempt.has_loaded || reached.contains(name)) {
      expected.replace(offset, size, bytes, offset, size);
    }
  }
  attempt.require(bytes == expected, "bytes outside the targets, or in one that the report does not name");
  if (attempt.has_loaded) attempt.require(reached.empty(), "a load without error names overwritten targets");
}

void FaultTest::check_again(Loader& loader, Attempt& attempt) {
  const auto complain = [&](const std::string& what) {
    attempt.problems.push_back("the Loader is of no use afterwards: " + what);
  };
  try {
    const auto load = loader.start(checkpoint_, {.device = device_});
    std::size_t count = 0;
    while (const std::optional<Tensor> tensor = load->next()) {
      std::string bytes(tensor->size_bytes, '\0');
      loader.copy_to_host(*tensor, 0, std::as_writable_bytes(std::span(bytes)));
      if (bytes == contents_.at(tensor->name)) ++count;
    }
    if (count != contents_.size()) complain(std::to_string(count) + " tensors are right");
  } catch (const std::exception& error) {
    complain(error.what());
  }
}

void FaultTest::reset_driver(Attempt& attempt) {
  attempt.require(cuda_->misuse_count() == 0, std::string("misuse of the driver: ") + cuda_->last_misuse());
  cuda_->reset();
  cuda_->set_delay_max(50);
}

void FaultTest::check_held(const Held& before, Attempt& attempt) {
  if (returns_to(before.counts) && cuda_->live() == before.live) {
    reset_driver(attempt);
    return;
  }
  attempt.leaked = true;
  const ProcessCounts now = process_counts();
  const FakeCudaLive live = cuda_->live();
  attempt.problems.push_back(
      "left behind: " + std::to_string(now.descriptors) +
      " descriptors (before: " + std::to_string(before.counts.descriptors) + "), " +
      std::to_string(now.threads) + " threads (" + std::to_string(before.counts.threads) + "), " +
      std::to_string(live.allocated_bytes) + " device bytes (" + std::to_string(before.live.allocated_bytes) +
      "), " + std::to_string(live.registered_bytes) + " pinned, " + std::to_string(live.contexts) +
      " contexts, " + std::to_string(live.streams) + " streams, " + std::to_string(live.events) + " events");
}

std::string device_text(const testing::TestParamInfo<DeviceKind>& tested) {
  return tested.param == DeviceKind::cpu ? "Cpu" : "FakeCuda";
}

}  // namespace inrush::faults
