// Results of probes, one JSON file each in <state folder>/probes, and what they say about the paths of a
// load. A result counts only for the file system, GPU, driver, kernel, libcufile and configuration that it
// was measured with. Any thread; files are written whole and renamed into place.
#pragma once

#include <inrush/loader.hpp>
#include <inrush/plan.hpp>

#include <boost/json/object.hpp>

#include <optional>
#include <string>
#include <vector>

namespace inrush::engine {

// What a result depends on, as text.
struct ProbeKey {
  std::string file_system;    // device number, type and id of the one that the path is on
  std::string gpu;            // UUID
  std::string driver;         // of CUDA: model, API version, and version of the kernel module
  std::string kernel;         // release
  std::string configuration;  // hash of the cufile.json that holds for this process and of CUFILE_*
  std::string cufile;         // version and path of the library; empty: there was none

  bool operator==(const ProbeKey&) const = default;
};

// Where a load or a probe takes place.
struct ProbePlace {
  std::string path;  // of a file or folder
  std::string gpu;   // UUID
  std::string driver;
  std::string cufile_library;  // LoaderOptions::cufile_library
  std::string state_folder;    // LoaderOptions::state_folder
};

// "ext4, device 259:1" for people; "unknown" where the path cannot be looked at.
[[nodiscard]] std::string file_system_text(const std::string& path);
// All but `cufile`; nothing where the path cannot be looked at. Calls no library; tens of microseconds.
[[nodiscard]] std::optional<ProbeKey> probe_key(const ProbePlace& place);
// The libcufile that a load here would use. Opens it, asks it for its version and calls nothing else of it.
struct CufileIdentity {
  std::string path;  // empty: there is none
  std::string text;  // for ProbeKey::cufile
};
[[nodiscard]] CufileIdentity find_cufile(const std::string& cufile_library);

// A row as JSON, in results and from inrush-probe.
[[nodiscard]] boost::json::object candidate_to_json(const ProbeCandidate& candidate);
// Throws std::exception where a field is absent, of another kind or makes no sense. What is in the texts
// cannot drive a terminal afterwards.
[[nodiscard]] ProbeCandidate candidate_from_json(const boost::json::object& object);

struct ProbeResult {
  ProbeKey key;
  std::string date;  // "2026-11-30"
  std::vector<ProbeCandidate> candidates;
};

// Returns the path of the file that was written. Throws storage_failed where it cannot be.
std::string write_probe_result(const std::string& state_folder, const ProbeResult& result);
// Nothing where there is no result for `key` (`cufile` not looked at), or a file that is damaged or not ours.
[[nodiscard]] std::optional<ProbeResult> read_probe_result(const std::string& state_folder,
                                                           const ProbeKey& key);

// Enters what was measured at `place` into the paths of the same name. Where nothing was, they stay usable,
// and the reason of "gds" says so. The first step of planning: never throws for what it finds there.
void apply_probe_results(const ProbePlace& place, std::vector<PathChoice>& paths);

}  // namespace inrush::engine
