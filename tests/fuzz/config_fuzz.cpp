// Any text as the configuration file is refused with a message that names it, or gives settings within their
// bounds.
#include <inrush/error.hpp>
#include <inrush/loader.hpp>

#include "fuzz/require.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace inrush::fuzz {

namespace {

// A file in memory, under the name that INRUSH_CONFIG says.
class ConfigFile {
 public:
  ConfigFile() : descriptor_(::memfd_create("config", MFD_CLOEXEC)) {
    require(descriptor_ >= 0, "memfd_create");
    path_ = "/proc/self/fd/" + std::to_string(descriptor_);
    ::clearenv();
    ::setenv("INRUSH_CONFIG", path_.c_str(), 1);
  }

  void write(const std::uint8_t* data, std::size_t size) const {
    require(::ftruncate(descriptor_, 0) == 0, "ftruncate");
    require(::pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size), "pwrite");
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  int descriptor_;
  std::string path_;
};

void require_bounds(const LoaderOptions& options) {
  require(options.reader_count_max >= 1 && options.reader_count_max <= 1024, "readers");
  require(options.piece_bytes_max >= 4096 && options.piece_bytes_max <= 1U << 30, "piece_bytes");
  require(options.piece_bytes_max % 4096 == 0, "piece_bytes are whole units");
  require(options.staging_bytes_max >= 1U << 20 && options.staging_bytes_max <= 1ULL << 40, "staging_bytes");
  require(options.loading_process_count <= 4096, "processes");
}

}  // namespace

}  // namespace inrush::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace inrush;
  static const fuzz::ConfigFile file;
  file.write(data, size);
  LoaderOptions options;
  try {
    options = options_from_environment();
  } catch (const Error& error) {
    fuzz::require(error.code() == ErrorCode::invalid_request, "what is refused is a bad request");
    fuzz::require(std::string_view(error.what()).find(file.path()) != std::string_view::npos, "it is named");
    return 0;
  }
  fuzz::require_bounds(options);
  fuzz::require(!settings_from_environment().empty(), "what was taken can be shown");
  return 0;
}
