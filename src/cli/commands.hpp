// The commands of `inrush`: each adds its options, its help and its callback to the application. A callback
// throws Error or Interrupted, and writes to stdout only once it has succeeded.
#pragma once

#include <inrush/checkpoint.hpp>

#include <CLI/CLI.hpp>

namespace inrush::engine {

void add_load_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_warm_command(CLI::App& app);
void add_probe_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_env_command(CLI::App& app);
void add_explain_command(CLI::App& app);
void add_stats_command(CLI::App& app);
void add_version_command(CLI::App& app);

// --follow-links, --ignore-index, --strict-index. `options` must outlive `command`.
void add_discover_options(CLI::App& command, DiscoverOptions& options);

}  // namespace inrush::engine
