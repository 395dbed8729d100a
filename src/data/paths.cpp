#include "data/paths.hpp"

#include <fmt/core.h>
#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>

#include "errors.hpp"
#include "io/files.hpp"

namespace tessera::data {
namespace {

bool exists(const std::string& path) {
  std::error_code ignored;  // glob(3) reports what cannot be examined
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

/// The pattern with special characters escaped in those leading folders that exist under their literal names.
std::string with_literal_folders(const std::string& pattern) {
  std::size_t end = 0;
  for (auto at = pattern.find('/', 1); at != std::string::npos && exists(pattern.substr(0, at));
       at = pattern.find('/', at + 1))
    end = at;
  std::string result;
  for (const char c : pattern.substr(0, end)) {
    if (std::string_view("*?[\\").find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result + pattern.substr(end);
}

struct UnreadFolder {
  std::string path;
  int error = 0;
};
thread_local UnreadFolder unread;  // glob(3) passes its callback no user pointer

int stop_at_unread(const char* folder, int error) {
  if (error == ENOENT || error == ENOTDIR) return 0;  // nothing can match there
  unread = {folder, error};
  return 1;
}

}  // namespace

bool is_pattern(const std::string& path) {
  const auto bracket = path.find('[');
  const bool has_set = bracket != std::string::npos && path.find(']', bracket) != std::string::npos;
  return (has_set || path.find_first_of("*?") != std::string::npos) && !exists(path);
}

std::vector<std::string> matches_of(const std::string& pattern) {
  struct Matches : glob_t {
    Matches() : glob_t{} {}
    ~Matches() { globfree(this); }
  } found;
  const int status = ::glob(with_literal_folders(pattern).c_str(), GLOB_NOSORT, stop_at_unread, &found);
  if (status == GLOB_NOSPACE) throw std::bad_alloc();
  if (status == GLOB_ABORTED) throw io::file_failure(unread.path, "looking for data.path=" + pattern, unread.error);
  if (status == GLOB_NOMATCH) {
    throw Failure(Exit::files,
                  fmt::format("{}: no file matches. In data.path, * stands for any characters but /, ? for one, [...] "
                              "for one of those inside, and none for a leading dot; anything else is itself. "
                              "Check it with ls.",
                              pattern));
  }
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  std::ranges::sort(paths);
  return paths;
}

std::pair<std::string, std::string> split_hdf5_path(const std::string& path) {
  for (const std::string ending : {".h5", ".hdf5"}) {
    if (path.ends_with(ending)) return {path, "tokens"};
    const auto at = path.rfind(ending + ":");
    if (at == std::string::npos) continue;
    std::string dataset = path.substr(at + ending.size() + 1);
    dataset.erase(0, dataset.find_first_not_of('/'));
    return {path.substr(0, at + ending.size()), dataset.empty() ? "tokens" : dataset};
  }
  return {};
}

}  // namespace tessera::data
