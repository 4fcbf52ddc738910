#include "checkpoint/foreign_format.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace inrush::engine {

namespace {

using namespace std::string_view_literals;

struct Format {
  std::string_view magic;
  std::string_view advice;
};

constexpr std::string_view lfs_advice = "this is a git-lfs pointer, not the weights: run `git lfs pull`";
constexpr std::string_view pickle_advice =
    "this is a Python pickle (.pt, .bin, .pkl), which is never loaded: convert it to safetensors in a "
    "sandbox";
constexpr std::string_view html_advice =
    "this is an HTML page (a login or error page saved in place of the download): download it again";
constexpr std::string_view xml_advice =
    "this is an XML text (an object store's error message saved in place of the download): download it again";

constexpr std::array formats = {
    Format{"version https://git-lfs"sv, lfs_advice},
    Format{"version https://hawser"sv, lfs_advice},
    Format{"PK\x03\x04"sv,
           "this is a zip archive, most likely a PyTorch .pt or .bin file (pickle), which is never loaded: "
           "convert it to safetensors in a sandbox"sv},
    Format{"\x80\x02"sv, pickle_advice},
    Format{"\x80\x03"sv, pickle_advice},
    Format{"\x80\x04"sv, pickle_advice},
    Format{"\x80\x05"sv, pickle_advice},
    Format{"GGUF"sv, "this is a GGUF file: convert it to safetensors, or give it to llama.cpp"sv},
    Format{"\x1f\x8b"sv, "this is gzip data: unpack it first"sv},
    Format{"\x28\xb5\x2f\xfd"sv, "this is zstd data: unpack it first"sv},
    Format{"\x89HDF\r\n"sv, "this is an HDF5 file: convert it to safetensors"sv},
    Format{"\x93NUMPY"sv, "this is a NumPy array: convert it to safetensors"sv},
};

// A server's error page or message, saved under the name of the weights.
constexpr std::array web_texts = {
    Format{"<!doctype html"sv, html_advice},
    Format{"<html"sv, html_advice},
    Format{"<?xml"sv, xml_advice},
    Format{"<error"sv, xml_advice},
    Format{"{"sv,
           "this is a JSON text (an index, a configuration, a server's message), not a safetensors file"sv},
};

bool begins_with(std::string_view text, std::string_view lower_case) {
  if (text.size() < lower_case.size()) return false;
  return std::equal(lower_case.begin(), lower_case.end(), text.begin(), [](char wanted, char found) {
    return wanted == static_cast<char>(std::tolower(static_cast<unsigned char>(found)));
  });
}

}  // namespace

std::string_view recognise_format(std::span<const std::byte> head) noexcept {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  for (const Format& format : formats) {
    if (text.starts_with(format.magic)) return format.advice;
  }
  if (!text.empty() && text.find_first_not_of('\0') == std::string_view::npos) {
    return "it begins with zero bytes only: the space was reserved and the download never finished; download "
           "it again";
  }
  const std::size_t first = std::min(text.find_first_not_of(" \t\r\n\xEF\xBB\xBF"), text.size());
  for (const Format& format : web_texts) {
    if (begins_with(text.substr(first), format.magic)) return format.advice;
  }
  return {};
}

}  // namespace inrush::engine
