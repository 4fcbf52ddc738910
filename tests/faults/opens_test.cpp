// Opening and looking at files: each errno at each open of discovery and of a load.
#include "fakes/child_process.hpp"
#include "faults/fault_fixture.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace inrush::faults {
namespace {

using namespace fakes;

constexpr std::array<int, 11> refusals = {ENOENT, EACCES,       EPERM, EMFILE, ENFILE, ELOOP,
                                          ESTALE, ENAMETOOLONG, EIO,   ENOMEM, ENOTDIR};
const std::set<ErrorCode> codes_of_opening = {ErrorCode::not_found, ErrorCode::storage_failed,
                                              ErrorCode::invalid_request, ErrorCode::out_of_memory};

class OpenFaultTest : public DeviceFaultTest {
 protected:
  OpenFaultTest() { write_model(); }
  std::uint64_t next_number_ = 0;
};

TEST_P(OpenFaultTest, OfALoad) {
  const std::uint64_t opens = checkpoint_.files().size();
  for (const int error : refusals) {
    for (std::uint64_t nth = 1; nth <= opens; ++nth) {
      FaultCase tried{.kind = "open refused", .number = next_number_++};
      tried.rules.open = [=](const OpenCall& call) { return call.number == nth ? error : 0; };
      tried.expected = {.may_load = false,
                        .codes = codes_of_opening,
                        .words = {"shard-", "open: ", std::strerror(error)},
                        .system_error = error};
      EXPECT_GT(run(std::move(tried)), 0U);
    }
  }
}

TEST_P(OpenFaultTest, FstatFails) {
  const std::uint64_t calls = count_calls({}).statuses;
  for (const int error : {ESTALE, EIO}) {
    for (std::uint64_t nth = 1; nth <= calls; ++nth) {
      FaultCase tried{.kind = "fstat fails", .number = next_number_++};
      tried.rules.status = [=](std::uint64_t number) { return number == nth ? error : 0; };
      tried.expected.codes = codes_of_opening;
      tried.expected.words = {"shard-", std::strerror(error)};
      EXPECT_GT(run(std::move(tried)), 0U);
    }
  }
}

// Between discovery and the load: what opens is no file any more. A FIFO must not hold anybody up.
TEST_P(OpenFaultTest, SomethingElseStandsThere) {
  const std::string path = shard(1);
  const std::string kept = folder_ / "kept";
  const std::array<std::function<void()>, 5> others = {
      [&] { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); },
      [&] { ASSERT_EQ(::mkdir(path.c_str(), 0700), 0); },
      [&] { ASSERT_EQ(::symlink("/dev/zero", path.c_str()), 0); },
      [&] { ASSERT_EQ(::symlink(path.c_str(), path.c_str()), 0); },
      [&] { std::ofstream(path) << "no safetensors"; },
  };
  for (std::size_t i = 0; i < others.size(); ++i) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      ASSERT_EQ(::rename(path.c_str(), kept.c_str()), 0);
      others.at(i)();
      FaultCase tried{.kind = "no regular file", .number = next_number_++};
      tried.is_outside = true;
      tried.expected = {.may_load = false, .codes = codes_of_opening, .words = {"shard-1"}};
      tried.expected.codes.insert(ErrorCode::corrupt_checkpoint);
      tried.expected.are_files_changed = true;
      run(std::move(tried));
      std::filesystem::remove(path);
      ASSERT_EQ(::rename(kept.c_str(), path.c_str()), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, OpenFaultTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         device_text);

// Discovery with an index, which opens beneath a folder.
class DiscoverFaultTest : public FaultTest {
 protected:
  DiscoverFaultTest() {
    write_model();
    std::string map;
    for (std::size_t i = 0; i < checkpoint_.tensor_count(); ++i) {
      const TensorInfo tensor = checkpoint_.tensor(i);
      const std::string& path = checkpoint_.files()[tensor.file].path;
      map += (map.empty() ? "\"" : ",\"") + std::string(tensor.name) + "\":\"" +
             path.substr(path.rfind('/') + 1) + "\"";
    }
    folder_.write("model.safetensors.index.json", "{\"metadata\":{},\"weight_map\":{" + map + "}}");
  }

