// Files of local and mounted file systems. Usually one for all loads of a process; any thread.
#pragma once

#include "storage/file.hpp"
#include "storage/populate.hpp"

#include <memory>
#include <string>
#include <vector>

namespace inrush::engine {

class LocalStore final : public Store {
 public:
  [[nodiscard]] std::vector<ListedFile> list(const std::string& folder) const override;
  [[nodiscard]] std::shared_ptr<File> open(const std::string& path) const override;
  [[nodiscard]] std::shared_ptr<File> open_beneath(const std::string& folder, const std::string& name,
                                                   LinkPolicy links) const override;

 private:
  std::shared_ptr<Populator> populator_ =
      std::make_shared<Populator>();  // shared by the files: one turn for all of them
};

}  // namespace inrush::engine
