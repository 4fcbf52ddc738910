// Reads that come short, are interrupted, fail, or meet the end too early: at every read of a load, on both
// devices, by each way that bytes can travel.
#include "faults/fault_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <string>
#include <tuple>

namespace inrush::faults {
namespace {

enum class Way { cached, populated, direct, ring };
using Case = std::tuple<DeviceKind, Way>;

class ReadFaultTest : public FaultTest, public testing::WithParamInterface<Case> {
 protected:
  ReadFaultTest() {
    set_device(std::get<DeviceKind>(GetParam()));
    const Way way = std::get<Way>(GetParam());
    request_.page_cache = way >= Way::direct ? PageCachePolicy::bypass : PageCachePolicy::keep;
    options().io_uring = way == Way::ring ? IoUring::automatic : IoUring::off;
    write_model();
    plain_.is_cold = way != Way::cached;
    // Headers are read again at the start of a load, by pread and before any piece.
    header_reads_ = 2 * checkpoint_.files().size();
  }

  FaultCase make(const std::string& kind) {
    return {.kind = kind, .number = next_number_++, .rules = plain_, .request = request_};
  }

  // A case for each read of a load, with `fate` for that one.
  template <typename Fate>
  void at_every_read(const std::string& kind, Fate&& fate) {
    const std::uint64_t reads = count_calls(plain_, request_).reads;
    for (std::uint64_t nth = 1; nth <= reads; ++nth) {
      FaultCase tried = make(kind);
      tried.rules.read = [=](const ReadCall& call) { return call.number == nth ? fate(call) : ReadFate{}; };
      EXPECT_GT(run(std::move(tried)), 0U) << kind << " at read " << nth;
    }
  }

  // The positions of a file that matter: each 64 KiB, and each first and last byte of a tensor.
  std::vector<std::uint64_t> positions(std::uint32_t file) const {
    std::vector<std::uint64_t> found;
    for (std::uint64_t at = 0; at < checkpoint_.files()[file].identity.size_bytes; at += 64 * kib)
      found.push_back(at);
    for (std::size_t i = 0; i < checkpoint_.tensor_count(); ++i) {
      const TensorInfo tensor = checkpoint_.tensor(i);
      if (tensor.file != file || tensor.size_bytes == 0) continue;
      found.push_back(tensor.offset);
      found.push_back(tensor.offset + tensor.size_bytes - 1);
    }
    return found;
  }

  // What an error about the byte `at` must say.
  std::vector<std::string> place_words(std::uint32_t file, std::uint64_t at) const {
    const CheckpointFile& read = checkpoint_.files()[file];
    std::vector<std::string> words = {read.path.substr(read.path.rfind('/') + 1), "bytes ["};
    // The read of a header takes 4 KiB at once, with the first tensors in it.
    if (at >= std::max<std::uint64_t>(read.data_offset, 4096)) words.emplace_back("tensor \"");
    return words;
  }