  // discover() under the rules: empty where all is well.
  std::string problem(SystemRules rules, std::uint64_t& injected, FaultCounts& counts) {
    const ProcessCounts before = process_counts();
    std::string text;
    {
      const SystemFaults faults(std::move(rules));
      try {
        const Checkpoint found = discover(folder_.path());
        if (found.tensor_count() != contents_.size()) text = "tensors are missing";
        ++counts.loaded;
      } catch (const Error& error) {
        if (std::string(error.what()).find(folder_.path()) == std::string::npos)
          text = std::string("an error that does not say where: ") + error.what();
        ++counts.refused;
      } catch (const std::exception& error) {
        text = std::string("no Error but ") + error.what();
      }
      injected = faults.injected_count();
    }
    counts.injected += injected;
    ++counts.cases;
    if (process_counts() != before) {
      text += " left behind: a descriptor";
      ++counts.leaks;
    }
    counts.wrong += text.empty() ? 0U : 1U;
    return text;
  }
};

TEST_F(DiscoverFaultTest, EachRefusalAtEachOpen) {
  FaultCounts counts;
  std::uint64_t number = 0;
  for (const int error : refusals) {
    std::uint64_t injected = 1;
    for (std::uint64_t nth = 1; injected > 0 && nth < 100; ++nth) {
      const HangGuard guard(repeat_text("open refused in discovery", number++));
      SystemRules rules;
      rules.open = [=](const OpenCall& call) { return call.number == nth ? error : 0; };
      EXPECT_EQ(problem(std::move(rules), injected, counts), "")
          << std::strerror(error) << " at open " << nth;
    }
    --counts.cases;  // the last one met nothing
    --counts.loaded;
  }
  count("faults open refused in discovery", counts);
}

TEST_F(DiscoverFaultTest, EachReadShortInterruptedOrFailing) {
  FaultCounts counts;
  const std::array<ReadFate, 5> fates = {ReadFate{.moved_bytes_max = 1}, ReadFate{.moved_bytes_max = 0},
                                         ReadFate{.error = EINTR}, ReadFate{.error = EAGAIN},
                                         ReadFate{.error = EIO}};
  for (std::size_t fate = 0; fate < fates.size(); ++fate) {
    std::uint64_t injected = 1;
    for (std::uint64_t nth = 1; injected > 0 && nth < 200; ++nth) {
      const HangGuard guard(repeat_text("read of discovery", fate * 1000 + nth));
      SystemRules rules;
      rules.read = [=](const ReadCall& call) { return call.number == nth ? fates.at(fate) : ReadFate{}; };
      const std::uint64_t loaded = counts.loaded;
      EXPECT_EQ(problem(std::move(rules), injected, counts), "") << "fate " << fate << " at read " << nth;
      const bool must_pass = fate == 0 || fate == 2 || fate == 3 || injected == 0;
      EXPECT_EQ(counts.loaded > loaded, must_pass) << "fate " << fate << " at read " << nth;
    }
    --counts.cases;
    --counts.loaded;
  }
  count("faults read of discovery", counts);
}

// A download that was cut short, or has a tail that is none of it.
TEST_F(DiscoverFaultTest, AFileOfTheWrongLength) {
  FaultCounts counts;
  const std::uint64_t whole = checkpoint_.files()[2].identity.size_bytes;
  std::vector<std::uint64_t> lengths = {0, 7, 8, 9, 1000, whole - 1, whole + 1, whole + 4096};
  for (std::uint64_t at = 4096; at < whole; at += 4096) lengths.push_back(at);
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  for (const std::uint64_t length : lengths) {
    std::filesystem::resize_file(shard(2), length);
    try {
      static_cast<void>(discover(folder_.path()));
      ADD_FAILURE() << "accepted with " << length << " of " << whole << " bytes";
      ++counts.wrong;
    } catch (const Error& error) {
      const bool is_right = error.code() == ErrorCode::corrupt_checkpoint &&
                            std::string(error.what()).find("shard-2") != std::string::npos;
      EXPECT_TRUE(is_right) << error.what();
      counts.wrong += is_right ? 0U : 1U;
      ++counts.refused;
    }
    ++counts.cases;
    ++counts.injected;
  }
  count("faults file of the wrong length", counts);
}

// By the kernel itself and for all that the process does from then on: what a container's profile refuses.
class SeccompTest : public DeviceFaultTest {
 protected:
  SeccompTest() { write_model(2, 100 * kib); }

  // Loads in a child with these calls refused: "loaded", or "<code> <errno> <message>".
  std::string load_with_refused(const std::vector<long>& calls, int error, const SystemRules& rules) {
    return run_in_child([&] {
      const HangGuard guard("seccomp", 30);
      forbid_system_calls(calls, error);
      const SystemFaults faults(rules);
      try {
        Loader loader(options());
        const auto load =
            loader.start(checkpoint_, {.device = device_, .page_cache = PageCachePolicy::bypass});
        std::size_t right = 0;
        while (const std::optional<Tensor> tensor = load->next()) {
          std::string bytes(tensor->size_bytes, '\0');
          loader.copy_to_host(*tensor, 0, std::as_writable_bytes(std::span(bytes)));
          right += bytes == contents_.at(tensor->name) ? 1U : 0U;
        }
        return std::string(right == contents_.size() ? "loaded" : "wrong bytes");
      } catch (const Error& caught) {
        return std::string(error_code_name(caught.code())) + " " + std::to_string(caught.system_error()) +
               " " + caught.what();
      }
    });
  }
};

TEST_P(SeccompTest, IoUringAndWhatSavesTimeMayAllBeRefused) {
  FaultCounts counts;
  std::vector<std::pair<long, int>> cases = {{SYS_io_uring_setup, EPERM},
                                             {SYS_io_uring_setup, ENOSYS},
                                             {SYS_io_uring_setup, ENOMEM},
                                             {SYS_io_uring_enter, EPERM},
                                             {SYS_io_uring_register, EPERM},
                                             {SYS_io_uring_register, ENOMEM},
                                             {SYS_eventfd2, ENOSYS},
                                             {SYS_statx, ENOSYS},
                                             {SYS_madvise, EPERM},
                                             {SYS_preadv2, ENOSYS},
                                             {SYS_mincore, EPERM},

                                             {451, ENOSYS}};
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need it to start a thread
  cases.emplace_back(SYS_sched_getaffinity, EPERM);
#endif
  SystemRules cold;
  for (const auto& [call, error] : cases) {
    cold.is_cold = call != 451;
    EXPECT_EQ(load_with_refused({call}, error, cold), "loaded") << "system call " << call;
    count("faults system call refused (seccomp)", {1, 1, 1, 0, 0, 0});
  }
}

TEST_P(SeccompTest, FilesThatCannotBeOpened) {
  for (const int error : refusals) {
    const std::string text = load_with_refused({SYS_openat, SYS_openat2}, error, {});
    EXPECT_NE(text.find(" " + std::to_string(error) + " "), std::string::npos) << text;
    EXPECT_NE(text.find(std::strerror(error)), std::string::npos) << text;
    count("faults system call refused (seccomp)", {1, 1, 0, 1, 0, 0});
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SeccompTest, testing::Values(DeviceKind::cpu), device_text);

}  // namespace
}  // namespace inrush::faults
