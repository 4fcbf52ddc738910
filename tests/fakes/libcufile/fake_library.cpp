#include "fakes/libcufile/fake_library.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace inrush::fakes::cufile {

namespace {

bool holds(const std::vector<std::string>& entries, std::string_view entry) {
  return std::find(entries.begin(), entries.end(), entry) != entries.end();
}

[[noreturn]] void hang() {
  while (true) ::pause();
}

void crash() {
  std::signal(SIGSEGV, SIG_DFL);  // else a sanitizer turns it into an exit
  std::raise(SIGSEGV);
}

// Steering by the environment is for child processes: it is there before the first call.
__attribute__((constructor)) void read_environment() {
  const char* const words = std::getenv("FAKE_CUFILE");
  const Lock lock(library().mutex);
  if (words != nullptr) apply_words(library().steering, words);
}

// As 1.15 does where there is no driver.
void print_lines() {
  std::fputs("fake cufile: no driver\nfake cufile: cannot open\nfake cufile: falling back\n", stderr);
}

}  // namespace

Library& library() {
  static Library& only = *new Library;  // never destroyed: threads may outlive the static objects
  return only;
}

int enter(std::string_view entry) {
  Library& all = library();
  Lock lock(all.mutex);
  ++all.seen.entry_calls.try_emplace(std::string(entry), 0).first->second;
  int answer = 0;
  for (Fault& fault : all.steering.faults) {
    if (fault.entry != entry || fault.effect != Effect::status) continue;
    ++fault.seen;
    if (fault.seen >= fault.first && fault.seen <= fault.last) answer = static_cast<int>(fault.value);
  }
  if (answer != 0) ++all.seen.fault_hits;
  const bool hangs = holds(all.steering.hanging, entry);
  const bool crashes = holds(all.steering.crashing, entry);
  lock.unlock();
  if (hangs) hang();
  if (crashes) crash();
  return answer;
}

CufileStatus status_of(int answer) {
  const bool is_cuda = answer == engine::cufile_cuda_driver_error;
  return {answer, is_cuda ? fake_cufile_cuda_result : engine::CuResult::success};
}

int Library::require_open() { return driver.opens > 0 ? 0 : open(0); }

int Library::open(int fault) {
  if (driver.opens == 0) {
    if (steering.prints) print_lines();
    if (steering.logs) std::ofstream(log_path_now(driver), std::ios::app) << "fake cufile: open\n";
    driver.settings = settings_now(driver);
  }
  const bool is_possible = driver.opens > 0 || driver.settings.allows_compat || can_go_direct() || pretends();
  const int answer = fault != 0 || is_possible ? fault : engine::cufile_driver_not_initialized;
  if (answer == 0) {
    ++driver.opens;
    return 0;
  }
  if (driver.opens == 0) {
    driver.staged.clear();
    driver.staged_log_folder.clear();
  }
  if (steering.closes_descriptor_0) ::close(0);
  if (steering.writes_log) std::ofstream("cufile.log", std::ios::app) << "ERROR\n";
  return answer;
}

// Parameters stay: whether the real one keeps them is not known, and who sets them before each open need not
// know.
void Library::close() {
  if (--driver.opens > 0) return;
  if (!driver.files.empty() || !driver.buffers.empty())
    misuse("cuFileDriverClose", "with handles or buffers alive", 0);
  driver.files.clear();
  driver.buffers.clear();
  driver.is_counting = false;
  driver.counters = {};
}

bool Library::can_go_direct() const {
  if (driver.settings.forces_compat) return false;
  if (steering.personality == CufilePersonality::nvfs) return true;
  const bool has_p2pdma =
      steering.personality == CufilePersonality::p2pdma || steering.personality == CufilePersonality::mute;
  return has_p2pdma && driver.settings.uses_p2pdma;
}

bool Library::pretends() const {
  return steering.personality == CufilePersonality::silent || steering.personality == CufilePersonality::liar;
}

int Library::misuse(std::string_view entry, std::string_view what, int answer) {
  ++seen.misuses;
  seen.last_misuse = std::string(entry) + ": " + std::string(what);
  return answer;
}

FakeCufileLive Library::live() const {
  FakeCufileLive live;
  live.driver_opens = static_cast<std::uint64_t>(driver.opens);
  live.handles = driver.files.size();
  live.buffers = driver.buffers.size();
  for (const auto& [start, memory] : driver.buffers) live.registered_bytes += memory->bytes;
  live.running_reads = running;
  return live;
}

void Library::reset() {
  Lock lock(mutex);
  steering = {};
  changed.notify_all();
  changed.wait(lock, [this] { return running == 0; });
  driver = {};
  seen = {};
}

}  // namespace inrush::fakes::cufile
