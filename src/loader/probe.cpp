#include "loader/probe.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "loader/probe_cache.hpp"
#include "loader/probe_child.hpp"
#include "plan/choices.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>
#include <boost/json.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace inrush::engine {

namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr std::string_view program_name = "inrush-probe";
constexpr std::size_t quoted_bytes_max = 400;
// A shorter read says little about the storage, and must not steer loads.
constexpr std::uint64_t timed_bytes_min = 16ULL << 20;

Error system_failure(const std::string& what, int error) {
  return {ErrorCode::storage_failed, fmt::format("probe: {}: {}", what, errno_text(error)), error};
}

// The child's working folder and its cufile.json: gone with this.
class PrivateFolder {
 public:
  PrivateFolder() {
    std::error_code error;
    const fs::path parent = fs::temp_directory_path(error);
    path_ = ((error ? fs::path("/tmp") : parent) / "inrush-probe-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) throw system_failure("create " + printable(path_), errno);
  }
  ~PrivateFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  std::string write(const std::string& name, std::string_view text) const {
    std::string path = path_ + "/" + name;
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file.is_open() || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw system_failure("write " + printable(path), errno);
    return path;
  }

 private:
  std::string path_;
};

// The last words as they fit into one line of a message.
std::string quoted(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() > quoted_bytes_max) text.erase(0, text.size() - quoted_bytes_max);
  std::string line;
  for (const char letter : text) line += letter == '\n' ? std::string("; ") : std::string(1, letter);
  return "\"" + printable(line, 2 * quoted_bytes_max) + "\"";
}

// What a child measured.
struct Measurement {
  ProbeCandidate candidate;
  std::uint64_t timed_bytes = 0;
  std::string error_code;
};

// inrush-probe writes one line; nothing where this is none.
std::optional<Measurement> parse_line(std::string_view output, const std::string& path) {
  while (output.ends_with('\n')) output.remove_suffix(1);
  const std::size_t before = output.rfind('\n');
  const std::string_view line = before == std::string_view::npos ? output : output.substr(before + 1);
  try {
    const json::value value = json::parse(json::string_view(line.data(), line.size()));
    const json::object& object = value.as_object();
    Measurement measured{candidate_from_json(object), object.at("timed_bytes").to_number<std::uint64_t>(),
                         std::string(std::string_view(object.at("error_code").as_string()))};
    if (measured.candidate.path == path) return measured;
  } catch (const std::exception&) {  // not JSON, or a field that is absent or of another kind
  }
  return std::nullopt;
}

std::string end_text(const ChildEnd& end, const ProbeOptions& options) {
  switch (end.kind) {
    case ChildEnd::Kind::timed_out:
      return fmt::format("did not come back within {:.3g} s{}",
                         std::chrono::duration<double>(options.timeout).count(),
                         end.was_left_behind ? ", and the kernel does not let it die" : "");
    case ChildEnd::Kind::signalled:
      return fmt::format("ended by signal {} ({})", end.value, ::strsignal(end.value));
    case ChildEnd::Kind::exited:
      if (end.value != 0) return fmt::format("ended with exit code {}", end.value);
      break;
    case ChildEnd::Kind::unknown:
      break;
  }
  return "";
}

Measurement judge(const ChildEnd& end, const std::string& path, const ProbeOptions& options) {
  const std::optional<Measurement> measured =
      parse_line(end.output, path);  // also of one that hung afterwards
  std::string reason = end_text(end, options);
  // What a child found unusable stays so however it ended; one that dies after a success would take a program
  // along in the same way.
  if (measured && (reason.empty() || !measured->candidate.usable)) return *measured;
  if (measured) reason = "every byte came, and then it " + reason;
  if (reason.empty())
    reason = end.output.empty() ? "said nothing" : "said what is no result: " + quoted(end.output);
  if (!end.errors.empty()) reason += "; its last words: " + quoted(end.errors);
  Measurement failed;
  failed.candidate.path = path;
  failed.candidate.reason = fmt::format("the probe {}", reason);
  return failed;
}

std::string absolute_library(const std::string& library) {
  if (library.find('/') == std::string::npos) return library;  // a name for the dynamic linker
  std::error_code error;
  const fs::path path = fs::absolute(library, error);
  return error ? library : path.string();
}

// Without our own settings: a probe measures what its arguments say.
std::vector<std::string> child_environment() {
  std::vector<std::string> kept;
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("INRUSH_")) kept.emplace_back(*variable);
  }
  return kept;
}

