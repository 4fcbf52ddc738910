#include "request.hpp"

#include <inrush/error.hpp>

namespace inrush::python {

LoadRequest make_request(const Patterns& only, const SliceMap& slices) {
  LoadRequest request;
  if (only) {
    request.only = *only;
    if (only->empty()) request.select = [](const TensorInfo&) { return false; };
  }
  for (const auto& [name, slice] : slices) {
    const auto& [dimension, start, length] = slice;
    request.slices[name] = {.dimension = dimension, .start = start, .length = length};
  }
  return request;
}

PathPreference parse_path_preference(const std::string& word) {
  if (word == "auto") return PathPreference::automatic;
  if (word == "staged") return PathPreference::staged;
  if (word == "gds") return PathPreference::gds;
  if (word == "cufile-compat") return PathPreference::cufile_compat;
  throw Error(ErrorCode::invalid_request,
              "transfer: \"" + word + "\" is none of auto, staged, gds, cufile-compat");
}

PageCachePolicy parse_page_cache(const std::string& word) {
  if (word == "auto") return PageCachePolicy::automatic;
  if (word == "keep") return PageCachePolicy::keep;
  if (word == "bypass") return PageCachePolicy::bypass;
  throw Error(ErrorCode::invalid_request, "page_cache: \"" + word + "\" is none of auto, keep, bypass");
}

StreamWait parse_stream_wait(const std::string& word) {
  if (word == "event") return StreamWait::event;
  if (word == "value") return StreamWait::wait_value;
  throw Error(ErrorCode::invalid_request, "wait: \"" + word + "\" is none of event, value");
}

}  // namespace inrush::python
