/// Shared by tests of files: a fresh folder, failures by message, a full disk, a user without privileges.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace tessera::test {

namespace fs = std::filesystem;

/// A fresh folder with a space in its name, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "tessera test XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

/// The message of the Failure that `work` throws; the test fails if it throws none or has another code.
template <class Work>
std::string failure_of(Work work, Exit code = Exit::files) {
  try {
    work();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), code) << failure.what();
    return failure.what();
  }
  ADD_FAILURE() << "no Failure was thrown";
  return "";
}

/// While it lives, no file can grow beyond `bytes`: writes fail as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

/// While it lives, the process can map no more than `bytes` more.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(std::int64_t bytes) {
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    ::getrlimit(RLIMIT_AS, &before_);
    const rlimit limit{static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + bytes), before_.rlim_max};
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressSpaceLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  AddressSpaceLimit& operator=(const AddressSpaceLimit&) = delete;

 private:
  rlimit before_{};
};

/// While it lives, the process is not root (who would pass every permission check).
class OrdinaryUser {
 public:
  OrdinaryUser() : before_(::geteuid()) {
    if (before_ == 0 && ::seteuid(65534) != 0) throw std::runtime_error("seteuid 65534");
  }
  ~OrdinaryUser() {
    if (before_ == 0 && ::seteuid(0) != 0) std::abort();
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;

 private:
  uid_t before_;
};

/// Runs `work` in a child process and kills it (SIGKILL) in the middle of a repeat: `work` calls its argument after
/// each repeat; the child lives for `repeats` of them and then for `fraction` of the time that the last one took.
template <class Work>
void kill_in_the_middle(int repeats, double fraction, Work work) {
  using Time = std::chrono::steady_clock;
  int done[2];
  if (::pipe(done) != 0) throw std::runtime_error("pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    work([&] {
      if (::write(done[1], "", 1) != 1) ::_exit(1);
    });
    ::_exit(1);
  }
  ::close(done[1]);
  Time::time_point before = Time::now(), last = before;
  char byte;
  for (int i = 0; i < repeats && ::read(done[0], &byte, 1) == 1; ++i) before = std::exchange(last, Time::now());
  std::this_thread::sleep_for(fraction * (last - before));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
  ::close(done[0]);
}

inline void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("write " + path.string());
}

template <class T>
void write_array(const fs::path& path, const std::vector<T>& values) {
  write_bytes(path, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

inline std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void flip_byte(const fs::path& path, std::uintmax_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

/// Names in a folder, sorted.
inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tessera::test
