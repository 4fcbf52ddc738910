// cuFile of one device while it is being opened, which takes up to a second, on a thread of its own: loads
// start without it. Shared by the Loader and its loads; any thread.
#pragma once

#include <inrush/error.hpp>

#include "base/clock.hpp"
#include "gpu/cufile_driver.hpp"
#include "gpu/gpu.hpp"

#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace inrush::engine {

class CufileOpening {
 public:
  // Throws out_of_memory where no thread can be started.
  CufileOpening(std::shared_ptr<Gpu> gpu, CufileOptions options);
  // A library that does not come back within two seconds is left behind with its thread.
  ~CufileOpening();
  CufileOpening(const CufileOpening&) = delete;
  CufileOpening& operator=(const CufileOpening&) = delete;

  // False if it is still being opened at `until`.
  [[nodiscard]] bool wait_until(Clock::time_point until) const;
  // Null while it is being opened, and for good where it cannot be used: failure() says why.
  [[nodiscard]] std::shared_ptr<CufileDriver> driver() const;
  [[nodiscard]] std::optional<Error> failure() const;
  // No load uses it from now on: it did not do what it had promised.
  void condemn(const std::string& reason);

 private:
  struct Shared;

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace inrush::engine
