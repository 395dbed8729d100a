#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "io/checkpoint.hpp"  // rewind_to, newest_checkpoint, remove_checkpoints
#include "io/checkpoint_detail.hpp"
#include "io/files.hpp"
#include "io/h5.hpp"
#include "io/trace.hpp"  // run_id_in

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

/// Throws if `latest` exists but is not a file, which can be neither read nor replaced.
void require_file_as_latest(const fs::path& checkpoints) {
  std::error_code error;
  const fs::file_status status = fs::status(checkpoints / "latest", error);
  if (!fs::exists(status) || fs::is_regular_file(status)) return;
  throw Failure(Exit::files,
                "{}: it is {}, not the text file that names the newest checkpoint. Move it: checkpoints are then found "
                "by their names",
                (checkpoints / "latest").string(),
                fs::is_directory(status) ? "a folder"
                : fs::is_fifo(status)    ? "a FIFO"
                : fs::is_socket(status)  ? "a socket"
                                         : "a device");
}

Latest read_latest(const fs::path& checkpoints) {
  std::error_code error;
  Latest latest;
  require_file_as_latest(checkpoints);
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

/// What this program has put into `checkpoints`.
struct Written {
  std::vector<fs::path> steps;        // folders of checkpoints, also of those that rewinds set aside
  std::vector<fs::path> temporaries;  // folders of checkpoints that a killed run was writing or deleting
  std::vector<fs::path> abandoned;    // folders of rewinds, which hold some of the steps
  std::vector<fs::path> files;        // others, and links to folders of rewinds
};

bool is_link(const fs::path& path) {
  std::error_code error;
  return fs::is_symlink(path, error);
}

constexpr std::string_view kDeleting = "deleting the checkpoints";

Written written_in(const fs::path& checkpoints) {
  Written written;
  for (const fs::path& path : entries_of(checkpoints, kDeleting)) {
    const std::string name = path.filename();
    if (step_of(name)) {
      written.steps.push_back(path);
    } else if (home_of_temporary(name)) {
      written.temporaries.push_back(path);
    } else if (is_abandoned(name)) {
      (is_link(path) ? written.files : written.abandoned).push_back(path);
    } else if (name == "latest" || name == "latest.tmp") {
      written.files.push_back(path);
    }
  }
  for (const fs::path& abandoned : written.abandoned) {
    for (const fs::path& path : entries_of(abandoned, kDeleting)) {
      const std::string name = path.filename();
      if (step_of(name)) written.steps.push_back(path);
      if (name == "run.h5" || name == "run.h5.tmp") written.files.push_back(path);
    }
  }
  return written;
}

/// The run that wrote a checkpoint, and its directory then; "" if its index does not say so.
struct Writer {
  std::string run_id, directory;
  bool operator==(const Writer&) const = default;
};

Writer writer_of(const fs::path& step_folder) {
  try {
    const fs::path index = step_folder / "index.h5";
    if (checksum(index) != listed_checksum(step_folder)) return {};
    const CheckpointState state = read_state(h5::File::open(index));
    return {state.run_id, state.directory};
  } catch (const Failure&) {                // missing or damaged
  } catch (const std::invalid_argument&) {  // lists that are damaged
  }
  return {};
}

/// The path of a checkpoint's entry in `checkpoints`, where it may be a link to a folder of another name. A link of
/// another name than a step's leads to one. None if it lies elsewhere.
std::optional<fs::path> entry_of(const fs::path& checkpoints, const fs::path& step_folder) {
  std::error_code error;
  const fs::path spelled = step_folder.has_filename() ? step_folder : step_folder.parent_path();
  for (const fs::path& path : {fs::absolute(spelled, error), fs::canonical(spelled, error)}) {
    if (step_of(path.filename().string()) && fs::equivalent(path.parent_path(), checkpoints, error)) return path;
  }
  return {};
}

/// Copies run.h5, if there is one, to `folder`, which is made, unless it has one.
void copy_trace(const fs::path& run_directory, const fs::path& folder) {
  make_folder(folder);
  std::error_code error;
  const fs::path trace = run_directory / "run.h5";
  if (!fs::exists(trace, error) || fs::exists(folder / "run.h5", error)) return;
  const fs::path temporary = folder / "run.h5.tmp";
  fs::copy_file(trace, temporary, fs::copy_options::overwrite_existing, error);
  if (error) throw file_failure(temporary, "copying run.h5 to it", error.value());
  sync_file(temporary);
  publish(temporary, folder / "run.h5");
}

void require_target_of_link(const fs::path& checkpoints) {
  std::error_code error;
  if (!is_link(checkpoints) || fs::exists(checkpoints, error)) return;
  throw Failure(Exit::files, "{} is a link to {}, which is not there: make that folder, or delete the link",
                checkpoints.string(), fs::read_symlink(checkpoints, error).string());
}

}  // namespace

