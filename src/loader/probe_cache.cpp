#include "loader/probe_cache.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "gpu/cufile_library.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <boost/json.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

namespace inrush::engine {

namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

// A result of another number is not read.
constexpr std::uint64_t result_schema_version = 1;
// Of any file that is read here; a cufile.json has a few KiB.
constexpr std::size_t text_bytes_max = 1U << 20;

struct FileSystemName {
  std::uint64_t type = 0;
  std::string_view name;
};

// Values of statfs(2).
constexpr std::array<FileSystemName, 13> file_system_names = {{{0xEF53, "ext4"},
                                                               {0x58465342, "xfs"},
                                                               {0x9123683E, "btrfs"},
                                                               {0xF2F52010, "f2fs"},
                                                               {0x2FC12FC1, "zfs"},
                                                               {0x01021994, "tmpfs"},
                                                               {0x794C7630, "overlay"},
                                                               {0x6969, "nfs"},
                                                               {0x65735546, "fuse"},
                                                               {0x0BD00BD0, "lustre"},
                                                               {0x00C36400, "ceph"},
                                                               {0x47504653, "gpfs"},
                                                               {0x73717368, "squashfs"}}};

struct FileSystem {
  std::uint64_t type = 0;
  std::uint64_t id = 0;
  dev_t device = 0;
};

std::optional<FileSystem> file_system_of(const std::string& path) {
  struct stat status = {};
  struct statfs system = {};
  if (::stat(path.c_str(), &status) != 0 || ::statfs(path.c_str(), &system) != 0) return std::nullopt;
  FileSystem found;
  found.type = static_cast<std::uint32_t>(system.f_type);
  static_assert(sizeof(found.id) == sizeof(system.f_fsid));
  std::memcpy(&found.id, &system.f_fsid, sizeof(found.id));
  found.device = status.st_dev;
  return found;
}

// Empty where it cannot be read, which is as good as absent here.
std::string read_text(const std::string& path) {
  // O_NONBLOCK: a FIFO in its place must not hang a load.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status = {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  std::string text(std::min(static_cast<std::size_t>(status.st_size), text_bytes_max), '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(file.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

// Files of /proc and /sys say a size of 0 or of a page.
std::string first_line(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text = {};
  const ssize_t count = file.is_open() ? ::read(file.get(), text.data(), text.size()) : 0;
  const std::string_view all(text.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return std::string(all.substr(0, all.find('\n')));
}

std::string hash_text(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// Whether it is what the command or a probe writes, wherever its log goes: results were measured with that.
bool is_ours(const std::string& configuration) {
  boost::system::error_code error;
  const json::value parsed = json::parse(configuration, error);
  if (error) return false;
  const json::value* const folder = parsed.find_pointer("/logging/dir", error);
  if (folder == nullptr || !folder->is_string()) return false;
  const std::string log_folder(std::string_view(folder->as_string()));
  return configuration == cufile_configuration(PathPreference::gds, log_folder) ||
         configuration == cufile_configuration(PathPreference::cufile_compat, log_folder);
}

// What decides how libcufile behaves in this process, beside what we ask of it.
std::string configuration_hash() {
  constexpr std::string_view path_variable = "CUFILE_ENV_PATH_JSON=";
  std::string path = "/etc/cufile.json";
  std::vector<std::string> variables;
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!text.starts_with("CUFILE_")) continue;
    if (text.starts_with(path_variable)) {
      const std::string named(text.substr(path_variable.size()));
      if (is_ours(read_text(named))) continue;
      path = named;
    }
    variables.emplace_back(text);
  }
  std::sort(variables.begin(), variables.end());
  std::string text = read_text(path);
  for (const std::string& variable : variables) text += '\0' + variable;
  return hash_text(text);
}

std::string kernel_release() {
  struct utsname name = {};
  return ::uname(&name) == 0 ? name.release : "";
}

std::string joined(const ProbeKey& key) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", key.file_system, key.gpu, key.driver, key.kernel,
                     key.configuration);
}

fs::path result_path(const std::string& state_folder, const ProbeKey& key) {
  return fs::path(state_folder) / "probes" / (hash_text(joined(key)) + ".json");
}