void use_configuration(ChildSetup& setup, const std::string& file) {
  constexpr std::string_view variable = "CUFILE_ENV_PATH_JSON=";
  std::erase_if(setup.environment, [&](const std::string& entry) { return entry.starts_with(variable); });
  setup.environment.push_back(std::string(variable) + file);
}

bool is_program(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

// Of the library, module or program that this function is part of.
std::string own_module_path() {
  Dl_info info{};
  link_map* map = nullptr;
  const int found = ::dladdr1(reinterpret_cast<const void*>(&own_module_path), &info,
                              reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP);
  std::error_code error;
  // A program is known by argv[0] there, which may be any word.
  const bool is_library = found != 0 && map != nullptr && map->l_name != nullptr && map->l_name[0] != '\0';
  const fs::path path = fs::canonical(is_library ? map->l_name : "/proc/self/exe", error);
  return error ? "" : path.string();
}

std::string find_program(const ProbeOptions& options) {
  if (!options.program.empty()) {
    std::error_code error;
    const fs::path path = fs::absolute(options.program, error);
    if (!error && is_program(path.string())) return path.string();
    throw Error(ErrorCode::environment_unfit,
                fmt::format("probe: {} is no program", printable(options.program, PATH_MAX)));
  }
  std::vector<std::string> places = probe_program_places(own_module_path());
  const auto found = std::find_if(places.begin(), places.end(), is_program);
  if (found != places.end()) return *found;
  for (std::string& place : places) place = printable(place, PATH_MAX);
  throw Error(ErrorCode::environment_unfit,
              fmt::format("probe: the program {} is part of the installation and is missing; looked for {}",
                          program_name, fmt::join(places, ", ")));
}

struct ProbedFile {
  std::string path;
  std::uint64_t size_bytes = 0;
};

ProbedFile largest_file(const std::string& path, const ProbeOptions& options) {
  DiscoverOptions discovery;
  discovery.interrupted = options.interrupted;
  const Checkpoint checkpoint = discover(path, discovery);
  ProbedFile largest;
  for (const CheckpointFile& file : checkpoint.files()) {
    if (largest.path.empty() || file.identity.size_bytes > largest.size_bytes)
      largest = {file.path, file.identity.size_bytes};
  }
  return largest;
}

ProbedFile probed_file(const std::string& path, const ProbeOptions& options) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    const int error = errno;
    const bool is_absent = error == ENOENT || error == ENOTDIR || error == EACCES;
    throw Error(is_absent ? ErrorCode::not_found : ErrorCode::storage_failed, errno_text(error), error);
  }
  ProbedFile file{path, static_cast<std::uint64_t>(status.st_size)};
  if (S_ISDIR(status.st_mode) || path.ends_with(".index.json")) {
    file = largest_file(path, options);
  } else if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::invalid_request, "neither a regular file nor a folder");
  }
  if (file.size_bytes == 0)
    throw Error(ErrorCode::invalid_request, "there are no bytes in it to measure with");
  std::error_code error;
  const fs::path absolute = fs::absolute(file.path, error);  // the child has another working folder
  if (!error) file.path = absolute.string();
  return file;
}

PathPreference preference_of(std::string_view path) {
  return path == "gds"             ? PathPreference::gds
         : path == "cufile-compat" ? PathPreference::cufile_compat
                                   : PathPreference::staged;
}

std::vector<Measurement> measure_all(const ProbeTask& task, const ProbeOptions& options,
                                     const ProbeReport& report, const std::string& cufile_library) {
  const std::string program = find_program(options);
  const PrivateFolder folder;
  std::vector<Measurement> measurements;
  for (const std::string path : {"staged", "gds", "cufile-compat"}) {
    ChildSetup setup{{program, report.file, path, device_name(task.device), std::to_string(report.bytes),
                      absolute_library(task.cuda_library), cufile_library},
                     child_environment(),
                     folder.path()};
    const PathPreference preference = preference_of(path);
    if (preference != PathPreference::staged) {
      if (task.device.kind == DeviceKind::cpu) break;  // cuFile reads into GPU memory
      use_configuration(setup, folder.write(path + ".json", cufile_configuration(preference, folder.path())));
    }
    measurements.push_back(judge(run_child(std::move(setup), options), path, options));
  }
  return measurements;
}

