#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "io/checkpoint.hpp"  // rewind_to, is_rewinding, newest_checkpoint, remove_checkpoints
#include "io/checkpoint_detail.hpp"
#include "io/files.hpp"

namespace tessera::io {
namespace fs = std::filesystem;

using namespace detail;

namespace {

constexpr std::string_view kAbandoned = "abandoned_";

/// The text of `latest`: the name of the newest checkpoint and, while a rewind to it is in progress, of the folder that
/// receives the later ones.
struct Latest {
  std::string name, abandoned;
};

Latest read_latest(const fs::path& checkpoints) {
  std::error_code error;
  Latest latest;
  if (!fs::exists(checkpoints / "latest", error)) return latest;
  std::istringstream words(read_text(checkpoints / "latest"));
  words >> latest.name >> latest.abandoned;
  if (!step_of(latest.name) || !fs::is_directory(checkpoints / latest.name, error)) return {};
  if (!latest.abandoned.starts_with(kAbandoned) || latest.abandoned.find('/') != std::string::npos) {
    latest.abandoned.clear();
  }
  return latest;
}

/// The first abandoned_NN that does not exist.
std::string free_abandoned(const fs::path& checkpoints) {
  std::error_code error;
  for (int number = 1;; ++number) {
    std::string name = fmt::format("{}{:02d}", kAbandoned, number);
    if (!fs::exists(checkpoints / name, error)) return name;
  }
}

bool is_abandoned(const std::string& name) {
  return name.starts_with(kAbandoned) && name.size() >= kAbandoned.size() + 2 &&
         std::all_of(name.begin() + kAbandoned.size(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

void remove_checkpoints(const fs::path& run_directory) {
  const fs::path checkpoints = checkpoints_of(run_directory);
  std::vector<fs::path> own;
  std::error_code error;
  for (fs::directory_iterator entry(checkpoints, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (step_of(name) || is_temporary(name) || is_abandoned(name) || name == "latest" || name == "latest.tmp") {
      own.push_back(entry->path());
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw file_failure(checkpoints, "deleting the checkpoints", error.value());
  }
  for (const fs::path& path : own) {
    fs::remove_all(path, error);
    if (error) throw file_failure(path, "deleting the checkpoint", error.value());
  }
  fs::remove(checkpoints, error);  // unless something is left in it
}

bool is_rewinding(const fs::path& run_directory) {
  return !read_latest(checkpoints_of(run_directory)).abandoned.empty();
}

std::optional<fs::path> rewind_to(const fs::path& run_directory, const fs::path& step_folder) {
  const fs::path checkpoints = checkpoints_of(run_directory);
  const std::string name = fs::canonical(step_folder).filename().string();
  Latest latest = read_latest(checkpoints);
  auto later = steps_in(checkpoints);
  std::erase_if(later, [&](std::int64_t step) { return step <= step_of(name); });
  const bool is_under_way = latest.name == name && !latest.abandoned.empty();
  if (!is_under_way) {
    if (later.empty()) {
      if (latest.name != name) write_text(checkpoints / "latest", name + "\n");
      return {};
    }
    latest = {name, free_abandoned(checkpoints)};
    write_text(checkpoints / "latest", latest.name + "\n" + latest.abandoned + "\n");
  }

  const fs::path abandoned = checkpoints / latest.abandoned;
  make_folder(abandoned);
  std::error_code error;
  if (const fs::path trace = run_directory / "run.h5"; fs::exists(trace, error) && !fs::exists(abandoned / "run.h5")) {
    const fs::path temporary = abandoned / "run.h5.tmp";
    fs::copy_file(trace, temporary, fs::copy_options::overwrite_existing, error);
    if (error) throw file_failure(temporary, "copying run.h5 to it", error.value());
    sync_file(temporary);
    publish(temporary, abandoned / "run.h5");
  }
  for (const std::int64_t step : later) publish(checkpoints / step_name(step), abandoned / step_name(step));
  sync_folder(checkpoints);
  write_text(checkpoints / "latest", name + "\n");
  return abandoned;
}

std::optional<fs::path> newest_checkpoint(const fs::path& run_directory) {
  const fs::path checkpoints = checkpoints_of(run_directory);
  if (const std::string name = read_latest(checkpoints).name; !name.empty()) return checkpoints / name;
  const auto steps = steps_in(checkpoints);
  if (steps.empty()) return {};
  return checkpoints / step_name(steps.back());
}

}  // namespace tessera::io
