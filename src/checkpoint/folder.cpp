#include "checkpoint/folder.hpp"

#include <inrush/error.hpp>

#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace inrush::engine {

namespace {

constexpr std::string_view single_file = "model.safetensors";
constexpr std::string_view file_ending = ".safetensors";
constexpr std::string_view index_ending = ".safetensors.index.json";
constexpr std::array<std::string_view, 6> other_endings = {".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5"};
constexpr std::size_t listed_names_max = 10;

// As a shell's `*` does, without names that begin with a dot: macOS leaves "._model.safetensors" on foreign
// disks.
std::vector<std::string> names_ending(const std::vector<ListedFile>& entries, std::string_view ending) {
  std::vector<std::string> names;
  for (const ListedFile& entry : entries) {
    if (!entry.is_folder && !entry.name.starts_with('.') && entry.name.ends_with(ending))
      names.push_back(entry.name);
  }
  // The order decides the order of the tensors, and ranks on different nodes must agree on it (vllm#34180).
  std::sort(names.begin(), names.end());
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), listed_names_max); ++i) {
    text += (i == 0 ? "" : ", ") + printable(names[i]);
  }
  if (names.size() > listed_names_max) text += fmt::format(" and {} more", names.size() - listed_names_max);
  return text;
}

[[noreturn]] void throw_nothing(const std::string& folder, const std::vector<ListedFile>& entries) {
  std::string hint;
  for (const std::string_view ending : other_endings) {
    const std::vector<std::string> others = names_ending(entries, ending);
    if (others.empty()) continue;
    hint = fmt::format("; it holds {}, which is never loaded instead: convert it to safetensors",
                       joined(others));
    break;
  }
  const auto is_snapshots = [](const ListedFile& entry) {
    return entry.is_folder && entry.name == "snapshots";
  };
  if (std::any_of(entries.begin(), entries.end(), is_snapshots)) {
    hint = "; it is an entry of a Hugging Face cache: name one of its snapshots/<commit> folders";
  }
  throw Error(
      ErrorCode::not_found,
      fmt::format("{}: no *.safetensors in this folder (sub-folders are not searched){}", printable(folder),
                  hint.empty() ? "; name the folder that holds the weights" : hint));
}

}  // namespace

FolderChoice choose_files(const std::string& folder, const std::vector<ListedFile>& entries,
                          const DiscoverOptions& options) {
  FolderChoice choice;
  if (options.index != IndexPolicy::ignore) {
    const std::vector<std::string> indexes = names_ending(entries, index_ending);
    if (indexes.size() > 1) {
      throw Error(ErrorCode::invalid_request,
                  fmt::format("{}: {} indexes in this folder ({}): name the one to load", printable(folder),
                              indexes.size(), joined(indexes)));
    }
    if (indexes.size() == 1) {
      choice.index = indexes.front();
      choice.files = names_ending(entries, file_ending);
      return choice;
    }
  }
  choice.files = names_ending(entries, file_ending);
  if (choice.files.empty()) throw_nothing(folder, entries);
  if (std::find(choice.files.begin(), choice.files.end(), single_file) != choice.files.end()) {
    if (choice.files.size() > 1) {
      choice.notes.push_back(fmt::format("{}: only {} was read, {} other *.safetensors were not",
                                         printable(folder), single_file, choice.files.size() - 1));
    }
    choice.files = {std::string(single_file)};
  }
  if (choice.files.size() > options.file_count_max) {
    throw Error(
        ErrorCode::invalid_request,
        fmt::format(
            "{}: {} *.safetensors in this folder, above the cap of {} (DiscoverOptions::file_count_max)",
            printable(folder), choice.files.size(), options.file_count_max));
  }
  return choice;
}

}  // namespace inrush::engine
