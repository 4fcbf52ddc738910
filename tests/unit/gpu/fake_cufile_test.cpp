// The fake libcufile behaves as its header says; else the suites on it would prove little.
#include "fakes/fake_cufile.hpp"

#include "base/unique_fd.hpp"
#include "fakes/child_process.hpp"
#include "fakes/fake_cuda.hpp"
#include "fakes/temp_folder.hpp"
#include "gpu/cuda_driver.hpp"
#include "gpu/cufile_table.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

namespace inrush::fakes {
namespace {

using engine::CufileCounters15;
using engine::CufileCounters19;
using engine::CufileDescriptor;
using engine::CufileGpuCounters;
using engine::CufileHandle;
using engine::CufileTable;
using engine::UniqueFd;

constexpr std::uint64_t block = 4096;
constexpr std::uint64_t file_bytes = 5 * block * 1024 / 4 + 100;  // more than a bounce buffer, and a tail

struct AlignedFree {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, AlignedFree>;

AlignedMemory aligned_memory(std::uint64_t bytes) {
  AlignedMemory memory(static_cast<std::byte*>(std::aligned_alloc(block, bytes)));
  std::memset(memory.get(), 0x5A, bytes);
  return memory;
}

class FakeCufileTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fake_->misuse_count(), misuses_) << fake_->last_misuse(); }

