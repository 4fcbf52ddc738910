// What `inrush load` prints: the report with the verdict of --check, and the plan, for people and as JSON.
// Pure functions.
#pragma once

#include <inrush/plan.hpp>
#include <inrush/report.hpp>

#include "cli/check.hpp"

#include <optional>
#include <string>

namespace inrush::engine {

[[nodiscard]] std::string load_result_text(const Report& report, const std::optional<CheckResult>& check);
// One JSON object, as is plan_json(). `path` is valid UTF-8.
[[nodiscard]] std::string load_result_json(const std::string& path, const Report& report,
                                           const std::optional<CheckResult>& check);
[[nodiscard]] std::string plan_json(const Checkpoint& checkpoint, const Plan& plan, const Device& device);

}  // namespace inrush::engine
