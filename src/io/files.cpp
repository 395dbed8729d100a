#include "io/files.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

namespace tessera::io {

/// A file descriptor that is closed at the end of its scope, or checked by close().
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags, std::string_view doing = "opening")
      : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) throw file_failure(path, doing, errno);
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int fd() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }
  std::int64_t bytes() const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) throw file_failure(path_, "asking for its size", errno);
    return status.st_size;
  }
  void sync() {
    if (::fsync(fd_) != 0) throw file_failure(path_, "writing to the disk (fsync)", errno);
  }
  void close() {
    if (::close(std::exchange(fd_, -1)) != 0) throw file_failure(path_, "closing", errno);
  }

 private:
  std::filesystem::path path_;
  int fd_;
};

namespace {

/// Advice for the errno `error`: the last sentence of a message.
std::string next_action(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "Free some space there, raise the quota or file size limit, or write to another file system "
             "(job.directory, job.output)";
    case EACCES:
    case EPERM:
    case EROFS: return "Check its owner and permissions; job.directory and job.output may be elsewhere";
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP: return "Check the path";
    case EISDIR: return "It is a folder: give the path of a file";
    case EMFILE:
    case ENFILE: return "Raise the limit on open files (ulimit -n)";
    case ENOMEM: return kMoreMemory;
    case EIO: return "The disk or the network file system is faulty: check the system log, and use another file system";
    default: return "Check the file system it is on";
  }
}

}  // namespace

Failure file_failure(const std::filesystem::path& path, std::string_view doing, int error) {
  return Failure(error == ENOMEM ? Exit::out_of_memory : Exit::files,
                 fmt::format("{}: {} failed: {}. {}.", path.string(), doing, std::strerror(error), next_action(error)));
}

void require_regular_file(const std::filesystem::path& path, std::string_view doing) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw file_failure(path, doing, errno);
  if (S_ISREG(status.st_mode)) return;
  if (S_ISDIR(status.st_mode)) throw file_failure(path, doing, EISDIR);
  const char* const kind = S_ISFIFO(status.st_mode) ? "FIFO" : S_ISSOCK(status.st_mode) ? "socket" : "device";
  throw Failure(Exit::files, "{}: not a regular file but a {}. Write its contents to a file, and name that.",
                path.string(), kind);
}

InputFile::InputFile(const std::filesystem::path& path, std::string_view doing) {
  require_regular_file(path, doing);
  file_ = std::make_unique<Descriptor>(path, O_RDONLY, doing);
  bytes_ = file_->bytes();
}
InputFile::InputFile(InputFile&&) noexcept = default;
InputFile::~InputFile() = default;

void InputFile::read(std::int64_t first, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(file_->fd(), out.data(), out.size(), first);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_failure(file_->path(), "reading", errno);
    if (got == 0) {
      require_not_shortened(file_->path(), file_->fd(), bytes_);
      throw file_failure(file_->path(), "reading", EIO);  // within the file's size, yet not readable
    }
    out = out.subspan(static_cast<std::size_t>(got));
    first += got;
  }
}

void require_not_shortened(const std::filesystem::path& path, int fd, std::int64_t bytes) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw file_failure(path, "asking for its size", errno);
  if (status.st_size >= bytes) return;
  throw Failure(Exit::files,
                "{}: it was shortened from {} to {} bytes while it was read. Restore it and resume from the last "
                "checkpoint (--resume auto); write other data to another file.",
                path.string(), bytes, status.st_size);
}

void sync_file(const std::filesystem::path& path) {
  Descriptor file(path, O_RDONLY);
  file.sync();
  file.close();
}

void forget_cached(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);  // advice only: a file system in memory ignores it
}

void sync_folder(const std::filesystem::path& path) {
  Descriptor folder(path, O_RDONLY | O_DIRECTORY);
  // Some network file systems cannot sync a folder, but order renames themselves: not an error.
  if (::fsync(folder.fd()) != 0 && errno != EINVAL && errno != EBADF)
    throw file_failure(path, "syncing the folder", errno);
  folder.close();
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw file_failure(path, "creating the folder", error.value());
}

void publish(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw file_failure(to, fmt::format("renaming {} to it", from.filename().string()), errno);
  }
  sync_folder(to.has_parent_path() ? to.parent_path() : ".");
}

std::string shell_word(const std::filesystem::path& path) {
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) != 0 || std::strchr("_./-+=:,@%", c) != nullptr; };
  const std::string text = path.string();
  if (std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string read_text(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  const auto temporary = std::filesystem::path(path) += ".tmp";
  Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  while (!text.empty()) {
    const ssize_t put = ::write(file.fd(), text.data(), text.size());
    if (put < 0 && errno != EINTR) throw file_failure(temporary, "writing", errno);
    if (put > 0) text.remove_prefix(static_cast<std::size_t>(put));
  }
  file.sync();
  file.close();
  publish(temporary, path);
}

}  // namespace tessera::io