  // The file with or without O_DIRECT. Closed with the test.
  int open_file(int flags = O_RDONLY | O_DIRECT) {
    files_.emplace_back(::open(path_.c_str(), flags | O_CLOEXEC));
    EXPECT_TRUE(files_.back().is_open()) << std::strerror(errno);
    return files_.back().get();
  }
  int register_file(int descriptor, CufileHandle* handle) const {
    CufileDescriptor file{};
    file.type = engine::cufile_handle_fd;
    file.handle.fd = descriptor;
    return table_.handle_register(handle, &file).code;
  }
  CufileHandle registered(int descriptor) const {
    CufileHandle handle = nullptr;
    EXPECT_EQ(register_file(descriptor, &handle), 0);
    return handle;
  }
  int set_strict() const { return table_.set_parameter_bool(engine::cufile_bool_allow_compat, 0).code; }
  void start_counting() const {
    ASSERT_EQ(table_.set_stats_level(3).code, 0);
    ASSERT_EQ(table_.driver_open().code, 0);
    ASSERT_EQ(table_.stats_start().code, 0);
  }
  CufileGpuCounters counters() const {
    const auto all = std::make_unique<CufileCounters15>();
    EXPECT_EQ(table_.get_stats_3(all.get()).code, 0);
    EXPECT_EQ(all->gpu_count, 1U);
    return all->gpus[0];
  }
  // Whether the memory holds what the file has there.
  bool is_right(const std::byte* memory, std::uint64_t offset, std::uint64_t bytes) const {
    return std::equal(memory, memory + bytes, content_.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  void expect_misuse(const std::string& text) {
    ++misuses_;
    EXPECT_EQ(fake_->misuse_count(), misuses_);
    EXPECT_EQ(std::string(fake_->last_misuse()), text);
  }
  // Reads to where it reads from, on a thread of its own.
  std::thread start_read(CufileHandle handle, std::uint64_t bytes, std::uint64_t offset) {
    return std::thread([this, handle, bytes, at = static_cast<off_t>(offset)] {
      EXPECT_EQ(table_.read(handle, memory_.get(), bytes, at, at), static_cast<ssize_t>(bytes));
      ++ended_reads_;
    });
  }
  void wait_for_held_reads(std::uint64_t count) const {
    while (fake_->live().running_reads < count && ended_reads_ == 0) std::this_thread::yield();
    // Time in which a read that is not held ends.
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(TempFolder().write("data", content_).ends_with("data"));
    EXPECT_EQ(ended_reads_, 0U) << "not held";
  }
  // 0 where the read went well.
  int read_errno(CufileHandle handle, std::uint64_t bytes, off_t offset, off_t memory_offset) const {
    errno = 0;
    return table_.read(handle, memory_.get(), bytes, offset, memory_offset) == -1 ? errno : 0;
  }

  FakeCufile fake_{INRUSH_FAKE_CUFILE_15};
  const CufileTable table_ = engine::load_cufile_table(fake_.library(), "the fake");
  const TempFolder folder_;
  const std::vector<std::byte> content_ = patterned_bytes(file_bytes);
  const std::string path_ = folder_.write("data", content_);
  const AlignedMemory memory_ = aligned_memory(file_bytes / block * block + 2 * block);
  std::vector<UniqueFd> files_;
  std::uint64_t misuses_ = 0;
  std::atomic<std::uint64_t> ended_reads_ = 0;
};

TEST_F(FakeCufileTest, OpensAreCounted) {
  EXPECT_EQ(table_.use_count(), 0);
  EXPECT_EQ(table_.driver_close().code, 5001);
  EXPECT_EQ(table_.driver_open().code, 0);
  EXPECT_EQ(table_.driver_open().code, 0);
  EXPECT_EQ(table_.use_count(), 2);
  EXPECT_EQ(table_.driver_close().code, 0);
  EXPECT_EQ(table_.driver_close().code, 0);
  EXPECT_TRUE(fake_->live() == FakeCufileLive{});
  EXPECT_EQ(fake_->entry_count("cuFileDriverClose"), 3U);
  EXPECT_EQ(fake_->entry_count("cuFileWrite"), 0U);
}

TEST_F(FakeCufileTest, FirstUseOpens) {
  const CufileHandle handle = registered(open_file());
  EXPECT_EQ(table_.use_count(), 1);
  table_.handle_deregister(handle);
  fake_->reset();
  EXPECT_EQ(table_.buf_register(memory_.get(), block, 0).code, 0);
  EXPECT_EQ(table_.use_count(), 1);
  fake_->reset();
  EXPECT_EQ(read_errno(handle, block, 0, 0), 5027);  // a handle of before
  EXPECT_EQ(table_.use_count(), 1);
  expect_misuse("cuFileRead: with an unknown handle");
}

TEST_F(FakeCufileTest, ParametersWhileClosedOnly) {
  EXPECT_EQ(table_.set_parameter_bool(99, 1).code, 5022);
  EXPECT_EQ(set_strict(), 0);
  bool value = true;
  EXPECT_EQ(table_.get_parameter_bool(engine::cufile_bool_allow_compat, &value).code, 0);
  EXPECT_FALSE(value);
  EXPECT_EQ(table_.driver_open().code, 0);
  EXPECT_EQ(set_strict(), 5026);
  EXPECT_EQ(table_.set_parameter_size(engine::cufile_size_profile_stats, 3).code, 5026);
  EXPECT_EQ(table_.set_parameter_string(engine::cufile_string_log_folder, "x").code, 5026);
  engine::CufileDriverProperties properties{};
  EXPECT_EQ(table_.driver_get_properties(&properties).code, 0);
  EXPECT_EQ(properties.control_flags & engine::cufile_control_compat, 0U);
}

TEST_F(FakeCufileTest, FailedOpenForgetsTheParameters) {
  fake_->set_personality(CufilePersonality::compat);
  ASSERT_EQ(set_strict(), 0);
  EXPECT_EQ(table_.driver_open().code, 5001);
  EXPECT_EQ(table_.use_count(), 0);
  const CufileHandle handle = registered(open_file());  // the trap: opens with compat mode allowed
  EXPECT_EQ(table_.use_count(), 1);
  engine::CufileDriverProperties properties{};
  EXPECT_EQ(table_.driver_get_properties(&properties).code, 0);
  EXPECT_NE(properties.control_flags & engine::cufile_control_compat, 0U);
  table_.handle_deregister(handle);
}

TEST_F(FakeCufileTest, StrictOpeningByPersonality) {
  const auto open_of = [&](CufilePersonality personality) {
    fake_->reset();
    fake_->set_personality(personality);
    EXPECT_EQ(set_strict(), 0);
    return table_.driver_open().code;
  };
  EXPECT_EQ(open_of(CufilePersonality::p2pdma), 0);
  EXPECT_EQ(open_of(CufilePersonality::nvfs), 0);
  EXPECT_EQ(open_of(CufilePersonality::compat), 5001);
  EXPECT_EQ(open_of(CufilePersonality::silent), 0);
  EXPECT_EQ(open_of(CufilePersonality::liar), 0);
  EXPECT_EQ(open_of(CufilePersonality::mute), 0);
  fake_->reset();
  EXPECT_EQ(table_.set_parameter_bool(engine::cufile_bool_use_p2pdma, 0).code, 0);
  EXPECT_EQ(set_strict(), 0);
  EXPECT_EQ(table_.driver_open().code, 5001);
}

TEST_F(FakeCufileTest, FailedOpenMayCloseDescriptorZero) {
  const std::string said = run_in_child([&] {
    ::dup2(open_file(), 0);
    fake_->fail("cuFileDriverOpen", 1, 5033);
    if (table_.driver_open().code != 5033) return "opened";
    if (::fcntl(0, F_GETFD) < 0) return "closed without being asked";
    fake_->close_descriptor_0(1);
    fake_->fail("cuFileDriverOpen", 1, 5033);
    if (table_.driver_open().code != 5033) return "opened again";
    return ::fcntl(0, F_GETFD) < 0 ? "" : "still open";
  });
  EXPECT_EQ(said, "");
}

TEST_F(FakeCufileTest, FilesThatCannotBeRegistered) {
  CufileHandle handle = nullptr;
  EXPECT_EQ(register_file(-1, &handle), 5022);
  EXPECT_EQ(register_file(1000000, &handle), 5022);
  const UniqueFd folder(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(register_file(folder.get(), &handle), 5018);
  EXPECT_EQ(register_file(open_file(O_WRONLY | O_APPEND), &handle), 5019);
  EXPECT_EQ(register_file(open_file(O_RDONLY | O_NONBLOCK), &handle), 5019);
  const int descriptor = open_file();
  handle = registered(descriptor);
  CufileHandle second = nullptr;
  EXPECT_EQ(register_file(descriptor, &second), 5028);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(fake_->live().handles, 1U);
  table_.handle_deregister(handle);
  fake_->set_udev_record(0);
  EXPECT_EQ(register_file(descriptor, &handle), 5027);
}

TEST_F(FakeCufileTest, BufferedFilesOnlyWhereCompatIsAllowed) {
  CufileHandle handle = nullptr;
  for (const CufilePersonality personality : {CufilePersonality::p2pdma, CufilePersonality::silent}) {
    fake_->reset();
    fake_->set_personality(personality);
    ASSERT_EQ(set_strict(), 0);
    ASSERT_EQ(table_.driver_open().code, 0);
    const bool pretends = personality == CufilePersonality::silent;
    EXPECT_EQ(register_file(open_file(O_RDONLY), &handle), pretends ? 0 : 5008);
    EXPECT_EQ(register_file(open_file(), &handle), 0);
  }
}

TEST_F(FakeCufileTest, Buffers) {
  std::byte* const start = memory_.get();
  EXPECT_EQ(table_.buf_register(start, 0, 0).code, 5022);
  EXPECT_EQ(table_.buf_register(start, 2 * block, 0).code, 0);
  EXPECT_EQ(table_.buf_register(start, block, 0).code, 5023);
  EXPECT_EQ(table_.buf_register(start + block, block, 0).code, 0);  // overlaps: taken, as by the real one
  EXPECT_EQ(fake_->live().registered_bytes, 3 * block);
  EXPECT_EQ(table_.buf_deregister(start).code, 0);
  EXPECT_EQ(fake_->live().registered_bytes, block);
  EXPECT_EQ(fake_->peak_registered_bytes(), 3 * block);
  EXPECT_EQ(table_.buf_deregister(start).code, 5024);
  expect_misuse("cuFileBufDeregister: of unknown memory");
  EXPECT_EQ(table_.buf_deregister(start + block).code, 0);
}

TEST_F(FakeCufileTest, ReadsAnyRange) {
  for (const int flags : {O_RDONLY | O_DIRECT, O_RDONLY}) {
    const CufileHandle handle = registered(open_file(flags));
    const auto expect = [&](std::uint64_t offset, std::uint64_t bytes, std::uint64_t at) {
      std::memset(memory_.get(), 0x5A, file_bytes);
      const std::uint64_t end = std::min(file_bytes, offset + bytes);
      const std::uint64_t count = end > offset ? end - offset : 0;
      EXPECT_EQ(table_.read(handle, memory_.get(), bytes, static_cast<off_t>(offset), static_cast<off_t>(at)),
                static_cast<ssize_t>(count));
      EXPECT_TRUE(is_right(memory_.get() + at, offset, count)) << offset << " " << bytes << " " << at;
      EXPECT_EQ(memory_.get()[at + count], std::byte{0x5A}) << "wrote beyond what it read";
    };
    expect(0, file_bytes + 1000, 0);
    expect(block, 16 * block, block);
    expect(1, 4095, 7);
    expect(4095, 2, 0);
    expect(1234567, 1234567, 89);
    expect(file_bytes - 1, block, 0);
    expect(file_bytes, block, 0);
    expect(file_bytes + 100000, block, 0);
    expect(17, 0, 0);
    table_.handle_deregister(handle);
  }
}

TEST_F(FakeCufileTest, RequestsThatAreRefused) {
  const CufileHandle handle = registered(open_file());
  ASSERT_EQ(table_.buf_register(memory_.get(), 2 * block, 0).code, 0);
  EXPECT_EQ(read_errno(handle, block, -1, 0), 5022);
  EXPECT_EQ(read_errno(handle, block, 0, -4096), 5022);
  EXPECT_EQ(read_errno(handle, block, 0, block), 0);
  EXPECT_EQ(read_errno(handle, block, 0, block + 1), 5017);
  EXPECT_EQ(read_errno(handle, 1, 0, 3 * block), 5017);
  EXPECT_EQ(table_.buf_deregister(memory_.get()).code, 0);
  EXPECT_EQ(read_errno(handle, block, 0, block + 1), 0);  // unregistered: nobody knows its size
  errno = 0;
  EXPECT_EQ(table_.read(handle, nullptr, block, 0, 0), -1);
  EXPECT_EQ(errno, 5012);
  expect_misuse("cuFileRead: of no memory");
  table_.handle_deregister(handle);
}

TEST_F(FakeCufileTest, WritesAnyRange) {
  std::vector<std::byte> wanted = content_;
  const CufileHandle handle = registered(open_file(O_RDWR | O_DIRECT));
  const auto write = [&](std::uint64_t offset, std::uint64_t bytes, std::uint64_t at) {
    const auto fresh = patterned_bytes(bytes, offset + 5);
    std::copy(fresh.begin(), fresh.end(), memory_.get() + at);
    std::copy(fresh.begin(), fresh.end(), wanted.begin() + static_cast<std::ptrdiff_t>(offset));
    EXPECT_EQ(table_.write(handle, memory_.get(), bytes, static_cast<off_t>(offset), static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes));
  };
  write(0, 300 * block, 0);
  write(block, block, block);
  write(12345, 678, 9);
  write(file_bytes - 50, 50, 1);
  table_.handle_deregister(handle);
  std::vector<std::byte> found(file_bytes);
  EXPECT_EQ(::pread(open_file(O_RDONLY), found.data(), file_bytes, 0), static_cast<ssize_t>(file_bytes));
  EXPECT_TRUE(found == wanted);
  EXPECT_EQ(std::filesystem::file_size(path_), file_bytes);
  const CufileHandle read_only = registered(open_file());
  errno = 0;
  EXPECT_EQ(table_.write(read_only, memory_.get(), block, 0, 0), -1);
  EXPECT_EQ(errno, EBADF);
  table_.handle_deregister(read_only);
}

struct Expected {
  CufilePersonality personality;
  std::uint64_t p2p;
  std::uint64_t nvfs;
  std::uint64_t posix;
};

TEST_F(FakeCufileTest, CountersByPersonality) {
  // One read through a descriptor with O_DIRECT, and one through another without.
  for (const Expected& expected : std::vector<Expected>{{CufilePersonality::p2pdma, 1, 0, 1},
                                                        {CufilePersonality::nvfs, 0, 1, 1},
                                                        {CufilePersonality::compat, 0, 0, 2},
                                                        {CufilePersonality::silent, 0, 0, 2},
                                                        {CufilePersonality::liar, 2, 0, 0},
                                                        {CufilePersonality::mute, 0, 0, 0}}) {
    fake_->reset();
    fake_->set_personality(expected.personality);
    start_counting();
    const CufileHandle direct = registered(open_file());
    const CufileHandle buffered = registered(open_file(O_RDONLY));
    EXPECT_EQ(table_.read(direct, memory_.get(), 2 * block, 0, 0), 2 * block);
    EXPECT_EQ(table_.read(buffered, memory_.get(), block, 1, 0), block);
    EXPECT_TRUE(is_right(memory_.get(), 1, block));
    const CufileGpuCounters found = counters();
    EXPECT_EQ(found.p2p_reads, expected.p2p);
    EXPECT_EQ(found.nvfs_reads, expected.nvfs);
    EXPECT_EQ(found.posix_reads, expected.posix);
    const bool is_mute = expected.personality == CufilePersonality::mute;
    EXPECT_EQ(found.reads, is_mute ? 0U : 2U);
    EXPECT_EQ(found.read_bytes, is_mute ? 0 : 3 * block);
    EXPECT_EQ(found.unaligned_reads, is_mute ? 0U : 1U);
    table_.handle_deregister(direct);
    table_.handle_deregister(buffered);
  }
}

TEST_F(FakeCufileTest, WhateverIsNoMultipleOfABlockIsUnaligned) {
  start_counting();
  const CufileHandle handle = registered(open_file());
  const auto read = [&](std::uint64_t base, std::uint64_t bytes, off_t offset, off_t at) {
    EXPECT_EQ(table_.read(handle, memory_.get() + base, bytes, offset, at), static_cast<ssize_t>(bytes));
    return counters().unaligned_reads;
  };
  EXPECT_EQ(read(0, block, 0, 0), 0U);
  EXPECT_EQ(read(block, block, block, block), 0U);
  EXPECT_EQ(read(512, block, 0, 0), 1U);
  EXPECT_EQ(read(0, 512, 0, 0), 2U);
  EXPECT_EQ(read(0, block, 512, 0), 3U);
  EXPECT_EQ(read(0, block, 0, 512), 4U);
  EXPECT_EQ(counters().p2p_reads, 6U);  // straight all the same, by a bounce
  table_.handle_deregister(handle);
}

TEST_F(FakeCufileTest, SettingsThatForceCompat) {
  for (const auto& [parameter, value] :
       {std::pair(engine::cufile_bool_force_compat, 1), std::pair(engine::cufile_bool_use_p2pdma, 0)}) {
    fake_->reset();
    ASSERT_EQ(table_.set_parameter_bool(parameter, static_cast<unsigned char>(value)).code, 0);
    start_counting();
    const CufileHandle handle = registered(open_file());
    EXPECT_EQ(table_.read(handle, memory_.get(), block, 0, 0), block);
    EXPECT_EQ(counters().posix_reads, 1U);
    EXPECT_EQ(counters().p2p_reads, 0U);
    table_.handle_deregister(handle);
  }
}

TEST_F(FakeCufileTest, NothingIsCountedBeforeTheStart) {
  const auto all = std::make_unique<CufileCounters15>();
  EXPECT_EQ(table_.stats_start().code, 5001);
  EXPECT_EQ(table_.get_stats_3(all.get()).code, 5001);
  EXPECT_EQ(table_.set_stats_level(4).code, 5022);
  const CufileHandle handle = registered(open_file());
  const auto read = [&] { EXPECT_EQ(table_.read(handle, memory_.get(), block, 0, 0), block); };
  EXPECT_EQ(table_.stats_start().code, 5022);  // level 0
  read();
  EXPECT_EQ(table_.set_stats_level(2).code, 0);
  EXPECT_EQ(table_.stats_start().code, 0);
  read();
  EXPECT_EQ(table_.get_stats_3(all.get()).code, 5022);
  EXPECT_EQ(table_.set_stats_level(3).code, 0);
  int level = 0;
  EXPECT_EQ(table_.get_stats_level(&level).code, 0);
  EXPECT_EQ(level, 3);
  EXPECT_EQ(counters().reads, 0U);
  read();
  fake_->fail_read(1, CufileFailure::errno_value, EIO);
  EXPECT_EQ(read_errno(handle, block, 0, 0), EIO);
  EXPECT_EQ(counters().reads, 1U);
  EXPECT_EQ(counters().failed_reads, 1U);
  fake_->zero_read(1);
  EXPECT_EQ(table_.read(handle, memory_.get(), block, 0, 0), 0);
  EXPECT_EQ(counters().reads, 2U);
  table_.handle_deregister(handle);
  EXPECT_EQ(table_.driver_close().code, 0);
  start_counting();
  EXPECT_EQ(counters().reads, 0U);
}

TEST_F(FakeCufileTest, UuidIsThatOfTheFirstFakeDevice) {
  const FakeCuda cuda(INRUSH_FAKE_CUDA);
  start_counting();
  const auto driver = engine::CudaDriver::open(INRUSH_FAKE_CUDA);
  engine::CuUuid uuid{};
  ASSERT_EQ(driver->table().device_get_uuid(&uuid, 0), engine::CuResult::success);
  EXPECT_EQ(std::memcmp(counters().uuid.data(), uuid.bytes.data(), 16), 0);
  const std::vector<unsigned char> other(16, 7);
  fake_->set_uuid(other.data());
  EXPECT_EQ(std::memcmp(counters().uuid.data(), other.data(), 16), 0);
}

TEST_F(FakeCufileTest, FaultsOfEntries) {
  fake_->fail("cuFileBufRegister", 2, 5036);
  fake_->fail_from("cuFileHandleRegister", 1, 5011);
  EXPECT_EQ(table_.buf_register(memory_.get(), block, 0).code, 0);
  EXPECT_EQ(table_.buf_register(memory_.get() + block, block, 0).code, 5036);
  EXPECT_EQ(fake_->live().buffers, 1U);
  CufileDescriptor file{};
  file.type = engine::cufile_handle_fd;
  file.handle.fd = open_file();
  CufileHandle handle = nullptr;
  for (int i = 0; i < 3; ++i) {
    const engine::CufileStatus status = table_.handle_register(&handle, &file);
    EXPECT_EQ(status.code, 5011);
    EXPECT_EQ(status.cuda, fake_cufile_cuda_result);
  }
  fake_->fail("cuFileBufDeregister", 1, 5010);
  EXPECT_EQ(table_.buf_deregister(memory_.get()).code, 5010);
  EXPECT_EQ(fake_->live().buffers, 0U);  // it freed all the same
  EXPECT_EQ(fake_->fault_count(), 5U);
}

TEST_F(FakeCufileTest, FaultsOfReads) {
  const CufileHandle handle = registered(open_file());
  const auto read = [&] {
    std::memset(memory_.get(), 0x5A, 2 * block);
    errno = 0;
    return table_.read(handle, memory_.get(), 2 * block, 0, 0);
  };
  fake_->fail_read(1, CufileFailure::errno_value, EIO);
  fake_->fail_read(2, CufileFailure::errno_code, 5036);
  fake_->fail_read(3, CufileFailure::negative_code, 5016);
  fake_->short_read(4, block);
  fake_->zero_read(5);
  fake_->overlong_read(6);
  fake_->corrupt_read(7);
  fake_->fail_read_from(9, CufileFailure::errno_value, ENODEV);
  EXPECT_EQ(read(), -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(read(), -1);
  EXPECT_EQ(errno, 5036);
  EXPECT_EQ(read(), -5016);
  EXPECT_EQ(memory_.get()[0], std::byte{0x5A});
  EXPECT_EQ(read(), block);
  EXPECT_EQ(memory_.get()[block], std::byte{0x5A});
  EXPECT_EQ(read(), 0);
  EXPECT_EQ(memory_.get()[0], std::byte{0x5A});
  EXPECT_EQ(read(), 3 * block);
  EXPECT_TRUE(is_right(memory_.get(), 0, 2 * block));
  EXPECT_EQ(read(), 2 * block);
  EXPECT_FALSE(is_right(memory_.get(), 0, 64));
  EXPECT_FALSE(is_right(memory_.get(), 2 * block - 64, 64));
  EXPECT_EQ(read(), 2 * block);
  EXPECT_TRUE(is_right(memory_.get(), 0, 2 * block));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(read(), -1);
    EXPECT_EQ(errno, ENODEV);
  }
  EXPECT_EQ(fake_->fault_count(), 9U);
  table_.handle_deregister(handle);
}

TEST_F(FakeCufileTest, ShortReadsByChance) {
  const CufileHandle handle = registered(open_file());
  const auto lengths = [&](std::uint64_t seed) {
    fake_->set_short_chance(seed, 500);
    std::vector<ssize_t> all;
    for (int i = 0; i < 200; ++i) all.push_back(table_.read(handle, memory_.get(), 16 * block, 0, 0));
    return all;
  };
  const auto first = lengths(1);
  EXPECT_TRUE(std::all_of(first.begin(), first.end(), [](ssize_t n) { return n > 0 && n <= 16 * 4096; }));
  const auto shortened = std::count_if(first.begin(), first.end(), [](ssize_t n) { return n < 16 * 4096; });
  const auto odd = std::count_if(first.begin(), first.end(), [](ssize_t n) { return n % 4096 != 0; });
  EXPECT_GT(shortened, 50);
  EXPECT_LT(shortened, 150);
  EXPECT_GT(odd, 0);
  EXPECT_LT(odd, shortened / 2);
  EXPECT_EQ(lengths(1), first);
  EXPECT_NE(lengths(2), first);
  EXPECT_EQ(table_.read(handle, memory_.get(), 1, 0, 0), 1);
  table_.handle_deregister(handle);
}

TEST_F(FakeCufileTest, ReadsRunAtOnceAndCanBeHeld) {
  const CufileHandle handle = registered(open_file());
  constexpr std::uint64_t count = 8;
  fake_->hold_reads();
  fake_->set_delay_max(100);
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < count; ++i) threads.push_back(start_read(handle, 37 * block, i * 37 * block));
  wait_for_held_reads(count);
  EXPECT_EQ(memory_.get()[0], std::byte{0x5A});
  fake_->let_reads_go();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_right(memory_.get(), 0, count * 37 * block));
  EXPECT_EQ(fake_->live().running_reads, 0U);
  table_.handle_deregister(handle);
}

TEST_F(FakeCufileTest, ResetLetsHeldReadsGo) {
  const CufileHandle handle = registered(open_file());
  fake_->hold_reads();
  std::thread reader = start_read(handle, block, 0);
  wait_for_held_reads(1);
  fake_->reset();
  EXPECT_TRUE(fake_->live() == FakeCufileLive{});
  reader.join();
}

TEST_F(FakeCufileTest, MisuseUnderARead) {
  const CufileHandle handle = registered(open_file());
  ASSERT_EQ(table_.buf_register(memory_.get(), block, 0).code, 0);
  fake_->hold_reads();
  std::thread reader = start_read(handle, block, 0);
  wait_for_held_reads(1);
  EXPECT_EQ(table_.buf_deregister(memory_.get()).code, 0);
  expect_misuse("cuFileBufDeregister: while a read or write runs");
  table_.handle_deregister(handle);
  expect_misuse("cuFileHandleDeregister: while a read or write runs");
  fake_->let_reads_go();
  reader.join();
}

TEST_F(FakeCufileTest, MisuseAtTheEnd) {
  const CufileHandle handle = registered(open_file());
  files_.clear();
  table_.handle_deregister(handle);
  expect_misuse("cuFileHandleDeregister: after its descriptor was closed");
  table_.handle_deregister(handle);
  expect_misuse("cuFileHandleDeregister: of an unknown handle");
  const CufileHandle reused = registered(open_file());
  const UniqueFd other(::open(folder_.path().c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_GE(::dup2(other.get(), files_.back().get()), 0);  // another file under the same number
  table_.handle_deregister(reused);
  expect_misuse("cuFileHandleDeregister: after its descriptor was closed");
  registered(open_file());
  EXPECT_EQ(table_.driver_close().code, 0);
  expect_misuse("cuFileDriverClose: with handles or buffers alive");
  EXPECT_TRUE(fake_->live() == FakeCufileLive{});
}

// Device addresses of the fake libcuda cannot be touched by the CPU: the bytes go another way.
TEST_F(FakeCufileTest, ReadsIntoFakeDevices) {
  const FakeCuda cuda(INRUSH_FAKE_CUDA);
  const auto driver = engine::CudaDriver::open(INRUSH_FAKE_CUDA);
  const engine::CudaTable& table = driver->table();
  engine::CuContext context = nullptr;
  ASSERT_EQ(table.primary_ctx_retain(&context, 0), engine::CuResult::success);
  ASSERT_EQ(table.ctx_push_current(context), engine::CuResult::success);
  engine::CuAddress address = 0;
  ASSERT_EQ(table.mem_alloc(&address, 3 << 20), engine::CuResult::success);
  auto* const device = reinterpret_cast<std::byte*>(address);
  EXPECT_EQ(table_.buf_register(device, (3 << 20) + 1, 0).code, 5014);
  EXPECT_EQ(table_.buf_register(device, 3 << 20, 0).code, 0);
  const CufileHandle handle = registered(open_file(O_RDWR | O_DIRECT));
  EXPECT_EQ(table_.read(handle, device, 2 << 20, 4096, 1000), 2 << 20);
  std::vector<std::byte> back(2 << 20);
  EXPECT_EQ(table.memcpy_dtoh(back.data(), address + 1000, back.size()), engine::CuResult::success);
  EXPECT_TRUE(is_right(back.data(), 4096, back.size()));
  EXPECT_EQ(table_.write(handle, device, 4096, 0, 1000), 4096);
  std::vector<std::byte> written(4096);
  EXPECT_EQ(::pread(open_file(O_RDONLY), written.data(), 4096, 0), 4096);
  EXPECT_TRUE(is_right(written.data(), 4096, 4096));
  errno = 0;
  EXPECT_EQ(table_.read(handle, device + 4096, 3 << 20, 0, 0), -1);
  EXPECT_EQ(errno, 5014);
  expect_misuse("cuFileRead: beyond its memory");
  ASSERT_EQ(table.mem_free(address), engine::CuResult::success);
  EXPECT_EQ(table_.buf_deregister(device).code, 0);
  expect_misuse("cuFileBufDeregister: after its memory was freed");
  EXPECT_EQ(read_errno(handle, 0, 0, 0), 0);
  errno = 0;
  EXPECT_EQ(table_.read(handle, device, 4096, 0, 0), -1);
  EXPECT_EQ(errno, 5012);
  expect_misuse("cuFileRead: of no memory");
  table_.handle_deregister(handle);
  engine::CuContext popped = nullptr;
  table.ctx_pop_current(&popped);
  table.primary_ctx_release(0);
}

TEST(FakeCufileVersions, HaveTheirEntriesAndLayouts) {
  const FakeCufile fake_14(INRUSH_FAKE_CUFILE_14);
  const FakeCufile fake_15(INRUSH_FAKE_CUFILE_15);
  const FakeCufile fake_19(INRUSH_FAKE_CUFILE_19);
  const CufileTable table_14 = engine::load_cufile_table(fake_14.library(), "1.14");
  const CufileTable table_15 = engine::load_cufile_table(fake_15.library(), "1.15");
  const CufileTable table_19 = engine::load_cufile_table(fake_19.library(), "1.19");
  const auto version_of = [](const CufileTable& table) {
    int version = 0;
    EXPECT_EQ(table.get_version(&version).code, 0);
    return version;
  };
  EXPECT_EQ(version_of(table_14), 1140);
  EXPECT_EQ(version_of(table_15), 1150);
  EXPECT_EQ(version_of(table_19), 1190);
  EXPECT_NE(table_14.set_parameter_bool, nullptr);
  EXPECT_EQ(table_14.set_stats_level, nullptr);
  EXPECT_EQ(table_14.get_stats_3, nullptr);
  EXPECT_NE(table_15.get_stats_3, nullptr);
  EXPECT_EQ(table_15.readv, nullptr);
  EXPECT_EQ(table_15.get_p2p_flags, nullptr);
  EXPECT_NE(table_19.readv, nullptr);
  errno = 0;
  EXPECT_EQ(reinterpret_cast<ssize_t (*)()>(const_cast<void*>(table_19.readv))(), -1);
  EXPECT_EQ(errno, ENOSYS);
  // Each is a library of its own.
  EXPECT_EQ(table_15.driver_open().code, 0);
  EXPECT_EQ(table_19.use_count(), 0);
  EXPECT_EQ(table_19.driver_open().code, 0);
  EXPECT_EQ(table_19.set_stats_level(3).code, 0);
  const auto counters = std::make_unique<CufileCounters19>();
  EXPECT_EQ(table_19.get_stats_3(counters.get()).code, 0);
  EXPECT_EQ(counters->gpu_count, 1U);
  EXPECT_EQ(static_cast<unsigned char>(counters->gpus[0].uuid[0]), 0xF4);
  unsigned flags = 0;
  EXPECT_EQ(table_19.get_p2p_flags(4, &flags).code, 0);
  EXPECT_EQ(flags, 1U);
}

// In a child that loads a copy of the library, which reads its environment anew.
class FakeCufileWordsTest : public ::testing::Test {
 protected:
  using Body = std::function<std::string(const CufileTable&)>;

  std::string run(const char* words, const Body& body) const {
    const std::string copy = folder_ / "libcufile-copy.so";
    std::filesystem::copy_file(INRUSH_FAKE_CUFILE_15, copy,
                               std::filesystem::copy_options::overwrite_existing);
    return run_in_child([&]() -> std::string {
      ::setenv("FAKE_CUFILE", words, 1);
      if (::chdir(folder_.path().c_str()) != 0) return "chdir";
      void* const library = ::dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) return ::dlerror();
      return body(engine::load_cufile_table(library, "a copy"));
    });
  }
  static std::string open_code(const CufileTable& table) { return std::to_string(table.driver_open().code); }
  static std::string strict_open_code(const CufileTable& table) {
    static_cast<void>(table.set_parameter_bool(engine::cufile_bool_allow_compat, 0));
    return open_code(table);
  }
  static Body with_variable(const char* name, const char* value) {
    return [=](const CufileTable& table) {
      ::setenv(name, value, 1);
      return open_code(table);
    };
  }
  // Of a read of 64 bytes of "data" into zeros: the count and how many bytes are wrong.
  std::string read_once(const CufileTable& table) const {
    CufileDescriptor file{};
    file.type = engine::cufile_handle_fd;
    file.handle.fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    CufileHandle handle = nullptr;
    const int code = table.handle_register(&handle, &file).code;
    if (code != 0) return "register " + std::to_string(code);
    std::string bytes(64, '\0');
    errno = 0;
    const ssize_t count = table.read(handle, bytes.data(), bytes.size(), 0, 0);
    if (count < 0) return "errno " + std::to_string(errno);
    return std::to_string(count) + ", wrong " +
           std::to_string(64 - std::count(bytes.begin(), bytes.end(), 'x'));
  }
  [[nodiscard]] bool has(const std::string& name) const { return std::filesystem::exists(folder_ / name); }

  const TempFolder folder_;
  const std::string path_ = folder_.write("data", std::string(100, 'x'));
};

TEST_F(FakeCufileWordsTest, Personalities) {
  EXPECT_EQ(run("compat", strict_open_code), "5001");
  EXPECT_EQ(run("nvfs", strict_open_code), "0");
  EXPECT_EQ(run("silent,prints", strict_open_code), "0");
  EXPECT_EQ(run("", strict_open_code), "0");
  EXPECT_NE(run("p2p", strict_open_code), "0");  // no such word: the child dies
}

TEST_F(FakeCufileWordsTest, Faults) {
  const Body read = [&](const CufileTable& table) { return read_once(table); };
  EXPECT_EQ(run("nvfs", read), "64, wrong 0");
  EXPECT_EQ(run("corrupt_read=1", read), "64, wrong 1");
  EXPECT_EQ(run("corrupt_read=2,slow_reads=10", read), "64, wrong 0");
  EXPECT_EQ(run("no_udev", read), "register 5027");
  EXPECT_EQ(run("fail=cuFileHandleRegister:1:5008", read), "register 5008");
  EXPECT_EQ(run("fail=cuFileRead:1:5", read), "errno 5");
  EXPECT_EQ(run("fail=cuFileDriverOpen:2:5033", open_code), "0");
  EXPECT_EQ(run("fail=cuFileDriverOpen:1:5033", open_code), "5033");
}

TEST_F(FakeCufileWordsTest, CrashAndHang) {
  const std::string crashed = run("crash=cuFileDriverOpen", open_code);
  EXPECT_NE(crashed.find("11"), std::string::npos) << crashed;
  const Body with_alarm = [](const CufileTable& table) {
    std::signal(SIGALRM, SIG_DFL);
    const itimerval soon = {{0, 0}, {0, 100000}};
    ::setitimer(ITIMER_REAL, &soon, nullptr);
    return open_code(table);
  };
  const std::string hung = run("hang=cuFileDriverOpen", with_alarm);
  EXPECT_NE(hung.find("14"), std::string::npos) << hung;
  EXPECT_EQ(run("hang=cuFileRead", with_alarm), "0");
}

TEST_F(FakeCufileWordsTest, ThreeLines) {
  const std::string text = folder_ / "stderr";
  EXPECT_EQ(run("prints",
                [&](const CufileTable& table) {
                  const int file = ::open(text.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
                  ::dup2(file, 2);
                  return open_code(table);
                }),
            "0");
  std::ifstream lines(text);
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(lines), {}, '\n'), 3);
}

TEST_F(FakeCufileWordsTest, Logs) {
  EXPECT_EQ(run("", open_code), "0");
  EXPECT_FALSE(has("cufile.log"));
  std::filesystem::create_directory(folder_ / "logs");
  const Body with_parameter = [](const CufileTable& table) {
    static_cast<void>(table.set_parameter_string(engine::cufile_string_log_folder, "logs"));
    return open_code(table);
  };
  EXPECT_EQ(run("log", with_parameter), "0");
  EXPECT_TRUE(has("logs/cufile.log"));
  EXPECT_EQ(run("log", with_variable("CUFILE_LOGFILE_PATH", "logs/mine")), "0");
  EXPECT_TRUE(has("logs/mine"));
  std::filesystem::create_directory(folder_ / "other");
  folder_.write("cufile.json", R"({ "logging": { "dir": "other", "level": "WARN" } })");
  EXPECT_EQ(run("log", with_variable("CUFILE_ENV_PATH_JSON", "cufile.json")), "0");
  EXPECT_TRUE(has("other/cufile.log"));
  EXPECT_FALSE(has("cufile.log"));
  EXPECT_EQ(run("log", open_code), "0");
  EXPECT_TRUE(has("cufile.log"));
}

TEST_F(FakeCufileWordsTest, ConfigurationOfTheLibrary) {
  folder_.write("strict.json", R"({ "properties": { "allow_compat_mode": false, "use_pci_p2pdma": true } })");
  const Body with_file = with_variable("CUFILE_ENV_PATH_JSON", "strict.json");
  EXPECT_EQ(run("compat", open_code), "0");
  EXPECT_EQ(run("compat", with_file), "5001");
  EXPECT_EQ(run("nvfs", with_file), "0");
  EXPECT_EQ(run("compat", with_variable("CUFILE_ALLOW_COMPAT_MODE", "false")), "5001");
  const Body with_both = [&](const CufileTable& table) {
    ::setenv("CUFILE_ALLOW_COMPAT_MODE", "true", 1);  // goes before the file
    return with_file(table);
  };
  EXPECT_EQ(run("compat", with_both), "0");
}

}  // namespace
}  // namespace inrush::fakes