// JSON holds UTF-8 only.
json::object key_json(const ProbeKey& key) {
  return {{"file_system", key.file_system},     {"gpu", printable(key.gpu)},
          {"driver", printable(key.driver)},    {"kernel", printable(key.kernel)},
          {"configuration", key.configuration}, {"cufile", key.cufile}};
}

// The functions below throw what Boost.JSON throws where a field is absent or of another kind.
std::string text_of(const json::object& object, std::string_view key) {
  return std::string(std::string_view(object.at(key).as_string()));
}

// Texts of rows were made safe where they were written, so this changes what somebody else put there.
std::string safe_text_of(const json::object& object, std::string_view key) {
  std::string text = text_of(object, key);
  for (char& letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F) letter = '?';
  }
  return text;
}

double figure_of(const json::object& object, std::string_view key) {
  const double figure = object.at(key).to_number<double>();
  if (!std::isfinite(figure) || figure < 0) throw std::range_error("a figure that none is");
  return figure;
}

ProbeKey key_of(const json::object& object) {
  return {text_of(object, "file_system"), text_of(object, "gpu"),           text_of(object, "driver"),
          text_of(object, "kernel"),      text_of(object, "configuration"), text_of(object, "cufile")};
}

ProbeResult result_of(const std::string& text) {
  const json::value value = json::parse(text);
  const json::object& object = value.as_object();
  if (object.at("schema_version").to_number<std::uint64_t>() != result_schema_version)
    throw std::range_error("written by another version");
  ProbeResult result{key_of(object.at("key").as_object()), safe_text_of(object, "date"), {}};
  for (const json::value& candidate : object.at("candidates").as_array())
    result.candidates.push_back(candidate_from_json(candidate.as_object()));
  return result;
}

