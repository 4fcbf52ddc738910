// What `inrush load` was asked to do, and the doing. One thread.
#pragma once

#include <inrush/checkpoint.hpp>
#include <inrush/request.hpp>

#include "cli/progress_display.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace inrush::engine {

enum class OutputFormat { text, json };
enum class LoadAction { load, load_and_check, plan };

// As spelled on the command line, where the spelling is still to be understood.
struct LoadArguments {
  std::vector<std::string> paths;
  std::string device = "auto";
  std::vector<std::string> slices;
  std::string path = "auto";
  std::string page_cache = "auto";
  std::string deadline;
  std::string window;
  LoadAction action = LoadAction::load;
  OutputFormat format = OutputFormat::text;
  ProgressMode progress = ProgressMode::none;
  DiscoverOptions discover;
  LoadRequest request;
};

// Loads one path after the other with one Loader and hands on what belongs on stdout, at once: giving the
// device back takes 70 ms more (H200). Throws Error or Interrupted, and what `write` throws.
void run_load(const LoadArguments& arguments, const std::function<void(std::string_view)>& write);

}  // namespace inrush::engine
