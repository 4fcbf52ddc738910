#include "fakes/libcufile/fake_library.hpp"

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace inrush::fakes::cufile {

namespace {

struct Switch {
  int parameter;
  const char* variable;
  const char* key;
};

constexpr Switch allow_compat = {engine::cufile_bool_allow_compat, "CUFILE_ALLOW_COMPAT_MODE",
                                 "allow_compat_mode"};
constexpr Switch force_compat = {engine::cufile_bool_force_compat, "CUFILE_FORCE_COMPAT_MODE",
                                 "force_compat_mode"};
constexpr Switch use_p2pdma = {engine::cufile_bool_use_p2pdma, "CUFILE_USE_PCIP2PDMA", "use_pci_p2pdma"};

std::string configuration_text() {
  const char* const path = std::getenv("CUFILE_ENV_PATH_JSON");
  if (path == nullptr) return {};
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What stands behind the first `"key":`. Enough for files that tests write.
std::string value_of(const std::string& text, const std::string& key) {
  const std::size_t name = text.find('"' + key + '"');
  if (name == std::string::npos) return {};
  const std::size_t colon = text.find(':', name);
  const std::size_t start = text.find_first_not_of(" \t\r\n", colon + 1);
  if (colon == std::string::npos || start == std::string::npos) return {};
  if (text[start] == '"') return text.substr(start + 1, text.find('"', start + 1) - start - 1);
  return text.substr(start, text.find_first_of(" \t\r\n,}/", start) - start);
}

bool choose(const Driver& driver, const Switch& which, bool otherwise) {
  if (const auto staged = driver.staged.find(which.parameter); staged != driver.staged.end())
    return staged->second;
  const char* const variable = std::getenv(which.variable);
  const std::string text = variable != nullptr ? variable : value_of(configuration_text(), which.key);
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return otherwise;
}

}  // namespace

Settings settings_now(const Driver& driver) {
  const Settings defaults;
  return {choose(driver, allow_compat, defaults.allows_compat),
          choose(driver, force_compat, defaults.forces_compat),
          choose(driver, use_p2pdma, defaults.uses_p2pdma)};
}

std::string log_path_now(const Driver& driver) {
  if (!driver.staged_log_folder.empty()) return driver.staged_log_folder + "/cufile.log";
  if (const char* const path = std::getenv("CUFILE_LOGFILE_PATH")) return path;
  const std::string folder = value_of(configuration_text(), "dir");
  return folder.empty() ? "cufile.log" : folder + "/cufile.log";
}

}  // namespace inrush::fakes::cufile
