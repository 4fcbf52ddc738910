#include "loader/cufile_opening.hpp"

#include "base/engine_thread.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <utility>

namespace inrush::engine {

namespace {

constexpr auto close_patience = std::chrono::seconds(2);

}  // namespace

struct CufileOpening::Shared {
  std::shared_ptr<Gpu> gpu;
  CufileOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
  std::shared_ptr<CufileDriver> driver;
  std::optional<Error> failure;

  void open() noexcept {
    std::shared_ptr<CufileDriver> opened;
    std::optional<Error> error;
    try {
      opened = gpu->open_cufile(options);
    } catch (const Error& thrown) {
      error = thrown;
    } catch (const std::exception& thrown) {
      error.emplace(ErrorCode::out_of_memory, thrown.what());
    }
    const std::lock_guard lock(mutex);
    driver = std::move(opened);
    failure = std::move(error);
    is_done = true;
    changed.notify_all();
  }
};

CufileOpening::CufileOpening(std::shared_ptr<Gpu> gpu, CufileOptions options)
    : shared_(std::make_shared<Shared>()) {
  shared_->gpu = std::move(gpu);
  shared_->options = std::move(options);
  try {
    thread_ = start_engine_thread("inrush-cufile", [shared = shared_] { shared->open(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::out_of_memory, fmt::format("start a thread: {}", error.what()),
                error.code().value());
  }
}

CufileOpening::~CufileOpening() {
  if (wait_until(Clock::now() + close_patience)) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool CufileOpening::wait_until(Clock::time_point until) const {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_until(lock, until, [this] { return shared_->is_done; });
}

std::shared_ptr<CufileDriver> CufileOpening::driver() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->failure ? nullptr : shared_->driver;
}

std::optional<Error> CufileOpening::failure() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->failure;
}

void CufileOpening::condemn(const std::string& reason) {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->failure) shared_->failure.emplace(ErrorCode::environment_unfit, reason);
}

}  // namespace inrush::engine