Error write_error(const std::string& what, const std::string& path, int error) {
  return {ErrorCode::storage_failed,
          fmt::format("{} {}: {}", what, printable(path, PATH_MAX), errno_text(error)), error};
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw write_error("write", path, errno);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

// Two probes may write the same result at once, and loads read it meanwhile: they see one of them whole.
void replace_file(const std::string& path, std::string_view text) {
  std::string temporary = path + ".XXXXXX";
  UniqueFd file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!file.is_open()) throw write_error("create", temporary, errno);
  try {
    write_all(file.get(), text, temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw write_error("rename", temporary, errno);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

// The result for `place`, if what it was measured with is still so.
std::optional<ProbeResult> result_at(const ProbePlace& place) {
  const std::optional<ProbeKey> key = probe_key(place);
  if (!key) return std::nullopt;
  std::optional<ProbeResult> result = read_probe_result(place.state_folder, *key);
  if (!result) return std::nullopt;
  return result->key.cufile == find_cufile(place.cufile_library).text ? result : std::nullopt;
}

void apply_candidate(const ProbeCandidate& candidate, const std::string& date, PathChoice& path) {
  if (candidate.usable) {
    path.measured_bytes_per_second = candidate.bytes_per_second;
    path.measured_cpu_seconds_per_gb = candidate.cpu_seconds_per_gb;
    if (path.name != "staged") path.reason = fmt::format("probed {}: {}", date, candidate.reason);
    return;
  }
  // What fails there fails in the load too, in its own words; wrong bytes do not.
  if (path.name == "staged" && !candidate.wrong_bytes) return;
  path.usable = false;
  path.reason = fmt::format("probed {}: {}; `inrush probe PATH` measures again", date, candidate.reason);
}

void say_not_measured(const ProbePlace& place, std::vector<PathChoice>& paths) {
  const auto gds =
      std::find_if(paths.begin(), paths.end(), [](const PathChoice& path) { return path.name == "gds"; });
  if (gds == paths.end()) return;
  gds->reason += place.state_folder.empty()
                     ? "; not measured: there is no state folder that results are kept in (INRUSH_STATE)"
                     : "; not measured on this file system: `inrush probe PATH` does";
}

}  // namespace

std::string file_system_text(const std::string& path) {
  const std::optional<FileSystem> found = file_system_of(path);
  if (!found) return "unknown";
  const auto name = std::find_if(file_system_names.begin(), file_system_names.end(),
                                 [&](const FileSystemName& entry) { return entry.type == found->type; });
  return fmt::format(
      "{}, device {}:{}",
      name != file_system_names.end() ? std::string(name->name) : fmt::format("type 0x{:x}", found->type),
      major(found->device), minor(found->device));
}

std::optional<ProbeKey> probe_key(const ProbePlace& place) {
  const std::optional<FileSystem> found = file_system_of(place.path);
  if (!found) return std::nullopt;
  const std::string module = first_line("/sys/module/nvidia/version");
  return ProbeKey{
      .file_system = fmt::format("device {}:{}, type 0x{:x}, id {:016x}", major(found->device),
                                 minor(found->device), found->type, found->id),
      .gpu = place.gpu,
      .driver = module.empty() ? place.driver : fmt::format("{}, kernel module {}", place.driver, module),
      .kernel = kernel_release(),
      .configuration = configuration_hash(),
      .cufile = {}};
}

CufileIdentity find_cufile(const std::string& cufile_library) {
  try {
    const CufileLibrary library = open_cufile_library(cufile_library);
    int version = 0;
    if (library.table.get_version(&version).code != 0) version = 0;
    return {library.path, fmt::format("{} {}", version, printable(library.path, PATH_MAX))};
  } catch (const Error&) {
    return {};
  }
}

json::object candidate_to_json(const ProbeCandidate& candidate) {
  return {{"path", candidate.path},
          {"usable", candidate.usable},
          {"wrong_bytes", candidate.wrong_bytes},
          {"reason", candidate.reason},
          {"way", candidate.way},
          {"bytes_per_second", candidate.bytes_per_second},
          {"cpu_seconds_per_gb", candidate.cpu_seconds_per_gb}};
}

ProbeCandidate candidate_from_json(const json::object& object) {
  ProbeCandidate candidate{.path = safe_text_of(object, "path"),
                           .usable = object.at("usable").as_bool(),
                           .wrong_bytes = object.at("wrong_bytes").as_bool(),
                           .reason = safe_text_of(object, "reason"),
                           .way = safe_text_of(object, "way"),
                           .bytes_per_second = figure_of(object, "bytes_per_second"),
                           .cpu_seconds_per_gb = figure_of(object, "cpu_seconds_per_gb")};
  if (candidate.usable && (candidate.wrong_bytes || candidate.bytes_per_second <= 0))
    throw std::range_error("usable, and wrong or not measured");
  return candidate;
}

std::string write_probe_result(const std::string& state_folder, const ProbeResult& result) {
  const fs::path path = result_path(state_folder, result.key);
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) throw write_error("create", path.parent_path().string(), error.value());
  json::array candidates;
  for (const ProbeCandidate& candidate : result.candidates)
    candidates.push_back(candidate_to_json(candidate));
  const json::object object = {{"schema_version", result_schema_version},
                               {"key", key_json(result.key)},
                               {"date", result.date},
                               {"candidates", candidates}};
  replace_file(path.string(), json::serialize(object) + "\n");
  return path.string();
}

std::optional<ProbeResult> read_probe_result(const std::string& state_folder, const ProbeKey& key) {
  const std::string text = read_text(result_path(state_folder, key).string());
  if (text.empty()) return std::nullopt;
  try {
    ProbeResult result = result_of(text);
    ProbeKey wanted = key_of(key_json(key));  // as it would have been written
    wanted.cufile = result.key.cufile;
    return result.key == wanted ? std::optional(std::move(result)) : std::nullopt;
  } catch (const std::exception&) {  // damaged, or somebody else's: as if it were not there
    return std::nullopt;
  }
}

void apply_probe_results(const ProbePlace& place, std::vector<PathChoice>& paths) {
  if (place.path.empty()) return;  // facts of the machine alone: no file system to speak of
  const std::optional<ProbeResult> result = place.state_folder.empty() ? std::nullopt : result_at(place);
  if (!result) {
    say_not_measured(place, paths);
    return;
  }
  for (const ProbeCandidate& candidate : result->candidates) {
    const auto path = std::find_if(paths.begin(), paths.end(),
                                   [&](const PathChoice& choice) { return choice.name == candidate.path; });
    if (path != paths.end()) apply_candidate(candidate, result->date, *path);
  }
}

}  // namespace inrush::engine
