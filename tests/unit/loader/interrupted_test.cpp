// LoadRequest::interrupted: how often, where and on which thread it is asked, and how it ends a load. What a
// test counts is reached by waiting for it: where it is not asked, the test never ends.
#include <inrush/loader.hpp>

#include "checkpoint/discover.hpp"
#include "fakes/memory_store.hpp"
#include "fakes/safetensors_text.hpp"
#include "loader/load_impl.hpp"
#include "unit/loader/loader_fixture.hpp"

#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace inrush {
namespace {

using namespace fakes;
using namespace std::chrono_literals;
using tests::LoaderTest;
using tests::mib;

// What Python throws through us: no Error.
struct KeyboardInterrupt {
  int signal = 0;
};

class InterruptedTest : public LoaderTest {
 protected:
  Checkpoint write_shards(int count) {
    for (int i = 0; i < count; ++i) {
      const std::string name = "t" + std::to_string(i);
      contents_.merge(write_safetensors(folder_ / (name + ".safetensors"), {{name, DType::u8, {3000}}},
                                        static_cast<std::uint64_t>(i)));
    }
    return discover(folder_.path());
  }
};

TEST_P(InterruptedTest, IsAskedForEachFileAndSlabOnTheCallersThread) {
  const Checkpoint checkpoint = write_shards(7);
  LoadRequest asking = request();
  asking.window_bytes_max = 16'000;  // slabs of one tensor
  const std::thread::id caller = std::this_thread::get_id();
  std::uint64_t asked_count = 0;
  Loader loader(options());
  asking.interrupted = [&] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(loader.devices().size(), 3U) << "no lock of the Loader's is held";
    ++asked_count;
    return false;
  };
  const auto load = loader.start(checkpoint, asking);
  EXPECT_GE(asked_count, 7U + 4U) << "seven files, and the slabs that the window has room for";
  EXPECT_EQ(take_all(*load).size(), 7U);
  EXPECT_GE(asked_count, 14U);
}

TEST_P(InterruptedTest, TrueEndsAStart) {
  const Checkpoint checkpoint = write_shards(7);
  Loader loader(options());
  for (std::uint64_t nth = 1; nth <= 8; ++nth) {
    LoadRequest asking = request();
    std::uint64_t asked_count = 0;
    asking.interrupted = [&] { return ++asked_count == nth; };
    try {
      static_cast<void>(loader.start(checkpoint, asking));
      ADD_FAILURE() << nth;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::cancelled);
      EXPECT_EQ(std::string(error.what()),
                "load " + folder_.path() + ": the call was cancelled: `interrupted` said so");
    }
    EXPECT_EQ(asked_count, nth);
  }
  EXPECT_EQ(take_all(*loader.start(checkpoint, request())).size(), 7U) << "the Loader is as good as new";
}

TEST_P(InterruptedTest, WhatItThrowsPassesThroughAStart) {
  const Checkpoint checkpoint = write_shards(3);
  Loader loader(options());
  for (std::uint64_t nth = 1; nth <= 4; ++nth) {
    LoadRequest asking = request();
    std::uint64_t asked_count = 0;
    asking.interrupted = [&]() -> bool {
      if (++asked_count == nth) throw KeyboardInterrupt{2};
      return false;
    };
    EXPECT_THROW(static_cast<void>(loader.start(checkpoint, asking)), KeyboardInterrupt);
  }
}

// A consumer that takes what is there never waits, and is asked by the clock all the same.
TEST_P(InterruptedTest, IsAskedAlsoWhereNothingIsWaitedFor) {
  const Checkpoint checkpoint = write_shards(3);
  LoadRequest asking = request();
  bool is_wanted = false;
  asking.interrupted = [&] { return is_wanted; };
  Loader loader(options());
  const auto load = loader.start(checkpoint, asking);
  while (load->progress().loaded_bytes < 9000) std::this_thread::yield();
  EXPECT_TRUE(load->next());
  is_wanted = true;
  EXPECT_EQ(code_of([&] {
              while (true) static_cast<void>(load->next());
            }),
            ErrorCode::cancelled);
}

INSTANTIATE_TEST_SUITE_P(Devices, InterruptedTest, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         [](const auto& tested) {
                           return tested.param == DeviceKind::cpu ? "Cpu" : "FakeCuda";
                         });

// Reads of data block until the gate opens; headers pass. Shared, since a read that was left behind may come
// out of it after the test.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

class GatedFile final : public engine::File {
 public:
  GatedFile(std::shared_ptr<engine::File> inner, std::shared_ptr<Gate> gate)
      : inner_(std::move(inner)), gate_(std::move(gate)) {}

  [[nodiscard]] const std::string& path() const noexcept override { return inner_->path(); }
  [[nodiscard]] engine::FileStatus status() const override { return inner_->status(); }
  [[nodiscard]] engine::ReadOutcome read(engine::ReadMode mode, std::uint64_t offset,
                                         std::span<std::byte> target) const noexcept override {
    if (offset > 0) gate_->wait();
    return inner_->read(mode, offset, target);
  }
  [[nodiscard]] int descriptor(engine::ReadMode mode) const noexcept override {
    return inner_->descriptor(mode);
  }
  [[nodiscard]] std::uint32_t direct_alignment_bytes() const noexcept override { return 0; }
  [[nodiscard]] std::string direct_refusal() const override { return inner_->direct_refusal(); }
  [[nodiscard]] bool is_resident(engine::ByteRange) const noexcept override { return true; }

 private:
  const std::shared_ptr<engine::File> inner_;
  const std::shared_ptr<Gate> gate_;
};

