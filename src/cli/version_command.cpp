#include "cli/commands.hpp"

#include <inrush/version.hpp>

#include "cli/output.hpp"

namespace inrush::engine {

void add_version_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("version", "Print the version");
  command->callback([] { write_stdout(std::string("inrush ") + version() + "\n"); });
}

}  // namespace inrush::engine
