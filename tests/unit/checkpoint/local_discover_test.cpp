// discover() on real folders: what only a file system shows.
#include "fakes/child_process.hpp"
#include "fakes/safetensors_text.hpp"

#include <inrush/checkpoint.hpp>
#include <inrush/error.hpp>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace inrush {

namespace {

class LocalDiscover : public testing::Test {
 protected:
  LocalDiscover() {
    std::string name = (std::filesystem::temp_directory_path() / "inrush_discover_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
  }
  ~LocalDiscover() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  void write_shard(const std::string& name, const std::string& tensor) const {
    write(name, fakes::one_byte_tensors(std::array{tensor}));
  }
  [[nodiscard]] ErrorCode code_of(const std::string& name, const DiscoverOptions& options = {}) const {
    try {
      static_cast<void>(discover((folder_ / name).string(), options));
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  }

  std::filesystem::path folder_;
};

// A descriptor limit, put back at the end.
class OpenFileLimit {
 public:
  explicit OpenFileLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit low = before_;
    low.rlim_cur = limit;
    setrlimit(RLIMIT_NOFILE, &low);
  }
  ~OpenFileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  OpenFileLimit(const OpenFileLimit&) = delete;
  OpenFileLimit& operator=(const OpenFileLimit&) = delete;

 private:
  rlimit before_ = {};
};

TEST_F(LocalDiscover, TenThousandShardsUnder256Descriptors) {
  std::string members;
  for (int i = 0; i < 10'000; ++i) {
    const std::string name = std::to_string(i);
    write_shard(name + ".safetensors", name);
    members += (i == 0 ? "\"" : ",\"") + name + "\":\"" + name + ".safetensors\"";
  }
  write("model.safetensors.index.json", R"({"weight_map":{)" + members + "}}");
  const OpenFileLimit limit(256);
  EXPECT_EQ(discover(folder_.string()).files().size(), 10'000U);
}

TEST_F(LocalDiscover, HuggingFaceSnapshot) {
  write_shard("models--a--b/blobs/0123", "a");
  write("models--a--b/blobs/4567", R"({"weight_map":{"a":"1.safetensors"}})");
  const std::string snapshot = "models--a--b/snapshots/c0ffee/";
  std::filesystem::create_directories(folder_ / snapshot);
  std::filesystem::create_symlink("../../blobs/0123", folder_ / (snapshot + "1.safetensors"));
  std::filesystem::create_symlink("../../blobs/4567", folder_ / (snapshot + "model.safetensors.index.json"));
  EXPECT_EQ(discover((folder_ / snapshot).string()).tensor_count(), 1U);
}

TEST_F(LocalDiscover, LinksThatLeaveNeedLeave) {
  write_shard("elsewhere/1.safetensors", "a");
  std::filesystem::create_directories(folder_ / "m");
  std::filesystem::create_symlink("../elsewhere/1.safetensors", folder_ / "m/1.safetensors");
  EXPECT_EQ(code_of("m"), ErrorCode::invalid_request);
  EXPECT_EQ(discover((folder_ / "m").string(), {.links = LinkPolicy::follow}).tensor_count(), 1U);
  // A path that the user named is followed wherever it leads.
  EXPECT_EQ(discover((folder_ / "m/1.safetensors").string()).tensor_count(), 1U);
}

TEST_F(LocalDiscover, OddFilesAreRefusedAndNotRead) {
  ASSERT_EQ(mkfifo((folder_ / "model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(code_of("model.safetensors"), ErrorCode::invalid_request);
  EXPECT_EQ(code_of("."), ErrorCode::invalid_request);
  EXPECT_EQ(code_of("gone"), ErrorCode::not_found);
  std::filesystem::create_directories(folder_ / "empty");
  EXPECT_EQ(code_of("empty"), ErrorCode::not_found);
}

TEST_F(LocalDiscover, PathIsReadAsWrittenAndFoundAgain) {
  write_shard("model.safetensors", "a");
  const Checkpoint checkpoint = discover(folder_.string());
  EXPECT_TRUE(std::filesystem::exists(checkpoint.files()[0].path));
  EXPECT_EQ(checkpoint.files()[0].identity.size_bytes,
            std::filesystem::file_size(folder_ / "model.safetensors"));
  EXPECT_NE(checkpoint.files()[0].identity.inode, 0U);
}

// And is not taken for something that is no folder.
TEST_F(LocalDiscover, FolderThatCannotBeListedIsSaidToBeOne) {
  write_shard("model.safetensors", "a");
  const std::string message = fakes::run_in_child([&]() -> std::string {
    fakes::forbid_system_calls({SYS_getdents64}, EIO);
    try {
      static_cast<void>(discover(folder_.string()));
    } catch (const Error& error) {
      return std::string(error_code_name(error.code())) + " " + error.what();
    }
    return "accepted";
  });
  EXPECT_TRUE(message.starts_with("storage_failed ")) << message;
  EXPECT_NE(message.find("list the folder: Input/output error"), std::string::npos) << message;
}

}  // namespace

}  // namespace inrush
