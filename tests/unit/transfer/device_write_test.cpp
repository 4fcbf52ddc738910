// Device memory written to a file by cuFile: every byte where it belongs, none beside it, and typed errors.
#include "transfer/device_write.hpp"

#include <inrush/error.hpp>

#include "base/unique_fd.hpp"
#include "fakes/fake_cuda_fixture.hpp"
#include "fakes/fake_cufile.hpp"
#include "fakes/temp_folder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::engine {
namespace {

using namespace fakes;

constexpr std::uint64_t block_bytes = 4096;
constexpr std::uint64_t mib = 1ULL << 20;
constexpr std::uint64_t margin_bytes = 3 * block_bytes;  // before and after what is written
constexpr std::byte margin_byte{0x5A};

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

class DeviceWriteTest : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    cuda_->set_delay_max(300);  // a write that does not wait for its copy writes what was there before
    fake_.emplace(INRUSH_FAKE_CUFILE_19);
    gpu_ = open_gpu();
    stream_ = gpu_->open_stream();
    driver_ = gpu_->open_cufile({CufileMode::direct, INRUSH_FAKE_CUFILE_19, folder_.path()});
  }
  void TearDown() override {
    writer_ = nullptr;
    source_ = nullptr;
    driver_ = nullptr;
    stream_ = nullptr;
    gpu_ = nullptr;
    EXPECT_EQ((*fake_)->misuse_count(), 0U) << (*fake_)->last_misuse();
    EXPECT_EQ((*fake_)->live(), FakeCufileLive{});
    fake_.reset();
    FakeCudaTest::TearDown();
  }

  // Device memory with bytes of its own, and a file with room for them between two margins.
  void make(std::uint64_t size_bytes, RingShape shape = {64 * 1024, 4}) {
    writer_ = nullptr;
    content_ = patterned_bytes(size_bytes, size_bytes + 1);
    source_ = gpu_->allocate(std::max<std::uint64_t>(size_bytes, 1), 256);
    if (size_bytes > 0) {
      const Copy copy{.source = content_.data(), .target = source_.get(), .row_bytes = size_bytes};
      stream_->copy({&copy, 1});
      stream_->wait(stream_->record());
    }
    path_ = folder_.write("out", std::vector<std::byte>(2 * margin_bytes + size_bytes, margin_byte));
    file_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
    ASSERT_TRUE(file_.is_open());
    const auto ring = std::make_shared<const DeviceRing>(*gpu_, driver_, shape);
    writer_ = std::make_unique<DeviceWriter>(*stream_, ring, file_.get(), path_);
  }

  void write(std::uint64_t file_offset = margin_bytes) {
    writer_->write({static_cast<const std::byte*>(source_.get()), content_.size(), file_offset});
  }

  [[nodiscard]] std::vector<std::byte> file_bytes() const {
    std::ifstream file(path_, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto* const start = reinterpret_cast<const std::byte*>(text.data());
    return {start, start + text.size()};
  }

  void expect_written(std::uint64_t file_offset = margin_bytes) {
    std::vector<std::byte> wanted(2 * margin_bytes + content_.size(), margin_byte);
    std::copy(content_.begin(), content_.end(), wanted.begin() + static_cast<std::ptrdiff_t>(file_offset));
    EXPECT_TRUE(file_bytes() == wanted) << content_.size() << " bytes at " << file_offset;
    EXPECT_TRUE(read_back(*gpu_, source_.get(), content_.size()) == content_) << "the source changed";
  }

  [[nodiscard]] Error write_error() {
    try {
      write();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "it was written";
    return {ErrorCode::internal, ""};
  }

  [[nodiscard]] std::uint64_t write_count() const { return (*fake_)->entry_count("cuFileWrite"); }

  std::optional<FakeCufile> fake_;
  const TempFolder folder_;
  std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<CopyStream> stream_;
  std::shared_ptr<CufileDriver> driver_;
  std::vector<std::byte> content_;
  std::shared_ptr<void> source_;
  std::string path_;
  UniqueFd file_;
  std::unique_ptr<DeviceWriter> writer_;  // before the descriptor that it was given
};

TEST_F(DeviceWriteTest, AnySize) {
  for (const std::uint64_t size_bytes :
       {std::uint64_t{0}, std::uint64_t{1}, block_bytes - 1, block_bytes, block_bytes + 1,
        16 * block_bytes - 17, 16 * block_bytes + 1, mib + 17}) {
    make(size_bytes);
    write();
    expect_written();
    writer_->sync();
  }
}

TEST_F(DeviceWriteTest, NothingMeansNoCall) {
  make(0);
  write();
  EXPECT_EQ(write_count(), 0U);
}

TEST_F(DeviceWriteTest, RingsOfAnyShape) {
  for (const RingShape shape : {RingShape{block_bytes, 1}, RingShape{block_bytes, 2}, RingShape{64 * 1024, 1},
                                RingShape{64 * 1024, 7}, RingShape{4 * mib, 2}}) {
    SCOPED_TRACE(std::to_string(shape.slot_bytes) + " x " + std::to_string(shape.slot_count));
    make(300 * 1024 + 5, shape);
    write();
    expect_written();
  }
}

// The library writes such by reading and writing whole blocks: what stands beside must stay.
TEST_F(DeviceWriteTest, UnalignedOffsetsLeaveWhatStandsBeside) {
  for (const std::uint64_t offset :
       {margin_bytes + 1, margin_bytes - 1, margin_bytes + 2047, std::uint64_t{0}, std::uint64_t{7}}) {
    make(200 * 1024 + 13);
    write(offset);
    expect_written(offset);
  }
}

TEST_F(DeviceWriteTest, SeveralExtentsOfOneWriter) {
  make(500 * 1024);
  const auto* const data = static_cast<const std::byte*>(source_.get());
  const std::uint64_t half = 250 * 1024;
  writer_->write({data + half, half, margin_bytes + half});
  writer_->write({data, half, margin_bytes});
  expect_written();
}

TEST_F(DeviceWriteTest, WholeBlocksGoBeforeTheTail) {
  make(5 * block_bytes + 100);
  write();
  EXPECT_EQ(write_count(), 2U);
  expect_written();
}

TEST_F(DeviceWriteTest, AFileGrowsWhereItEnds) {
  make(mib + 17);
  const std::uint64_t end = 2 * margin_bytes + content_.size();
  write(end - end % block_bytes);
  EXPECT_EQ(std::filesystem::file_size(path_), end - end % block_bytes + content_.size());
}

TEST_F(DeviceWriteTest, ShortWritesGoOn) {
  for (const std::uint64_t bytes : {4096U, 8192U, 12288U}) {
    make(200 * 1024 + 7);
    for (const std::uint64_t nth : {1U, 2U, 4U}) (*fake_)->short_write(nth, bytes);
    write();
    expect_written();
  }
  EXPECT_GE((*fake_)->fault_count(), 9U);
}

TEST_F(DeviceWriteTest, NothingWrittenIsNoProgress) {
  make(200 * 1024 + 7);
  (*fake_)->short_write(2, 0);
  const Error error = write_error();
  EXPECT_EQ(error.code(), ErrorCode::storage_failed);
  EXPECT_NE(std::string(error.what()).find("0 bytes were written"), std::string::npos) << error.what();
}

TEST_F(DeviceWriteTest, InterruptedCallsAreRepeated) {
  for (const int error : {EINTR, EAGAIN}) {
    make(300 * 1024 + 5);
    const std::uint64_t before = write_count();
    for (const std::uint64_t nth : {1U, 2U, 3U, 6U}) (*fake_)->fail("cuFileWrite", nth, error);
    write();
    EXPECT_EQ(write_count() - before, 6U + 4U) << "five slots, of which the last has a tail";
    expect_written();
  }
}

TEST_F(DeviceWriteTest, AFullDiskIsItsErrno) {
  make(300 * 1024);
  (*fake_)->fail("cuFileWrite", 3, ENOSPC);
  const Error error = write_error();
  EXPECT_EQ(error.code(), ErrorCode::storage_failed);
  EXPECT_EQ(error.system_error(), ENOSPC);
  const std::uint64_t start = margin_bytes + 2 * 64 * 1024;
  for (const std::string& part :
       {path_, std::to_string(start), std::string("cuFileWrite"), std::string("No space left on device")})
    EXPECT_TRUE(has(error.what(), part)) << part << " is not in: " << error.what();
}

TEST_F(DeviceWriteTest, EveryErrnoIsKept) {
  for (const int code : {EIO, EDQUOT, EFBIG, EROFS, EBADF}) {
    make(block_bytes);
    (*fake_)->fail("cuFileWrite", 1, code);
    EXPECT_EQ(write_error().system_error(), code);
  }
}

TEST_F(DeviceWriteTest, ACodeOfCufileIsNamedAndIsNoErrno) {
  for (const int code : {5030, 5017, 5008}) {
    make(block_bytes);
    (*fake_)->fail("cuFileWrite", 1, code);
    const Error error = write_error();
    EXPECT_EQ(error.code(), ErrorCode::storage_failed);
    EXPECT_EQ(error.system_error(), 0);
    EXPECT_TRUE(has(error.what(), "(" + std::to_string(code) + ")")) << error.what();
    EXPECT_TRUE(has(error.what(), "CU_FILE_")) << error.what();
  }
}

// What came before the failure stays, and the writer can go on.
TEST_F(DeviceWriteTest, AWriterIsUsableAfterAnError) {
  make(300 * 1024 + 5);
  (*fake_)->fail("cuFileWrite", 2, EIO);
  EXPECT_EQ(write_error().code(), ErrorCode::storage_failed);
  write();
  expect_written();
}

// Whoever has the error may free the source, which the copy of the next slot would still read.
TEST_F(DeviceWriteTest, AnErrorComesAfterTheLastCopy) {
  cuda_->set_delay_max(20'000);
  make(300 * 1024 + 5);
  (*fake_)->fail("cuFileWrite", 1, EIO);
  EXPECT_EQ(write_error().code(), ErrorCode::storage_failed);
  const std::uint64_t reached = stream_->reached();
  EXPECT_EQ(reached, stream_->record() - 1) << "a copy was under way";
}

TEST_F(DeviceWriteTest, ADescriptorForReadingOnly) {
  make(block_bytes);
  writer_ = nullptr;
  file_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  const auto ring = std::make_shared<const DeviceRing>(*gpu_, driver_, RingShape{block_bytes, 2});
  writer_ = std::make_unique<DeviceWriter>(*stream_, ring, file_.get(), path_);
  EXPECT_EQ(write_error().system_error(), EBADF);
}

TEST_F(DeviceWriteTest, AFileThatCufileRefuses) {
  make(block_bytes);
  const auto ring = std::make_shared<const DeviceRing>(*gpu_, driver_, RingShape{block_bytes, 2});
  const UniqueFd buffered(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  try {
    const DeviceWriter refused(*stream_, ring, buffered.get(), path_);
    FAIL() << "compat mode is forbidden";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment_unfit);
    EXPECT_TRUE(has(error.what(), "5008")) << error.what();
  }
}

TEST_F(DeviceWriteTest, SyncOfAClosedDescriptor) {
  make(block_bytes);
  const int kept = ::dup(file_.get());
  ::close(file_.get());
  try {
    writer_->sync();
    ADD_FAILURE() << "durable on what?";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::storage_failed);
    EXPECT_EQ(error.system_error(), EBADF);
    EXPECT_TRUE(has(error.what(), path_ + ": fsync: ")) << error.what();
  }
  ::dup3(kept, file_.get(), O_CLOEXEC);  // as it was when cuFile learnt of it
  ::close(kept);
}

// A device that fails to copy: the file keeps what it had there.
TEST_F(DeviceWriteTest, AFailedCopyIsADeviceError) {
  make(block_bytes);
  cuda_->fail("cuMemcpyDtoDAsync", 1, CuResult::launch_failed);
  EXPECT_EQ(write_error().code(), ErrorCode::device_failed);
  EXPECT_EQ(write_count(), 0U);
}

}  // namespace
}  // namespace inrush::engine