void require_own_checkpoints(const fs::path& run_directory) {
  const fs::path checkpoints = checkpoints_in(run_directory);
  require_file_as_latest(checkpoints);
  require_target_of_link(checkpoints);
  if (!is_link(checkpoints)) return;
  std::error_code error;
  const Writer own{run_id_in(run_directory), fs::weakly_canonical(run_directory, error).string()};
  for (const fs::path& step : written_in(checkpoints).steps) {
    if (!holds_files_of_checkpoint(step) || (!own.run_id.empty() && writer_of(step) == own)) continue;
    throw Failure(Exit::files,
                  "{} is a link to {}, where {} does not say that the run in this directory wrote it: job.overwrite "
                  "does not delete it. Continue from it (--resume auto), use another directory (job.directory=...), or "
                  "delete it yourself, or the link",
                  checkpoints.string(), fs::weakly_canonical(checkpoints, error).string(),
                  fs::relative(step, checkpoints, error).string());
  }
}

fs::path checkpoints_in(const fs::path& run_directory) { return run_directory / "checkpoints"; }

std::vector<fs::path> remove_checkpoints(const fs::path& run_directory) {
  require_own_checkpoints(run_directory);
  const fs::path checkpoints = checkpoints_in(run_directory);
  const Written written = written_in(checkpoints);
  std::vector<fs::path> foreign;
  const auto remove = [](const fs::path& path) {
    std::error_code error;
    fs::remove(path, error);
    if (error) throw file_failure(path, "deleting the checkpoint", error.value());
  };
  const auto remove_step = [&](const fs::path& folder, const fs::path& home) {
    const auto left = dismantle(folder, home);
    foreign.insert(foreign.end(), left.begin(), left.end());
  };
  for (const fs::path& step : written.steps) remove_step(step, step);
  // They name no owner: behind a link, another run may be writing them.
  if (!is_link(checkpoints)) {
    for (const fs::path& folder : written.temporaries) {
      remove_step(folder, checkpoints / *home_of_temporary(folder.filename()));
    }
  }
  for (const fs::path& file : written.files) remove(file);
  for (const fs::path& abandoned : written.abandoned) {
    for (const fs::path& path : entries_of(abandoned, kDeleting)) {
      if (!step_of(path.filename())) foreign.push_back(path);
    }
    std::error_code not_empty;
    fs::remove(abandoned, not_empty);
  }
  std::error_code not_empty;
  if (!is_link(checkpoints)) fs::remove(checkpoints, not_empty);
  return foreign;
}

bool is_checkpoint_in(const fs::path& run_directory, const fs::path& step_folder) {
  return entry_of(checkpoints_in(run_directory), step_folder).has_value();
}

std::optional<fs::path> rewind_to(const fs::path& run_directory, const fs::path& step_folder) {
  const fs::path checkpoints = checkpoints_in(run_directory);
  const std::string name = entry_of(checkpoints, step_folder).value().filename().string();
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
  copy_trace(run_directory, abandoned);
  for (const std::int64_t step : later) publish(checkpoints / step_name(step), abandoned / step_name(step));
  sync_folder(checkpoints);
  write_text(checkpoints / "latest", name + "\n");
  return abandoned;
}

fs::path set_trace_aside(const fs::path& run_directory) {
  const fs::path checkpoints = checkpoints_in(run_directory);
  make_folder(checkpoints);
  const fs::path abandoned = checkpoints / free_abandoned(checkpoints);
  copy_trace(run_directory, abandoned);
  sync_folder(checkpoints);
  return abandoned;
}

std::optional<fs::path> newest_checkpoint(const fs::path& run_directory) {
  const fs::path checkpoints = checkpoints_in(run_directory);
  require_target_of_link(checkpoints);
  entries_of(checkpoints, "looking for checkpoints");  // what cannot be listed is not empty
  const Latest latest = read_latest(checkpoints);
  const auto steps = steps_in(checkpoints);
  if (latest.name.empty()) return steps.empty() ? std::nullopt : std::optional(checkpoints / step_name(steps.back()));
  if (!latest.abandoned.empty()) return checkpoints / latest.name;
  const fs::path named = checkpoints / latest.name;
  for (auto step = steps.rbegin(); step != steps.rend() && *step > *step_of(latest.name); ++step) {
    const fs::path folder = checkpoints / step_name(*step);
    if (!is_link(folder) && writer_of(folder).run_id == writer_of(named).run_id) return folder;
  }
  return named;
}

std::string named_by_latest(const fs::path& run_directory) { return read_latest(checkpoints_in(run_directory)).name; }

}  // namespace tessera::io
