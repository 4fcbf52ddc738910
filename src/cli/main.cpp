// The `inrush` command: reads the command line, runs one command, and turns failures into one line and an
// exit code.
#include <inrush/error.hpp>
#include <inrush/report.hpp>
#include <inrush/version.hpp>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"

#include <fmt/format.h>

#include <exception>
#include <new>

namespace inrush::engine {

namespace {

constexpr std::string_view examples =
    "Examples:\n"
    "  inrush load /models/llama             load it into the first GPU and say how fast\n"
    "  inrush load /models/llama --check     and compare every byte with the files\n"
    "  inrush inspect /models/llama          its files and tensors\n"
    "  inrush warm /models/llama             into the page cache, ahead of its load\n"
    "  inrush probe /models/llama            measure each way from there into the GPU\n"
    "  inrush bench /models/llama            what the machine gives, and how much of it loads reach\n"
    "  inrush env                            the settings and where they came from\n"
    "  inrush explain 5027                   what an error code means\n"
    "  inrush load --help                    all about one command\n";

void add_commands(CLI::App& app) {
  app.footer(std::string(examples));
  app.set_version_flag("--version", std::string("inrush ") + version());
  app.require_subcommand(0, 1);
  add_load_command(app);
  add_inspect_command(app);
  add_warm_command(app);
  add_probe_command(app);
  add_bench_command(app);
  add_env_command(app);
  add_explain_command(app);
  add_stats_command(app);
  add_version_command(app);
}

// The command that was named, else the application.
const CLI::App& chosen(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? app : *commands.front();
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::string suggestion(std::string_view word, std::span<const std::string> words) {
  const std::string nearest = nearest_word(word, words);
  if (nearest == word) return ": options follow the command that they belong to";
  return nearest.empty() ? "" : fmt::format(": did you mean {}?", nearest);
}

// One line that says what is wrong and where the help is.
std::string usage_line(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = chosen(app);
  const std::string help =
      &command == &app ? "inrush --help" : fmt::format("inrush {} --help", command.get_name());
  for (const std::string& word : app.remaining(true)) {
    if (word.starts_with('-')) {
      const std::string flag = word.substr(0, word.find('='));
      return fmt::format("unknown option {}{} (see: {})", escape_text(flag),
                         suggestion(flag, option_names(command)), help);
    }
    if (&command == &app) {
      return fmt::format("unknown command {}{} (see: {})", escape_text(word),
                         suggestion(word, command_names(app)), help);
    }
  }
  return fmt::format("{} (see: {})", error.what(), help);
}

int parse_and_run(CLI::App& app, std::vector<std::string> words) {
  try {
    app.parse(std::move(words));
    if (app.get_subcommands().empty()) {
      write_stderr_line(
          "no command: load, inspect, warm, probe, bench, env, explain, stats or version (see: inrush "
          "--help)");
      return exit_usage;
    }
    return 0;
  } catch (const CLI::CallForVersion& call) {
    write_stdout(std::string(call.what()) + "\n");
  } catch (const CLI::CallForHelp&) {
    write_stdout(chosen(app).help(&chosen(app) == &app ? "" : "inrush"));
  } catch (const CLI::ParseError& error) {
    write_stderr_line(usage_line(app, error));
    return exit_usage;
  }
  return 0;
}

int run(int argument_count, char** arguments) {
  watch_interrupts();
  try {
    CLI::App app("Brings the weights of AI models from storage into GPU memory, fast and exactly right.",
                 "inrush");
    add_commands(app);
    // CLI11 takes the words last to first.
    return parse_and_run(app, {std::make_reverse_iterator(arguments + argument_count),
                               std::make_reverse_iterator(arguments + std::min(argument_count, 1))});
  } catch (const Error& error) {
    write_stderr_line(error.what());
    return exit_code(error.code());
  } catch (const Interrupted& interrupted) {
    return exit_signal_base + interrupted.signal;
  } catch (const std::bad_alloc&) {
    write_stderr_line("out of memory: load less (--only, --window), or free some");
    return exit_code(ErrorCode::out_of_memory);
  } catch (const std::exception& error) {
    write_stderr_line(error.what());
    return exit_code(ErrorCode::internal);
  }
}

}  // namespace

}  // namespace inrush::engine

int main(int argument_count, char** arguments) { return inrush::engine::run(argument_count, arguments); }
