// FAKE_CUFILE, read when the library is loaded: words between commas.
//   p2pdma nvfs compat silent liar mute  the personality
//   no_udev                              no file can be registered
//   hang=ENTRY, crash=ENTRY              that entry never returns, or dies by SIGSEGV
//   fail=ENTRY:NTH:CODE                  its n-th call answers the code; a read or write sets errno to it
//   corrupt_read=NTH                     the n-th read delivers other bytes
//   slow_reads=MICROSECONDS              each read takes that long at least
//   prints                               three lines on stderr at open
//   log                                  writes a log at open, in the current folder unless told another
//   close_descriptor_0                   by a driver open that fails
// A word that is none of these ends the process: a test that steers by it would prove nothing.
#include "fakes/libcufile/fake_library.hpp"

#include <cstdio>
#include <cstdlib>
#include <optional>

namespace inrush::fakes::cufile {

namespace {

[[noreturn]] void refuse(std::string_view word) {
  std::fprintf(stderr, "FAKE_CUFILE: no such word: %.*s\n", static_cast<int>(word.size()), word.data());
  std::abort();
}

// What stands before the separator; `text` keeps what stands behind it.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view head = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return head;
}

std::uint64_t number_of(std::string_view text, std::string_view word) {
  const std::string digits(text);
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(digits.c_str(), &end, 10);
  if (digits.empty() || *end != '\0') refuse(word);
  return number;
}

std::optional<CufilePersonality> personality_of(std::string_view word) {
  if (word == "p2pdma") return CufilePersonality::p2pdma;
  if (word == "nvfs") return CufilePersonality::nvfs;
  if (word == "compat") return CufilePersonality::compat;
  if (word == "silent") return CufilePersonality::silent;
  if (word == "liar") return CufilePersonality::liar;
  if (word == "mute") return CufilePersonality::mute;
  return std::nullopt;
}

bool apply_name(Steering& steering, std::string_view word) {
  if (const auto personality = personality_of(word)) {
    steering.personality = *personality;
    return true;
  }
  if (word == "no_udev") return !(steering.has_udev_record = false);
  if (word == "prints") return steering.prints = true;
  if (word == "log") return steering.logs = true;
  if (word == "close_descriptor_0") return steering.closes_descriptor_0 = true;
  return false;
}

void apply_setting(Steering& steering, std::string_view word) {
  std::string_view rest = word;
  const std::string_view name = take(rest, '=');
  if (name == "hang") {
    steering.hanging.emplace_back(rest);
  } else if (name == "crash") {
    steering.crashing.emplace_back(rest);
  } else if (name == "slow_reads") {
    steering.read_microseconds = static_cast<std::uint32_t>(number_of(rest, word));
  } else if (name == "corrupt_read") {
    const std::uint64_t nth = number_of(rest, word);
    steering.faults.push_back({"cuFileRead", Effect::corrupt, nth, nth, 0, 0});
  } else if (name == "fail") {
    const std::string entry(take(rest, ':'));
    const std::uint64_t nth = number_of(take(rest, ':'), word);
    steering.faults.push_back({entry, Effect::status, nth, nth, number_of(rest, word), 0});
  } else {
    refuse(word);
  }
}

}  // namespace

void apply_words(Steering& steering, std::string_view words) {
  while (!words.empty()) {
    const std::string_view word = take(words, ',');
    if (!word.empty() && !apply_name(steering, word)) apply_setting(steering, word);
  }
}

}  // namespace inrush::fakes::cufile