  LoadRequest request_;
  SystemRules plain_;
  std::uint64_t header_reads_ = 0;
  std::uint64_t next_number_ = 0;
};

// Else the other tests would try the same way four times.
TEST_P(ReadFaultTest, TheWayIsTheOneThatItSays) {
  constexpr std::array<const char*, 4> names = {"page cache -> ", "storage -> page cache -> ",
                                                "O_DIRECT -> ring", "O_DIRECT -> ring"};
  const SystemFaults rules(plain_);
  Loader loader(options());
  LoadRequest request = request_;
  request.device = device_;
  const auto load = loader.start(checkpoint_, request);
  while (load->next()) {
  }
  const Report report = load->report();
  for (const PathBytes& way : report.bytes_by_path) {
    const bool is_named = way.path.starts_with(names.at(static_cast<std::size_t>(std::get<Way>(GetParam()))));
    EXPECT_TRUE(is_named || way.bytes == 0) << way.path;
  }
  for (const Fallback& fallback : report.fallbacks) EXPECT_NE(fallback.what, "io_uring") << fallback.reason;
}

TEST_P(ReadFaultTest, OneShortRead) {
  at_every_read("short read", [](const ReadCall&) { return ReadFate{.moved_bytes_max = 1}; });
  at_every_read("short read", [](const ReadCall& call) {
    return ReadFate{.moved_bytes_max = std::max<std::uint64_t>(1, call.size_bytes / 2)};
  });
  at_every_read("short read", [](const ReadCall& call) {
    return ReadFate{.moved_bytes_max = std::max<std::uint64_t>(1, call.size_bytes - 1)};
  });
}

// With few CPUs the path's thread reads too what is in memory; where such a read fails, a plain one says why.
TEST_P(ReadFaultTest, ReadsThatDoNotWaitComeShortOrFail) {
  std::uint64_t injected = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    FaultCase tried =
        make("short read");  // of the same kind for the table: larger machines have none of these
    auto random = std::make_shared<std::mt19937_64>(seed);
    tried.rules.resident_read = [random](const ReadCall& call) -> ReadFate {
      switch ((*random)() % 4) {
        case 0:
          return {.moved_bytes_max = (*random)() % call.size_bytes};
        case 1:
          return {.moved_bytes_max = 0};
        case 2:
          return {.error = (*random)() % 2 == 0 ? EIO : EOPNOTSUPP};
        default:
          return {};
      }
    };
    tried.expected.may_load = true;
    injected += run(std::move(tried));
  }
  LoadRequest request = request_;
  request.device = device_;
  const Plan plan = make_plan(checkpoint_, request, Loader(options()).machine(device_));
  if (plan.path_reads && std::get<Way>(GetParam()) == Way::cached) {
    EXPECT_GT(injected, 0U);
  }
}

TEST_P(ReadFaultTest, EveryReadIsShort) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    FaultCase tried = make("every read short");
    auto random = std::make_shared<std::mt19937_64>(tried.number);
    tried.rules.read = [random, seed](const ReadCall& call) -> ReadFate {
      if (call.size_bytes < 2) return {};
      const std::uint64_t part = seed < 2   ? call.size_bytes / 2
                                 : seed < 4 ? call.size_bytes - 1
                                            : 1 + (*random)() % (call.size_bytes - 1);
      return {.moved_bytes_max = part};
    };
    run(std::move(tried));
  }
}

TEST_P(ReadFaultTest, InterruptedOnceToFiveTimes) {
  for (const int error : {EINTR, EAGAIN}) {
    const std::uint64_t reads = count_calls(plain_, request_).reads;
    for (std::uint64_t nth = 1; nth <= reads; ++nth) {
      FaultCase tried = make(error == EINTR ? "EINTR" : "EAGAIN");
      auto left = std::make_shared<std::uint64_t>(1 + nth % 5);
      auto place = std::make_shared<std::optional<std::uint64_t>>();
      tried.rules.read = [=](const ReadCall& call) -> ReadFate {
        if (call.number == nth) *place = call.offset;
        if (!*place || **place != call.offset || *left == 0) return {};
        --*left;
        return {.error = error};
      };
      EXPECT_GT(run(std::move(tried)), 0U);
    }
  }
}

// Reads give up after 10,000 attempts, those of pieces at the deadline if that is sooner.
TEST_P(ReadFaultTest, InterruptedForEver) {
  const std::uint64_t reads = count_calls(plain_, request_).reads;
  const auto try_from = [&](std::uint64_t nth, int error, std::chrono::milliseconds deadline) {
    FaultCase tried = make("interrupted for ever");
    tried.request.deadline = deadline;
    tried.rules.read = [=](const ReadCall& call) {
      return call.number >= nth ? ReadFate{.error = error} : ReadFate{};
    };
    tried.expected.may_load = false;
    tried.expected.codes = {ErrorCode::storage_failed};
    if (deadline.count() > 0) tried.expected.codes.insert(ErrorCode::timed_out);
    // On a busy machine the deadline may pass before that read.
    EXPECT_TRUE(run(std::move(tried)) > 0 || deadline.count() > 0);
  };
  for (const int error : {EINTR, EAGAIN}) {
    for (const std::uint64_t nth : {std::uint64_t{1}, header_reads_, header_reads_ + 1, reads})
      try_from(nth, error, std::chrono::milliseconds(30));
    try_from(1, error, {});
  }
  try_from(reads, EAGAIN, {});
}

TEST_P(ReadFaultTest, AByteThatCannotBeRead) {
  for (std::uint32_t file = 0; file < checkpoint_.files().size(); ++file) {
    for (const std::uint64_t at : positions(file)) {
      FaultCase tried = make("EIO");
      const std::string path = checkpoint_.files()[file].path;
      tried.rules.read = [=](const ReadCall& call) -> ReadFate {
        if (at < call.offset || at >= call.offset + call.size_bytes || !is_open_on(call.descriptor, path))
          return {};
        if (at - call.offset < 512) return {.error = EIO};
        return {.moved_bytes_max = (at - call.offset) / 512 * 512};
      };
      tried.expected = {.may_load = false,
                        .codes = {ErrorCode::storage_failed},
                        .words = place_words(file, at),
                        .system_error = EIO};
      tried.expected.words.emplace_back("Input/output error");
      EXPECT_GT(run(std::move(tried)), 0U) << path << " at " << at;
    }
  }
}

