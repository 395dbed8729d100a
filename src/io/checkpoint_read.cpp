#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "io/checkpoint.hpp"  // open_checkpoint, CheckpointReader
#include "io/checkpoint_detail.hpp"
#include "io/files.hpp"

namespace tessera::io {
namespace fs = std::filesystem;

using namespace detail;

namespace {

/// Advice for a `folder`, given by `option`, that cannot be used.
std::string instead_of(const fs::path& folder, std::string_view option) {
  const auto step = step_of(folder.filename().string());
  auto steps = steps_in(folder.parent_path());
  std::erase_if(steps, [&](std::int64_t s) {
    std::error_code error;
    return (step && s >= *step) || fs::equivalent(folder.parent_path() / step_name(s), folder, error);
  });
  if (steps.empty()) {
    return fmt::format("There is no older checkpoint beside it: use another run's ({}...), or start a new run", option);
  }
  return fmt::format("Use the one before: {}{}", option, shell_word(folder.parent_path() / step_name(steps.back())));
}

Failure damaged(const fs::path& file, const std::string& what, std::string_view option) {
  return Failure(Exit::files, "{}: {}. {}", file.string(), what, instead_of(file.parent_path(), option));
}

/// The index, open, after checking its checksum and version.
h5::File open_index(const fs::path& folder, std::string_view option) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw Failure(Exit::files, "{}: no such checkpoint folder. {}", folder.string(), instead_of(folder, option));
  }
  const fs::path path = folder / "index.h5", sum_path = folder / "index.xxh3";
  for (const fs::path& file : {path, sum_path}) {
    const fs::file_status status = fs::status(file, error);
    if (status.type() == fs::file_type::not_found) throw damaged(file, "missing", option);
    if (status.type() == fs::file_type::none) throw damaged(file, "cannot be read: " + error.message(), option);
    if (!fs::is_regular_file(status)) throw damaged(file, "not a regular file", option);
  }
  const std::string expected = listed_checksum(folder), found = checksum(path);
  if (found != expected)  // before HDF5 sees it, which damage can crash
    throw damaged(path, fmt::format("damaged: its checksum is {}, but index.xxh3 says {}", found, expected), option);
  h5::File index = h5::File::open(path);
  const std::int64_t version = index.integer("format_version");
  if (version != kVersion) {
    throw damaged(path, fmt::format("checkpoint format version {}, but this program reads {}", version, kVersion),
                  option);
  }
  return index;
}

/// The files of the ranks, as the index lists them, and what it says of the run.
struct Listed {
  CheckpointState state;
  std::vector<std::string> names, checksums;
  std::vector<std::int64_t> bytes;
};

CheckpointState sound_state(const h5::File& index, const fs::path& path, std::string_view option) {
  CheckpointState state;
  try {
    state = read_state(index);
  } catch (const std::invalid_argument& fault) {
    throw damaged(path, fmt::format("damaged: {}", fault.what()), option);
  }
  for (const std::int64_t count : {state.step, state.sample_index, state.good_steps, state.optimizer_steps,
                                   state.bad_steps, state.ranks, state.corpus_tokens}) {
    if (count < 0) throw damaged(path, fmt::format("damaged: it counts {} where nothing is below 0", count), option);
  }
  const auto& samples = state.left_out;
  if (samples.size() % 2 != 0 || !std::is_sorted(samples.begin(), samples.end()) ||
      (!samples.empty() && samples[0] < 0)) {
    throw damaged(path, fmt::format("damaged: its left_out, {}, are not ranges that ascend", fmt::join(samples, " ")),
                  option);
  }
  for (const double norm : state.norms) {
    if (!std::isfinite(norm) || norm < 0) {
      throw damaged(path, fmt::format("damaged: its norms hold {}, which is none", norm), option);
    }
  }
  return state;
}

Listed read_index(const h5::File& index, const fs::path& path, std::string_view option) {
  Listed listed{sound_state(index, path, option), index.dataset("files/name").strings(),
                index.dataset("files/xxh3").strings(), index.dataset("files/bytes").values<std::int64_t>()};
  const auto& [_, names, checksums, bytes] = listed;
  if (names.size() != checksums.size() || names.size() != bytes.size()) {
    throw damaged(path,
                  fmt::format("damaged: it lists {} checksums of {} files and {} sizes", checksums.size(), names.size(),
                              bytes.size()),
                  option);
  }
  for (const std::string& name : names) {
    if (name.starts_with("rank_") && name.find('/') == std::string::npos) continue;
    throw damaged(path, fmt::format("damaged: it lists the file '{}', which is no rank's", name), option);
  }
  return listed;
}

