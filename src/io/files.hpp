/// Plain files and folders for src/io. Every failure names the path and what to do next.
///
/// Throws  tessera::Failure(Exit::files) built from errno; Failure(Exit::out_of_memory) for ENOMEM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "errors.hpp"

namespace tessera::io {

class Descriptor;

/// Advice for a failed allocation.
inline constexpr const char* kMoreMemory =
    "Memory has run out: raise the limit on it (`ulimit -v unlimited`), or ask the scheduler for more";

/// "PATH: DOING failed: No space left on device. Free some space there, ..." for the errno `error`.
Failure file_failure(const std::filesystem::path&, std::string_view doing, int error);

/// Throws unless the path, with links followed, is a regular file. For use before opening: a FIFO blocks until written.
void require_regular_file(const std::filesystem::path&, std::string_view doing = "opening");

/// A regular file, read at any offset. If it has been shortened since it was opened, reading throws a Failure; mapped
/// memory would end the process with SIGBUS.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path&, std::string_view doing = "opening");
  InputFile(InputFile&&) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  std::int64_t bytes() const { return bytes_; }                   // when it was opened
  void read(std::int64_t first, std::span<std::byte> out) const;  // first + out.size() <= bytes()

 private:
  std::unique_ptr<const Descriptor> file_;
  std::int64_t bytes_;
};

/// Throws if the file of descriptor `fd`, open for reading, has fewer than `bytes`, its size when it was opened.
void require_not_shortened(const std::filesystem::path&, int fd, std::int64_t bytes);

void sync_file(const std::filesystem::path&);      // its bytes are on the disk
void forget_cached(const std::filesystem::path&);  // the next read of a synced file comes from the disk, if possible
void sync_folder(const std::filesystem::path&);    // its names are on the disk
void make_folder(const std::filesystem::path&);    // with its parents; an existing one is fine

/// Renames `from` to `to` within one folder, replacing a file there in one step, and syncs the folder.
void publish(const std::filesystem::path& from, const std::filesystem::path& to);

/// A path as a word of a command: in single quotes if a shell would read it otherwise.
std::string shell_word(const std::filesystem::path&);

std::string read_text(const std::filesystem::path&);
/// Writes `path`.tmp, syncs and publishes it: a reader sees the old text or the new one.
void write_text(const std::filesystem::path&, std::string_view text);

}  // namespace tessera::io