class GatedStore final : public engine::Store {
 public:
  GatedStore(const MemoryStore& inner, std::shared_ptr<Gate> gate) : inner_(inner), gate_(std::move(gate)) {}

  [[nodiscard]] std::vector<engine::ListedFile> list(const std::string& folder) const override {
    return inner_.list(folder);
  }
  [[nodiscard]] std::shared_ptr<engine::File> open(const std::string& path) const override {
    return std::make_shared<GatedFile>(inner_.open(path), gate_);
  }
  [[nodiscard]] std::shared_ptr<engine::File> open_beneath(const std::string& folder, const std::string& name,
                                                           LinkPolicy links) const override {
    return inner_.open_beneath(folder, name, links);
  }

 private:
  const MemoryStore& inner_;
  const std::shared_ptr<Gate> gate_;
};

// A load of "a" and "b" into targets whose bytes do not come before the gate is opened: next() and get() wait
// without limit.
class WaitingLoadTest : public testing::Test {
 protected:
  WaitingLoadTest() {
    files_.set("m.safetensors", one_byte_tensors(std::array{"a", "b"}));
    checkpoint_ = engine::discover_in(files_, "m.safetensors", {});
    request_.targets.by_name = {{"a", {&bytes_[1], 1}}, {"b", {&bytes_[3], 1}}};
  }
  ~WaitingLoadTest() override { gate_->open(); }

  engine::LoadImpl& start(std::function<bool()> interrupted) {
    request_.interrupted = std::move(interrupted);
    Machine machine;
    machine.devices = {Device{}};
    machine.paths = {{"staged", true, "", 0}};
    load_ = std::make_unique<engine::LoadImpl>(
        engine::LoadParts{.checkpoint = checkpoint_,
                          .request = request_,
                          .plan = make_plan(checkpoint_, request_, machine),
                          .gpu = engine::open_host_gpu(),
                          .store = std::make_shared<GatedStore>(files_, gate_),
                          .pool = std::make_shared<engine::StagingPool>(64 * mib),
                          .io_uring = IoUring::off,
                          .log = {},
                          .start = engine::Clock::now()});
    load_->begin();
    return *load_;
  }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  MemoryStore files_;
  std::array<char, 5> bytes_ = {};
  Checkpoint checkpoint_;
  LoadRequest request_;
  std::unique_ptr<engine::LoadImpl> load_;
};

TEST_F(WaitingLoadTest, AWaitOfNextAsksAgainAndAgain) {
  std::uint64_t asked_count = 0;
  engine::LoadImpl& load = start([&] {
    if (++asked_count == 6) gate_->open();
    return false;
  });
  EXPECT_TRUE(load.next());
  EXPECT_GE(asked_count, 6U);
  EXPECT_TRUE(load.next());
  EXPECT_EQ(bytes_[1], 1);
  EXPECT_EQ(bytes_[3], 8);
}

TEST_F(WaitingLoadTest, AWaitOfGetAsksAgainAndAgain) {
  std::uint64_t asked_count = 0;
  engine::LoadImpl& load = start([&] {
    if (++asked_count == 6) gate_->open();
    return false;
  });
  EXPECT_EQ(load.get("b").data, &bytes_[3]);
  EXPECT_GE(asked_count, 6U);
}

TEST_F(WaitingLoadTest, NextForAsksToo) {
  bool is_asked = false;
  engine::LoadImpl& load = start([&] {
    is_asked = true;
    return false;
  });
  is_asked = false;
  while (!is_asked) EXPECT_FALSE(load.next_for(1ms));
  EXPECT_FALSE(load.done());
}

TEST_F(WaitingLoadTest, TrueEndsTheLoadAsACancelDoes) {
  std::uint64_t asked_count = 0;
  engine::LoadImpl& load = start([&] { return ++asked_count == 4; });
  for (int i = 0; i < 2; ++i) {
    try {
      static_cast<void>(i == 0 ? load.get("b") : *load.next());
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::cancelled);
    }
  }
  EXPECT_FALSE(load.report().complete);
  EXPECT_EQ(load.report().overwritten_targets, (std::vector<std::string>{"a", "b"}))
      << "their piece was under way";
}

TEST_F(WaitingLoadTest, WhatItThrowsEndsTheLoad) {
  std::uint64_t asked_count = 0;
  engine::LoadImpl& load = start([&]() -> bool {
    if (++asked_count >= 4) throw KeyboardInterrupt{2};
    return false;
  });
  EXPECT_THROW(static_cast<void>(load.next()), KeyboardInterrupt);
  EXPECT_THROW(static_cast<void>(load.next()), KeyboardInterrupt);
  gate_->open();
  EXPECT_THROW(static_cast<void>(load.get("a")), KeyboardInterrupt);
  EXPECT_EQ(bytes_[1], 0) << "nothing is written once next() has thrown";
}

// Each of these takes a lock of the load's: asked under one of them, it would wait for itself.
TEST_F(WaitingLoadTest, NoLockIsHeldWhileItIsAsked) {
  std::uint64_t asked_count = 0;
  engine::LoadImpl& load = start([&] {
    if (load_ != nullptr) {
      EXPECT_EQ(load_->progress().loaded_bytes, 0U);
      EXPECT_FALSE(load_->done());
      EXPECT_EQ(load_->report().planned_bytes, load_->plan().loaded_bytes);
    }
    if (++asked_count == 6) load_->cancel();
    return false;
  });
  EXPECT_THROW(static_cast<void>(load.next()), Error);
}

}  // namespace
}  // namespace inrush