// What a load would choose from now on, by the rule of loads.
void choose(ProbeReport& report) {
  Machine machine;
  for (const ProbeCandidate& candidate : report.candidates) {
    machine.paths.push_back({.name = candidate.path,
                             .usable = candidate.usable,
                             .reason = candidate.reason,
                             .measured_bytes_per_second = candidate.bytes_per_second,
                             .measured_cpu_seconds_per_gb = candidate.cpu_seconds_per_gb});
  }
  try {
    PathDecision decision = choose_path(PathPreference::automatic, machine);
    report.chosen = std::move(decision.name);
    report.rule = std::move(decision.rule);
  } catch (const Error& error) {
    report.rule = error.what();
  }
}

// Why these must not steer loads; empty where they may.
std::string why_not_kept(const ProbeTask& task, const std::vector<Measurement>& measurements) {
  if (task.device.kind == DeviceKind::cpu) return "one path leads to the CPU: there is nothing to choose";
  if (task.state_folder.empty()) return "there is no state folder (INRUSH_STATE)";
  const auto is_wrong = [](const Measurement& measured) { return measured.candidate.wrong_bytes; };
  if (std::any_of(measurements.begin(), measurements.end(), is_wrong)) return "";  // nobody else must try
  for (const Measurement& measured : measurements) {
    if (measured.error_code == error_code_name(ErrorCode::out_of_memory))
      return fmt::format("memory ran out for {}; probe with fewer bytes", measured.candidate.path);
  }
  if (!measurements.front().candidate.usable) return "the path that all others are compared with failed";
  if (measurements.front().timed_bytes >= timed_bytes_min) return "";
  return fmt::format("{} in one read say little; probe a larger file",
                     bytes_text(measurements.front().timed_bytes));
}

void keep(const ProbeTask& task, const std::string& cufile, ProbeReport& report) {
  const ProbePlace place{report.file, task.device.uuid, task.driver, task.cufile_library, task.state_folder};
  std::optional<ProbeKey> key = probe_key(place);
  if (!key) {
    report.why_not_cached = "the file system cannot be told";
    return;
  }
  key->cufile = cufile;
  const std::string date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  try {
    report.cached_in = write_probe_result(task.state_folder, {*key, date, report.candidates});
  } catch (const Error& error) {
    report.why_not_cached = error.what();
  }
}

}  // namespace

std::vector<std::string> probe_program_places(const std::string& module_path) {
  const fs::path folder = fs::path(module_path).parent_path();
  std::vector<fs::path> places = {
      folder / program_name,  // the build's folder, and the Python package
      folder.parent_path() / "libexec" / "inrush" / program_name,
      folder.parent_path().parent_path() / "libexec" / "inrush" / program_name};  // of lib/<triplet>
  // A wheel's command is in bin/, and its package in one of these.
  std::error_code ignored;
  const fs::path libraries = folder.parent_path() / "lib";
  for (fs::directory_iterator entry(libraries, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (!entry->path().filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"})
      places.push_back(entry->path() / packages / "inrush" / program_name);
  }
  std::vector<std::string> texts;
  for (const fs::path& place : places) texts.push_back(place.string());
  return texts;
}

ProbeReport run_probe(const ProbeTask& task, const ProbeOptions& options) {
  if (options.bytes == 0 || options.timeout.count() <= 0)
    throw Error(ErrorCode::invalid_request, "probe: bytes and timeout must be more than 0");
  ProbedFile file;
  try {
    file = probed_file(task.path, options);
  } catch (const Error& error) {
    throw error.within("probe " + printable(task.path, PATH_MAX));
  }
  ProbeReport report;
  report.device = task.device;
  report.bytes = std::min(file.size_bytes, options.bytes);
  report.file_system = file_system_text(file.path);
  report.file = std::move(file.path);
  // The same library for all: the one that loads of this process use.
  const bool is_gpu = task.device.kind != DeviceKind::cpu;
  const CufileIdentity cufile = is_gpu ? find_cufile(task.cufile_library) : CufileIdentity{};
  const std::vector<Measurement> measurements = measure_all(
      task, options, report, cufile.path.empty() ? absolute_library(task.cufile_library) : cufile.path);
  for (const Measurement& measured : measurements) report.candidates.push_back(measured.candidate);
  choose(report);
  report.why_not_cached = why_not_kept(task, measurements);
  if (report.why_not_cached.empty()) keep(task, cufile.text, report);
  return report;
}

}  // namespace inrush::engine
