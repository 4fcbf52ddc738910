#include "transfer/window_reads.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "storage/map_pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace inrush::engine {

// Each slot belongs to one read at a time; what they share is guarded.
class WindowReads::Windows {
 public:
  Windows(std::shared_ptr<Gpu> gpu, RingShape shape, Populate populate)
      : gpu_(std::move(gpu)),
        shape_(shape),
        populate_(populate),
        space_(shape.slot_bytes * shape.slot_count),
        pins_(shape.slot_count) {}

  [[nodiscard]] std::span<std::byte> slot(std::uint32_t index) const noexcept {
    return space_.bytes().subspan(index * shape_.slot_bytes, shape_.slot_bytes);
  }

  // What the slot had before is let go of here, on the reader's thread: that takes as long as registering.
  [[nodiscard]] ReadOutcome fill(int fd, std::uint64_t offset, std::span<std::byte> window) noexcept {
    const auto index = static_cast<std::size_t>(window.data() - space_.bytes().data()) / shape_.slot_bytes;
    unpin(index);
    const MappedPages pages = map_pages(fd, offset, window, populate_);
    if (pages.error != 0 || pages.size_bytes == 0) return {0, pages.error};
    return pin(index, window) ? ReadOutcome{pages.size_bytes, 0} : ReadOutcome{0, ENOLCK};
  }

  [[nodiscard]] std::string pin_refusal() const {
    const std::lock_guard lock(mutex_);
    return pin_refusal_;
  }
  [[nodiscard]] std::uint64_t peak_bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    return peak_bytes_;
  }

 private:
  struct Pin {
    std::shared_ptr<void> registration;
    std::uint64_t bytes = 0;
  };

  void unpin(std::size_t index) noexcept {
    pins_[index].registration = nullptr;
    const std::lock_guard lock(mutex_);
    pinned_bytes_ -= std::exchange(pins_[index].bytes, 0);
  }

  bool pin(std::size_t index, std::span<std::byte> window) noexcept {
    try {
      std::string refusal;
      std::shared_ptr<void> registration = gpu_->pin_read_only(window, refusal);
      const std::lock_guard lock(mutex_);
      if (registration == nullptr) {
        pin_refusal_ = std::move(refusal);
        return false;
      }
      pins_[index] = {std::move(registration), window.size()};
      pinned_bytes_ += window.size();
      peak_bytes_ = std::max(peak_bytes_, pinned_bytes_);
      return true;
    } catch (const Error& error) {
      return refuse(error.what());
    } catch (const std::exception&) {  // no memory for a word
      return false;
    }
  }

  bool refuse(const char* reason) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      pin_refusal_ = reason;
    } catch (const std::bad_alloc&) {
    }
    return false;
  }

  const std::shared_ptr<Gpu> gpu_;
  const RingShape shape_;
  const Populate populate_;
  const AddressSpace space_;
  std::vector<Pin> pins_;  // by slot; gone before the address space
  mutable std::mutex mutex_;
  std::string pin_refusal_;
  std::uint64_t pinned_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
};

namespace {

// Reads by ReadMode::mapped fill a window; all else is what the file itself says and does.
class WindowFile final : public File {
 public:
  WindowFile(std::shared_ptr<const File> file, std::shared_ptr<WindowReads::Windows> windows)
      : file_(std::move(file)), windows_(std::move(windows)) {}

  [[nodiscard]] const std::string& path() const noexcept override { return file_->path(); }
  [[nodiscard]] FileStatus status() const override { return file_->status(); }
  [[nodiscard]] ReadOutcome read(ReadMode mode, std::uint64_t offset,
                                 std::span<std::byte> target) const noexcept override {
    if (mode != ReadMode::mapped) return file_->read(mode, offset, target);
    return windows_->fill(file_->descriptor(ReadMode::buffered), offset, target);
  }
  [[nodiscard]] int descriptor(ReadMode mode) const noexcept override {
    return mode == ReadMode::mapped ? -1 : file_->descriptor(mode);
  }
  [[nodiscard]] std::uint32_t direct_alignment_bytes() const noexcept override {
    return file_->direct_alignment_bytes();
  }
  [[nodiscard]] std::string direct_refusal() const override { return file_->direct_refusal(); }
  [[nodiscard]] bool is_resident(ByteRange range) const noexcept override {
    return file_->is_resident(range);
  }

 private:
  const std::shared_ptr<const File> file_;
  const std::shared_ptr<WindowReads::Windows> windows_;
};

}  // namespace

WindowReads::WindowReads(std::shared_ptr<Gpu> gpu, RingShape shape, Populate populate)
    : shape_(shape), windows_(std::make_shared<Windows>(std::move(gpu), shape, populate)) {}

std::span<std::byte> WindowReads::slot(std::uint32_t index) const noexcept { return windows_->slot(index); }

std::shared_ptr<void> WindowReads::owner() const { return windows_; }

std::shared_ptr<const File> WindowReads::open(std::uint32_t index, const std::shared_ptr<const File>& file,
                                              ByteRange /*range*/) {
  std::weak_ptr<const File>& known = files_[index];
  if (std::shared_ptr<const File> open = known.lock()) return open;
  if (file->descriptor(ReadMode::buffered) < 0)
    throw Error(ErrorCode::environment_unfit,
                fmt::format("{}: it has no descriptor of its own", printable(file->path())));
  const auto opened = std::make_shared<const WindowFile>(file, windows_);
  known = opened;
  return opened;
}

std::string WindowReads::error_text(int error) const {
  const std::string refusal = windows_->pin_refusal();
  return error == ENOLCK && !refusal.empty() ? refusal : errno_text(error);
}

std::uint64_t WindowReads::peak_bytes() const noexcept { return windows_->peak_bytes(); }

}  // namespace inrush::engine