TEST_P(ReadFaultTest, AnEarlyEnd) {
  for (std::uint32_t file = 0; file < checkpoint_.files().size(); ++file) {
    for (const std::uint64_t at : positions(file)) {
      FaultCase tried = make("early end");
      const std::string path = checkpoint_.files()[file].path;
      tried.rules.read = [=](const ReadCall& call) -> ReadFate {
        if (at >= call.offset + call.size_bytes || !is_open_on(call.descriptor, path)) return {};
        return {.moved_bytes_max = at > call.offset ? at - call.offset : 0};
      };
      tried.expected = {
          .may_load = false, .codes = {ErrorCode::corrupt_checkpoint}, .words = place_words(file, at)};
      EXPECT_GT(run(std::move(tried)), 0U) << path << " at " << at;
    }
  }
}

std::string case_text(const testing::TestParamInfo<Case>& tested) {
  constexpr std::array<const char*, 4> ways = {"Cached", "Populated", "Direct", "IoUring"};
  return std::string(std::get<DeviceKind>(tested.param) == DeviceKind::cpu ? "Cpu" : "FakeCuda") +
         ways.at(static_cast<std::size_t>(std::get<Way>(tested.param)));
}

INSTANTIATE_TEST_SUITE_P(Ways, ReadFaultTest,
                         testing::Combine(testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                                          testing::Values(Way::cached, Way::populated, Way::direct,
                                                          Way::ring)),
                         case_text);

// O_DIRECT refused at the open or at a read, and file systems of other alignments: the bytes come another
// way, and the report says why.
class DirectRefusedTest : public DeviceFaultTest {
 protected:
  DirectRefusedTest() { write_model(); }

  FaultCase make(const std::string& kind) {
    FaultCase tried{.kind = kind, .number = next_number_++};
    tried.rules.is_cold = true;
    tried.request.page_cache = PageCachePolicy::bypass;
    return tried;
  }

  std::uint64_t next_number_ = 0;
};

TEST_P(DirectRefusedTest, AtTheOpen) {
  for (const int error : {EINVAL, EOPNOTSUPP, EPERM, ENOENT, EMFILE}) {
    for (std::uint64_t nth = 0; nth <= 3; ++nth) {  // 0: each of them
      FaultCase tried = make("O_DIRECT refused");
      auto seen = std::make_shared<std::uint64_t>(0);
      tried.rules.open = [=](const OpenCall& call) {
        return call.is_direct && (++*seen == nth || nth == 0) ? error : 0;
      };
      EXPECT_GT(run(std::move(tried)), 0U);
    }
  }
}

TEST_P(DirectRefusedTest, AtTheRead) {
  for (const IoUring io_uring : {IoUring::off, IoUring::automatic}) {
    options().io_uring = io_uring;
    for (std::uint64_t nth = 1; nth <= 12; ++nth) {
      for (const int error : {EINVAL, EOPNOTSUPP}) {
        FaultCase tried = make("O_DIRECT refused");
        auto seen = std::make_shared<std::uint64_t>(0);
        tried.rules.read = [=](const ReadCall& call) {
          return call.is_direct && ++*seen == nth ? ReadFate{.error = error} : ReadFate{};
        };
        run(std::move(tried));
      }
    }
  }
}

TEST_P(DirectRefusedTest, ByTheAlignmentThatTheFileSystemNames) {
  for (const std::uint32_t alignment : {0U, 512U, 1024U, 4096U, 8192U, 65536U, 1U << 20}) {
    for (int i = 0; i < 2; ++i) {
      FaultCase tried = make("alignment");
      tried.rules.direct_alignment_bytes = alignment;
      EXPECT_GT(run(std::move(tried)), 0U);
    }
  }
}

TEST_P(DirectRefusedTest, IoUringRefused) {
  for (const int error : {EPERM, ENOSYS, ENOMEM, EACCES, EMFILE}) {
    for (int i = 0; i < 2; ++i) {
      FaultCase tried = make("io_uring refused");
      tried.rules.uring_setup_error = error;
      EXPECT_GT(run(std::move(tried)), 0U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DirectRefusedTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         device_text);

}  // namespace
}  // namespace inrush::faults
