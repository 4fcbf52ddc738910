// Recognises what people name by mistake, or what an unfinished download left, by its first bytes. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace inrush::engine {

// Bytes that recognise_format() wants to see, where the file has them.
inline constexpr std::size_t recognised_bytes_max = 256;

// "this is a git-lfs pointer, not the weights: run `git lfs pull`": what the file is and what to do. Empty:
// not recognised. For files that failed as safetensors only: a valid header may begin with almost any bytes.
[[nodiscard]] std::string_view recognise_format(std::span<const std::byte> head) noexcept;

}  // namespace inrush::engine
