// Runs a part of a test in a forked child, where it may give up rights or system calls for good.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace inrush::fakes {

// What `body` returns, or how the child ended. The child takes no part in the test's own expectations: by
// agreement an empty text means that all was well.
[[nodiscard]] std::string run_in_child(const std::function<std::string()>& body);

// From now on these system calls fail with `error`, on every thread of this process and in its children.
void forbid_system_calls(const std::vector<long>& numbers, int error);

}  // namespace inrush::fakes
