// Which files LocalStore opens, and what it says of those that it does not.
#include "storage/local_store.hpp"

#include <inrush/error.hpp>

#include "fakes/child_process.hpp"
#include "fakes/temp_folder.hpp"
#include "storage/beneath.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace inrush::engine {
namespace {

using fakes::TempFolder;

std::string text_of(const File& file) {
  std::string text(file.status().size_bytes, '\0');
  read_fully(file, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

class LocalStoreTest : public testing::Test {
 protected:
  // The error of `action`: its code, its errno, and words that its message holds.
  template <typename Action>
  static void expect_error(Action action, ErrorCode code, int system_error, const std::string& words) {
    try {
      action();
      ADD_FAILURE() << "no error; expected " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error_code_name(error.code()), error_code_name(code)) << error.what();
      EXPECT_EQ(error.system_error(), system_error) << error.what();
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
  void expect_open_error(const std::string& path, ErrorCode code, int system_error,
                         const std::string& words) {
    expect_error([&] { (void)store_.open(path); }, code, system_error, words);
  }
  void expect_beneath_error(const std::string& name, ErrorCode code, int system_error,
                            const std::string& words) {
    expect_error([&] { (void)store_.open_beneath(folder_ / "model", name, LinkPolicy::inside); }, code,
                 system_error, words);
  }
  std::string read_beneath(const std::string& folder, const std::string& name,
                           LinkPolicy links = LinkPolicy::inside) {
    return text_of(*store_.open_beneath(folder, name, links));
  }
  void link(const std::string& target, const std::string& name) {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    std::filesystem::create_symlink(target, folder_ / name);
  }

  TempFolder folder_;
  LocalStore store_;
};

TEST_F(LocalStoreTest, OpensAndDescribesAFile) {
  const auto file = store_.open(folder_.write("a b\n.bin", "hello"));
  EXPECT_EQ(text_of(*file), "hello");
  struct stat status = {};
  ASSERT_EQ(::stat(file->path().c_str(), &status), 0);
  EXPECT_EQ(file->status().inode, status.st_ino);
  EXPECT_EQ(file->status().device, status.st_dev);
  EXPECT_EQ(file->status().size_bytes, 5U);
  EXPECT_EQ(file->status().mtime_ns, status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec);
}

TEST_F(LocalStoreTest, RefusesWhatIsNoRegularFileWithoutHanging) {
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  expect_open_error(folder_ / "fifo", ErrorCode::invalid_request, 0, "this is a FIFO");
  expect_open_error("/dev/zero", ErrorCode::invalid_request, 0, "this is a device");
  expect_open_error(folder_.path(), ErrorCode::invalid_request, 0, "this is a folder");
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (folder_ / "socket").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  expect_open_error(folder_ / "socket", ErrorCode::invalid_request, 0, "this is a socket");
  ::close(listener);
}

TEST_F(LocalStoreTest, NamesTheCauseOfEachRefusal) {
  expect_open_error(folder_ / "none", ErrorCode::not_found, ENOENT, "none: open: No such file or directory");
  link("nowhere", "dangling");
  expect_open_error(folder_ / "dangling", ErrorCode::not_found, ENOENT, "its target is missing");
  link("circle", "circle");
  expect_open_error(folder_ / "circle", ErrorCode::not_found, ELOOP, "in a circle");
  expect_open_error(folder_.write("file", "x") + "/below", ErrorCode::not_found, ENOTDIR, "Not a directory");
  expect_open_error(folder_ / std::string(300, 'n'), ErrorCode::invalid_request, ENAMETOOLONG,
                    "File name too long");
  expect_open_error("", ErrorCode::invalid_request, 0, "empty");
  expect_open_error(std::string("a\0b", 3), ErrorCode::invalid_request, 0, "a\\x00b");
  expect_open_error(folder_ / "\x1b[31m", ErrorCode::not_found, ENOENT, "\\x1b[31m");
}

// Errors that a test cannot bring about with files of its own, as the kernel would return them.
TEST_F(LocalStoreTest, NamesTheCauseOfRareRefusals) {
  const std::string path = folder_.write("file", "x");
  const std::vector<std::pair<int, std::string>> refusals = {{ENFILE, "storage_failed fs.file-max"},
                                                             {ESTALE, "storage_failed mount it again"},
                                                             {EACCES, "not_found permissions"},
                                                             {EIO, "storage_failed Input/output error"},
                                                             {ENOMEM, "out_of_memory Cannot allocate"}};
  for (const auto& [error, expected] : refusals) {
    const std::string text = fakes::run_in_child([&, refusal = error] {
      fakes::forbid_system_calls({SYS_openat, SYS_openat2}, refusal);
      try {
        return text_of(*store_.open(path));
      } catch (const Error& caught) {
        return std::string(error_code_name(caught.code())) + " " + std::to_string(caught.system_error()) +
               " " + caught.what();
      }
    });
    const std::size_t space = expected.find(' ');
    EXPECT_TRUE(text.starts_with(expected.substr(0, space) + " " + std::to_string(error) + " ")) << text;
    EXPECT_NE(text.find(expected.substr(space + 1)), std::string::npos) << text;
  }
}

TEST_F(LocalStoreTest, SaysHowToRaiseTheLimitOfOpenFiles) {
  const std::string path = folder_.write("file", "x");
  const std::string text = fakes::run_in_child([&] {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_NOFILE, &none);
    try {
      return text_of(*store_.open(path));
    } catch (const Error& error) {
      return std::string(error.what());
    }
  });
  EXPECT_NE(text.find("Too many open files; raise the limit"), std::string::npos) << text;
}

TEST_F(LocalStoreTest, ListsSortedAndFollowsLinksToFolders) {
  folder_.write("b.bin", "");
  folder_.write("a/inner", "");
  folder_.write("c.bin", "");
  link("a", "z");
  std::string listed;
  for (const ListedFile& file : store_.list(folder_.path()))
    listed += file.name + (file.is_folder ? "/ " : " ");
  EXPECT_EQ(listed, "a/ b.bin c.bin z/ ");
  expect_error([&] { (void)store_.list(folder_ / "none"); }, ErrorCode::not_found, ENOENT,
               "none: list the folder");
  expect_error([&] { (void)store_.list(folder_ / "b.bin"); }, ErrorCode::not_found, ENOTDIR,
               "Not a directory");
}

// Run as the kernel resolves, and again with openat2 refused.
struct Links {
  std::string name;
  int openat2_error;  // 0: let through
};
std::ostream& operator<<(std::ostream& out, const Links& links) { return out << links.name; }

class LinkRules : public LocalStoreTest, public testing::WithParamInterface<Links> {
 protected:
  // Checks under the parameter's conditions; a failure's text, or nothing.
  void check(const std::function<void()>& body) {
    if (GetParam().openat2_error == 0) return body();
    const std::string text = fakes::run_in_child([&] {
      fakes::forbid_system_calls({SYS_openat2}, GetParam().openat2_error);
      body();
      return std::string(HasFailure() ? "failed, see above" : "");
    });
    EXPECT_EQ(text, "");
  }
};

TEST_P(LinkRules, NamesAndLinksThatStayInside) {
  folder_.write("model/a.bin", "a");
  folder_.write("model/sub/b.bin", "b");
  link("a.bin", "model/to_a");
  link("sub/../a.bin", "model/round");
  link("../a.bin", "model/sub/up");
  link("sub", "model/other");
  check([&] {
    for (const std::string name : {"a.bin", "to_a", "round", "sub/up", "./a.bin", "other/up"}) {
      EXPECT_EQ(read_beneath(folder_ / "model", name), "a") << name;
    }
    EXPECT_EQ(read_beneath(folder_ / "model/", "other/b.bin"), "b");
  });
}

TEST_P(LinkRules, NamesAndLinksThatLeave) {
  folder_.write("model/a.bin", "a");
  folder_.write("secret", "s");
  link("../secret", "model/up");
  link(folder_ / "secret", "model/absolute");
  link(folder_ / "model/a.bin", "model/absolute_inside");
  link("..", "model/out");
  link("up", "model/twice");
  check([&] {
    for (const std::string name :
         {"up", "absolute", "absolute_inside", "out/secret", "twice", "out/model/a.bin"}) {
      SCOPED_TRACE(name);
      expect_beneath_error(name, ErrorCode::invalid_request, EXDEV, "--follow-links");
    }
    for (const std::string name : {"../secret", "sub/../a.bin", "/etc/passwd", ".."}) {
      SCOPED_TRACE(name);
      expect_beneath_error(name, ErrorCode::invalid_request, 0, "leads out of the folder");
    }
    EXPECT_EQ(read_beneath(folder_ / "model", "up", LinkPolicy::follow), "s");
    EXPECT_EQ(read_beneath(folder_ / "model", "absolute", LinkPolicy::follow), "s");
    expect_error([&] { (void)store_.open_beneath(folder_ / "model", "../secret", LinkPolicy::follow); },
                 ErrorCode::invalid_request, 0, "leads out of the folder");
  });
}

TEST_P(LinkRules, LinksThatLeadNowhere) {
  folder_.write("model/a.bin", "a");
  folder_.write("model/sub/b.bin", "b");
  link("none", "model/dangling");
  link("circle", "model/circle");
  ASSERT_EQ(::mkfifo((folder_ / "model/fifo").c_str(), 0600), 0);
  check([&] {
    expect_beneath_error("dangling", ErrorCode::not_found, ENOENT, "its target is missing");
    expect_beneath_error("circle", ErrorCode::not_found, ELOOP, "circle");
    expect_beneath_error("none", ErrorCode::not_found, ENOENT, "No such file");
    expect_beneath_error("a.bin/below", ErrorCode::not_found, ENOTDIR, "Not a directory");
    expect_beneath_error("fifo", ErrorCode::invalid_request, 0, "this is a FIFO");
    expect_beneath_error("sub", ErrorCode::invalid_request, 0, "this is a folder");
  });
}

TEST_P(LinkRules, HuggingFaceCacheSnapshots) {
  const std::string entry = "hub/models--org--name/";
  const std::string snapshot = entry + "snapshots/0123abcd/";
  folder_.write(entry + "blobs/aaaa", "a");
  folder_.write(entry + "refs/main", "0123abcd");
  folder_.write("hub/models--other--name/blobs/bbbb", "b");
  folder_.write("hub/models--org--name2/blobs/cccc", "c");
  link("../../blobs/aaaa", snapshot + "model.safetensors");
  link("../../../blobs/aaaa", snapshot + "sub/model.safetensors");
  link("../../../models--other--name/blobs/bbbb", snapshot + "other");
  link("../../../models--org--name2/blobs/cccc", snapshot + "longer");
  link("../../refs/main", snapshot + "refs");
  link("../../blobs/none", snapshot + "dangling");
  link("../../blobs/../refs/main", snapshot + "through");
  link("hub/models--org--name/snapshots/0123abcd", "model");
  check([&] {
    for (const std::string name : {"model.safetensors", "sub/model.safetensors"}) {
      EXPECT_EQ(read_beneath(folder_ / snapshot, name), "a");
      EXPECT_EQ(read_beneath(folder_ / "model", name), "a") << "the folder itself may be a link";
    }
    EXPECT_EQ(read_beneath(folder_ / (snapshot + "sub"), "model.safetensors"), "a");
    for (const std::string name : {"other", "longer", "refs", "through"}) {
      SCOPED_TRACE(name);
      expect_beneath_error(name, ErrorCode::invalid_request, EXDEV, "--follow-links");
    }
    expect_beneath_error("dangling", ErrorCode::not_found, ENOENT, "its target is missing");
  });
}

INSTANTIATE_TEST_SUITE_P(Openat2, LinkRules,
                         testing::Values(Links{"Kernel", 0}, Links{"Absent", ENOSYS},
                                         Links{"Forbidden", EPERM}),
                         [](const testing::TestParamInfo<Links>& links) { return links.param.name; });

}  // namespace
}  // namespace inrush::engine
