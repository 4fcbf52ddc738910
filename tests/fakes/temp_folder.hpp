// A folder of one test's own, removed with everything in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace inrush::fakes {

class TempFolder {
 public:
  // Beneath the system's folder for temporary files, or `parent`.
  explicit TempFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string pattern = (parent / "inrush-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // Makes missing folders on the way. Returns the path.
  std::string write(const std::string& name, std::span<const std::byte> bytes) const {
    const std::string file = *this / name;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    out.flush();
    if (!out) throw std::runtime_error("write " + file);
    return file;
  }
  std::string write(const std::string& name, const std::string& text) const {
    return write(name, std::as_bytes(std::span(text)));
  }

 private:
  std::string path_;
};

// Bytes that differ from place to place, so that a shift or a swap shows.
inline std::vector<std::byte> patterned_bytes(std::uint64_t size_bytes, std::uint64_t seed = 1) {
  std::vector<std::byte> bytes(size_bytes);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (std::byte& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<std::byte>(state >> 32);
  }
  return bytes;
}

}  // namespace inrush::fakes