void verify_rank_file(const fs::path& path, std::int64_t bytes, const std::string& expected,
                      const std::function<void()>& progress, std::string_view option) {
  std::error_code error;
  const auto found_bytes = fs::file_size(path, error);
  if (error) throw damaged(path, fmt::format("cannot be read: {}", error.message()), option);
  if (found_bytes != static_cast<std::uintmax_t>(bytes)) {
    throw damaged(path, fmt::format("damaged: it has {} bytes, the index says {}", found_bytes, bytes), option);
  }
  const std::string found = checksum(path, progress);
  if (found != expected)
    throw damaged(path, fmt::format("damaged: its checksum is {}, the index says {}", found, expected), option);
}

}  // namespace

CheckpointReader::CheckpointReader(fs::path folder, h5::File index, CheckpointState state,
                                   std::vector<std::string> files, std::vector<std::int64_t> bytes)
    : folder_(std::move(folder)),
      index_(std::move(index)),
      state_(std::move(state)),
      files_(std::move(files)),
      bytes_(std::move(bytes)) {}

std::int64_t CheckpointReader::bytes() const { return std::accumulate(bytes_.begin(), bytes_.end(), std::int64_t{0}); }

std::vector<std::int64_t> CheckpointReader::shape(const std::string& group, const std::string& label) const {
  return index_.dataset(group + "/" + label).shape();
}

void CheckpointReader::hold_sources(const h5::Dataset& tensor, std::int64_t first, std::int64_t count) const {
  for (const std::string& file : tensor.sources_of(first, count)) {
    if (!sources_.contains(file)) sources_.emplace(file, h5::File::open_source(folder_ / file));
  }
}

void CheckpointReader::read(const std::string& group, const std::string& label, std::span<float> out) const {
  const h5::Dataset tensor = index_.dataset(group + "/" + label);
  hold_sources(tensor, 0, tensor.size());
  tensor.read(out);
}

void CheckpointReader::read(const std::string& group, const std::string& label, std::int64_t first,
                            std::span<float> out) const {
  const h5::Dataset tensor = index_.dataset(group + "/" + label);
  if (first < 0 || first > tensor.size() - static_cast<std::int64_t>(out.size())) {
    throw std::out_of_range(fmt::format("{}: shape [{}] has no {} elements from {} on", tensor.where(),
                                        fmt::join(tensor.shape(), ", "), out.size(), first));
  }
  hold_sources(tensor, first, static_cast<std::int64_t>(out.size()));
  tensor.read_from(first, out);
}

void CheckpointReader::require_unchanged() const {
  sources_.clear();
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const fs::path path = folder_ / files_[i];
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    if (error || bytes != static_cast<std::uintmax_t>(bytes_[i])) {
      throw Failure(Exit::files,
                    "{}: {} while it was read: another run deletes or writes the checkpoints there. Copy the "
                    "checkpoint to another folder, and start again.",
                    path.string(), error ? "disappeared" : "changed");
    }
  }
}

CheckpointReader open_checkpoint(const fs::path& step_folder, const Peers& peers, std::string_view option) {
  fs::path folder;
  std::optional<CheckpointReader> opened;
  const std::vector<std::string> sums = all_gather(peers, [&] {
    // normalised ("x/step_00000010/", relative): messages name the folder and its neighbours
    folder = fs::absolute(step_folder).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    h5::File index = open_index(folder, option);
    Listed listed = read_index(index, folder / "index.h5", option);
    for (std::size_t file = static_cast<std::size_t>(peers.rank); file < listed.names.size();
         file += static_cast<std::size_t>(peers.ranks)) {
      verify_rank_file(folder / listed.names[file], listed.bytes[file], listed.checksums[file], peers.progress, option);
    }
    opened.emplace(CheckpointReader(folder, std::move(index), std::move(listed.state), std::move(listed.names),
                                    std::move(listed.bytes)));
    return listed_checksum(folder);  // that of the index, which holds those of all files
  });
  const auto other = std::find_if(sums.begin(), sums.end(), [&](const std::string& sum) { return sum != sums[0]; });
  peers.all_gather([&] {
    if (other == sums.end()) return std::string();
    throw Failure(Exit::files,
                  "rank {}: {} differs from the checkpoint on rank 0's host: copy one of them to all hosts",
                  other - sums.begin(), folder.string());
  });
  return std::move(*opened);
}

}  // namespace tessera::io
