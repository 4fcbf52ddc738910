// The configuration file: JSON with comments, one object. Read once by the thread that asks for the settings.
#pragma once

#include <inrush/error.hpp>

#include <boost/json/object.hpp>

#include <string>
#include <string_view>

namespace inrush::engine {

// Throws not_found or storage_failed where it cannot be read, invalid_request where it is not a JSON object.
[[nodiscard]] boost::json::object read_config_file(const std::string& path);
// "configuration file PATH: cause", with the code that fits `error`, an errno or 0.
[[nodiscard]] Error config_file_error(const std::string& path, std::string_view cause, int error);

}  // namespace inrush::engine
