// Threads of the engine. They take no signal that is meant for the process (Ctrl-C stays with the program's
// own threads), and carry a name that ps and debuggers show.
#pragma once

#include <functional>
#include <thread>

namespace inrush::engine {

// `name`: at most 15 characters. `body` must not throw. Throws std::system_error where the system has no more
// threads.
[[nodiscard]] std::thread start_engine_thread(const char* name, std::function<void()> body);

}  // namespace inrush::engine
