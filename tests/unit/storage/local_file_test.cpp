// Reading an open file: modes, O_DIRECT and where it is refused, residency, populating.
#include "storage/local_file.hpp"

#include <inrush/error.hpp>

#include "base/host_pages.hpp"
#include "fakes/aliased_memory.hpp"
#include "fakes/child_process.hpp"
#include "fakes/temp_folder.hpp"
#include "storage/local_queue.hpp"
#include "storage/local_store.hpp"
#include "storage/residency.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace inrush::engine {
namespace {

using fakes::AliasedMemory;
using fakes::patterned_bytes;
using fakes::run_in_child;
using fakes::TempFolder;

constexpr std::uint64_t file_bytes = (4 << 20) + 123;

class LocalFileTest : public testing::Test {
 protected:
  LocalFileTest()
      : bytes_(patterned_bytes(file_bytes)), file_(store_.open(folder_.write("data.bin", bytes_))) {}

  [[nodiscard]] int fd() const { return file_->descriptor(ReadMode::buffered); }

  void drop_from_page_cache() const {
    ASSERT_EQ(::fdatasync(fd()), 0);
    ASSERT_EQ(::posix_fadvise(fd(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }

  std::string check_read(ReadMode mode) const {
    std::vector<std::byte> target(file_bytes);
    std::uint64_t moved_bytes = 0;
    while (moved_bytes < file_bytes) {
      const ReadOutcome outcome = file_->read(mode, moved_bytes, std::span(target).subspan(moved_bytes));
      if (outcome.error != 0 || outcome.moved_bytes == 0) return "error " + std::to_string(outcome.error);
      moved_bytes += outcome.moved_bytes;
    }
    return target == bytes_ ? "" : "other bytes";
  }

  TempFolder folder_;
  LocalStore store_;
  std::vector<std::byte> bytes_;
  std::shared_ptr<File> file_;
};

TEST_F(LocalFileTest, DescriptorsDoNotRefuseToWait) {
  // With O_NONBLOCK, io_uring would answer EAGAIN instead of reading from the disk.
  EXPECT_EQ(::fcntl(fd(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(fd(), F_GETFD) & FD_CLOEXEC, 0);
  const int direct_fd = file_->descriptor(ReadMode::direct);
  ASSERT_GE(direct_fd, 0) << file_->direct_refusal();
  EXPECT_EQ(::fcntl(direct_fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(direct_fd, F_GETFL) & O_DIRECT, 0);
  EXPECT_NE(::fcntl(direct_fd, F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(LocalFileTest, DirectReadsComeFromTheOpenFileAfterItsNameWasReused) {
  folder_.write("other.bin", "other");
  std::filesystem::rename(folder_ / "other.bin", folder_ / "data.bin");
  ASSERT_NE(file_->direct_alignment_bytes(), 0U) << file_->direct_refusal();
  HostPages memory(8192);
  EXPECT_EQ(file_->read(ReadMode::direct, 4096, memory.bytes().first(4096)), (ReadOutcome{4096, 0}));
  EXPECT_TRUE(std::equal(bytes_.begin() + 4096, bytes_.begin() + 8192, memory.bytes().begin()));
}

TEST_F(LocalFileTest, OpensTheDirectDescriptionOnceForManyThreads) {
  std::vector<int> seen(8);
  std::vector<std::thread> threads;
  for (int& fd : seen) threads.emplace_back([&] { fd = file_->descriptor(ReadMode::direct); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(seen[0], 0);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), seen[0]), 8);
}

TEST_F(LocalFileTest, SaysWhyDirectReadsAreRefused) {
  const std::string text = run_in_child([&] {
    fakes::forbid_system_calls({SYS_openat}, EINVAL);
    HostPages memory(4096);
    if (file_->direct_alignment_bytes() != 0 || file_->descriptor(ReadMode::direct) != -1)
      return std::string("offered");
    if (file_->read(ReadMode::direct, 0, memory.bytes()) != ReadOutcome{0, EINVAL})
      return std::string("read");
    return file_->direct_refusal();
  });
  EXPECT_TRUE(text.ends_with("data.bin: open with O_DIRECT through /proc/self/fd: Invalid argument")) << text;
}

TEST_F(LocalFileTest, TakesAPageWhereTheKernelDoesNotTellTheAlignment) {
  const std::string text = run_in_child([&] {
    fakes::forbid_system_calls({SYS_statx}, ENOSYS);
    return std::to_string(file_->direct_alignment_bytes());
  });
  EXPECT_EQ(text, std::to_string(::sysconf(_SC_PAGESIZE)));
}

TEST_F(LocalFileTest, PopulatingReadsTheSameBytesAndLeavesThemInTheCache) {
  drop_from_page_cache();
  EXPECT_EQ(check_read(ReadMode::populate), "");
  EXPECT_TRUE(file_->is_resident({0, file_bytes}));
}

TEST_F(LocalFileTest, PopulatingWorksWhereMappingsAreRefused) {
  for (const auto& [call, error] :
       {std::pair<long, int>{SYS_mmap, ENODEV}, std::pair<long, int>{SYS_madvise, EINVAL}}) {
    const std::string text = run_in_child([&, number = call, refusal = error] {
      std::vector<std::byte> target(4096);
      fakes::forbid_system_calls({number}, refusal);
      const ReadOutcome outcome = file_->read(ReadMode::populate, 100, target);
      if (outcome != ReadOutcome{4096, 0}) return "error " + std::to_string(outcome.error);
      return std::string(std::equal(target.begin(), target.end(), bytes_.begin() + 100) ? "" : "other bytes");
    });
    EXPECT_EQ(text, "");
  }
}

TEST_F(LocalFileTest, PopulatingAFileThatWasCutIsAShortRead) {
  ASSERT_EQ(::truncate(file_->path().c_str(), 5000), 0);
  std::vector<std::byte> target(8192);
  EXPECT_EQ(file_->read(ReadMode::populate, 4096, target), (ReadOutcome{904, 0}));
  EXPECT_EQ(file_->read(ReadMode::populate, 1 << 20, target), (ReadOutcome{0, 0}));
}

// Left to itself the kernel stops at 2147479552 bytes, which is no multiple of a huge page, and io_uring
// moves nothing at 4 GiB.
TEST_F(LocalFileTest, OneCallIsCutAtOneGib) {
  constexpr std::uint64_t sparse_bytes = 5ULL << 30;
  const std::string path = folder_.write("sparse.bin", "");
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(sparse_bytes)), 0);
  const auto sparse = store_.open(path);
  ASSERT_NE(sparse->direct_alignment_bytes(), 0U) << sparse->direct_refusal();
  const AliasedMemory memory(sparse_bytes);
  EXPECT_EQ(sparse->read(ReadMode::direct, 0, memory.bytes()), (ReadOutcome{1ULL << 30, 0}));
  LocalQueue queue(LocalQueueOptions{});
  queue.submit({1, sparse, ReadMode::direct, 0, memory.bytes().first(4ULL << 30), nullptr});
  Completion completion;
  ASSERT_EQ(queue.wait({&completion, 1}, Clock::time_point::max()), 1U);
  EXPECT_EQ(completion, (Completion{1, 1ULL << 30, 0}));
}

TEST_F(LocalFileTest, EveryWayOfAskingForResidencyAgrees) {
  const ByteRange all{0, file_bytes};
  const ByteRange part{5000, 1 << 20};
  for (const ResidencyWay way : {ResidencyWay::cachestat, ResidencyWay::nowait, ResidencyWay::mincore}) {
    SCOPED_TRACE(static_cast<int>(way));
    EXPECT_EQ(check_read(ReadMode::buffered), "");
    EXPECT_EQ(residency(fd(), all, way), Residency::resident);
    EXPECT_EQ(residency(fd(), part, way), Residency::resident);
    EXPECT_EQ(residency(fd(), {0, 0}, way), Residency::resident);
    drop_from_page_cache();
    EXPECT_EQ(residency(fd(), part, way), Residency::absent);
    EXPECT_EQ(residency(fd(), all, way), Residency::absent);
  }
}

TEST_F(LocalFileTest, AsksTheNextWayWhereOneIsRefused) {
  const std::string text = run_in_child([&]() -> std::string {
    constexpr long cachestat = 451;
    fakes::forbid_system_calls({cachestat}, EPERM);
    if (residency(fd(), {0, file_bytes}, ResidencyWay::cachestat) != Residency::unknown) return "cachestat";
    if (!file_->is_resident({0, file_bytes})) return "by nowait";
    fakes::forbid_system_calls({SYS_preadv2}, EOPNOTSUPP);
    if (residency(fd(), {0, file_bytes}, ResidencyWay::nowait) != Residency::unknown) return "nowait";
    if (!file_->is_resident({0, file_bytes})) return "by mincore";
    fakes::forbid_system_calls({SYS_mincore}, ENOSYS);
    if (file_->is_resident({0, file_bytes})) return "by nothing";
    return "";
  });
  EXPECT_EQ(text, "");
}

TEST_F(LocalFileTest, DoesNotBelieveMincoreAboutFilesOfOthers) {
  ASSERT_EQ(::chmod(file_->path().c_str(), 0644), 0);
  if (::geteuid() != 0) {
    EXPECT_EQ(residency(fd(), {0, 4096}, ResidencyWay::mincore), Residency::resident) << "our own file";
    return;
  }
  const std::string text = run_in_child([&]() -> std::string {
    constexpr uid_t nobody = 65534;
    if (::setuid(nobody) != 0) return "setuid";
    return residency(fd(), {0, 4096}, ResidencyWay::mincore) == Residency::unknown ? "" : "believed";
  });
  EXPECT_EQ(text, "");
}

TEST_F(LocalFileTest, ReadFullyNamesTheEnd) {
  std::vector<std::byte> target(200);
  try {
    read_fully(*file_, file_bytes - 100, target);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_checkpoint);
    EXPECT_NE(
        std::string(error.what()).find("data.bin bytes [4194327, 4194527): the file ends at byte 4194427"),
        std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace inrush::engine
