#include "io/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "io/files.hpp"
#include "io/h5.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::string_view kFormat = "tessera checkpoint";
constexpr std::string_view kTemporary = ".tmp_";  // prefix of everything that a killed run may leave behind

fs::path checkpoints_of(const fs::path& run_directory) { return run_directory / "checkpoints"; }
std::string step_name(std::int64_t step) { return fmt::format("step_{:08d}", step); }
std::string rank_name(int rank) { return fmt::format("rank_{:05d}.h5", rank); }

/// The step of a folder named step_NNNNNNNN; empty for any other name.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with("step_") || name.size() < 13 || name.size() > 23) return {};
  if (!std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; })) return {};
  return std::stoll(name.substr(5));
}

/// Steps of the complete checkpoints in `folder`, ascending; none where the folder cannot be read.
std::vector<std::int64_t> steps_in(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (const auto step = step_of(entry->path().filename().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

/// Runs `work` on every rank; when it failed on any, all ranks throw the same Failure, which names the first that did:
/// of files, unless it is a Failure with a code of its own, or memory that ran out.
/// Returns what `work` returned on each rank. A collective: no rank leaves before all have arrived.
template <class Work>
std::vector<std::string> together(const Peers& peers, Work work) {
  std::string report;
  try {
    report = "+" + work();
  } catch (const std::exception& fault) {
    const bool has_code = dynamic_cast<const Failure*>(&fault) || exit_of(fault) == Exit::out_of_memory;
    report = "-" + told(Failure(has_code ? exit_of(fault) : Exit::files, fault.what()));
  }
  auto reports = peers.all_gather ? peers.all_gather(report) : std::vector<std::string>{report};
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].starts_with('+')) continue;
    const std::string who = reports.size() > 1 ? fmt::format("rank {}: ", rank) : "";
    const Failure failure = failure_told(reports[rank].substr(1));
    throw Failure(failure.code(), who + failure.what());
  }
  for (std::string& text : reports) text.erase(0, 1);
  return reports;
}

/// XXH3 (64 bit) of a file's bytes, as `xxhsum -H3` prints it.
std::string checksum(const fs::path& path) {
  const InputFile file(path);
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<std::byte> block(std::size_t{1} << 20);
  for (std::int64_t first = 0; first < file.bytes(); first += static_cast<std::int64_t>(block.size())) {
    block.resize(std::min(block.size(), static_cast<std::size_t>(file.bytes() - first)));
    file.read(first, block);
    XXH3_64bits_update(state.get(), block.data(), block.size());
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

// --- writing --------------------------------------------------------------------------------------------------------

/// Rank 0, first: a clean temporary folder; what a killed run left is removed.
void prepare(const fs::path& checkpoints, const fs::path& temporary) {
  make_folder(checkpoints);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    if (entry.path().filename().string().starts_with(kTemporary)) fs::remove_all(entry.path(), ignored);
  }
  make_folder(temporary);
}

/// Every rank: its file, on the disk. Returns its manifest: "bytes checksum", then a line per tensor: "group label",
/// and "extent axis" of each dimension, where '-' is an axis without a name.
std::string write_rank_file(const fs::path& path, std::int64_t step, int rank,
                            std::span<const CheckpointTensor> tensors) {
  auto file = h5::File::create(path);
  file.set_attribute("format", kFormat);
  file.set_attribute("format_version", kVersion);
  file.set_attribute("step", step);
  file.set_attribute("rank", std::int64_t{rank});
  std::string manifest;
  for (const CheckpointTensor& tensor : tensors) {
    file.write(tensor.group + "/" + tensor.label, tensor.shape, tensor.data(),
               {"1", tensor.group + " of " + tensor.label});
    manifest += fmt::format("{} {}", tensor.group, tensor.label);
    for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
      manifest += fmt::format(" {} {}", tensor.shape[axis], tensor.axes.empty() ? "-" : tensor.axes.at(axis));
    }
    manifest += '\n';
  }
  file.close();
  sync_file(path);
  return fmt::format("{} {}\n{}", fs::file_size(path), checksum(path), manifest);
}

void write_state(h5::Object& root, const CheckpointState& s) {
  root.set_attribute("format", kFormat);
  root.set_attribute("format_version", kVersion);
  root.set_attribute("step", s.step);
  root.set_attribute("sample_index", s.sample_index);
  root.set_attribute("seed", s.seed);
  root.set_attribute("loss_scale", s.loss_scale);
  root.set_attribute("good_steps", s.good_steps);
  root.set_attribute("optimizer_steps", s.optimizer_steps);
  root.set_attribute("ranks", s.ranks);
  root.set_attribute("deck", s.deck);
  root.set_attribute("tokenisation", s.tokenisation);
  root.set_attribute("corpus_tokens", s.corpus_tokens);
  if (!s.corpus_fingerprint.empty()) root.set_attribute("corpus_fingerprint", s.corpus_fingerprint);
  root.set_attribute("gemm", s.gemm);
  root.set_attribute("git_hash", s.git_hash);
}

CheckpointState read_state(const h5::Object& root) {
  return {.step = root.integer("step"),
          .sample_index = root.integer("sample_index"),
          .seed = root.natural("seed"),
          .loss_scale = root.number("loss_scale"),
          .good_steps = root.integer("good_steps"),
          .optimizer_steps = root.integer("optimizer_steps"),
          .ranks = root.integer("ranks"),
          .deck = root.text("deck"),
          .tokenisation = root.text("tokenisation"),
          .corpus_tokens = root.integer("corpus_tokens"),
          .corpus_fingerprint = root.has_attribute("corpus_fingerprint") ? root.text("corpus_fingerprint") : "",
          .gemm = root.text("gemm"),
          .git_hash = root.text("git_hash")};
}

/// The dimension scales of an index, made in its root as tensors first name them.
class Axes {
 public:
  explicit Axes(h5::File& file) : file_(file) {}

  void attach(h5::Dataset& tensor, int dimension, const std::string& name, std::int64_t extent) {
    tensor.set_label(dimension, name);
    auto at = scales_.find(name);
    if (at == scales_.end()) {
      std::vector<std::int32_t> numbers(static_cast<std::size_t>(extent));
      std::iota(numbers.begin(), numbers.end(), 0);
      auto scale = file_.write(name, numbers, {"1", "number of the " + name});
      scale.make_scale(name);
      at = scales_.emplace(name, Scale{std::move(scale), extent}).first;
    }
    if (at->second.extent != extent) {
      throw std::logic_error(fmt::format("checkpoint: {} has {} entries along {}, a tensor before it {}",
                                         tensor.where(), extent, name, at->second.extent));
    }
    if (at->second.tensors++ < kMaxTensors) tensor.attach_scale(at->second.dataset, dimension);
  }

 private:
  /// A scale lists what it measures in an attribute, 16 bytes each, and an attribute has 64 KiB.
  static constexpr int kMaxTensors = 4000;
  struct Scale {
    h5::Dataset dataset;
    std::int64_t extent;
    int tensors = 0;
  };
  h5::File& file_;
  std::map<std::string, Scale> scales_;
};

/// Rank 0: the index over all rank files, made of their manifests.
void write_index(const fs::path& path, const CheckpointState& state, const std::vector<std::string>& manifests) {
  auto file = h5::File::create(path);
  write_state(file, state);
  std::vector<std::string> names, checksums;
  std::vector<std::int64_t> bytes;
  Axes axes(file);
  for (std::size_t rank = 0; rank < manifests.size(); ++rank) {
    names.push_back(rank_name(static_cast<int>(rank)));
    std::istringstream lines(manifests[rank]);
    std::string line;
    std::getline(lines, line);
    std::istringstream(line) >> bytes.emplace_back() >> checksums.emplace_back();
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string group, label;
      h5::Shape shape;
      std::vector<std::string> names_of_axes;
      words >> group >> label;
      for (std::int64_t extent; words >> extent >> names_of_axes.emplace_back();) shape.push_back(extent);
      const std::string tensor = group + "/" + label;
      if (file.has(tensor)) {
        throw std::logic_error(fmt::format("checkpoint: {} is written by rank {} and by one before it", tensor, rank));
      }
      auto dataset = file.write_virtual(tensor, h5::Type::float32, shape, names.back(), "/" + tensor,
                                        {"1", group + " of " + label});
      for (std::size_t i = 0; i < shape.size(); ++i) {
        if (names_of_axes[i] != "-") axes.attach(dataset, static_cast<int>(i), names_of_axes[i], shape[i]);
      }
    }
  }
  auto name = file.write("files/name", names, {"1", "rank files of this checkpoint"});
  name.make_scale("name");
  file.write("files/bytes", bytes, {"byte", "size of the rank file"}).attach_scale(name, 0);
  file.write("files/xxh3", checksums, {"1", "XXH3 of the rank file, 64 bit, as xxhsum -H3 prints it"})
      .attach_scale(name, 0);
  file.close();
  sync_file(path);
}

/// Moves the finished folder to its name. One of the same step is swapped out in one step where the file system can;
/// where it cannot there is a moment in which only older checkpoints exist.
void publish_folder(const fs::path& temporary, const fs::path& folder) {
  sync_folder(temporary);
  if (!fs::exists(folder)) return publish(temporary, folder);
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
      throw file_failure(folder, "replacing the checkpoint", errno);
    publish(folder, folder.parent_path() / (std::string(kTemporary) + "old_" + folder.filename().string()));
    publish(temporary, folder);
  }
  sync_folder(folder.parent_path());
}

/// Deletes temporary folders and all but the newest `keep` checkpoints up to `step`. Later ones, of a write that was
/// killed before `latest` moved, stay until they are written again. What cannot be deleted stays: the
/// next write tries again.
void prune(const fs::path& checkpoints, std::int64_t step, int keep) {
  std::error_code ignored;
  auto steps = steps_in(checkpoints);
  std::erase_if(steps, [&](std::int64_t s) { return s > step; });
  const auto kept = std::min(steps.size(), static_cast<std::size_t>(std::max(keep, 1)));
  steps.resize(steps.size() - kept);
  for (const std::int64_t old : steps) {
    // under a temporary name first: a kill in the middle of deleting leaves no half checkpoint with a good name
    const fs::path dying = checkpoints / (std::string(kTemporary) + "old_" + step_name(old));
    fs::rename(checkpoints / step_name(old), dying, ignored);
  }
  for (fs::directory_iterator entry(checkpoints, ignored), end; entry != end; entry.increment(ignored)) {
    if (entry->path().filename().string().starts_with(kTemporary)) fs::remove_all(entry->path(), ignored);
  }
}

}  // namespace

void write_checkpoint(const fs::path& run_directory, const CheckpointState& state,
                      std::span<const CheckpointTensor> mine, const Peers& peers, int keep) {
  const fs::path checkpoints = checkpoints_of(run_directory);
  const fs::path folder = checkpoints / step_name(state.step);
  const fs::path temporary = checkpoints / (std::string(kTemporary) + step_name(state.step));
  const bool is_first = peers.rank == 0;
  try {
    together(peers, [&] {
      if (is_first) prepare(checkpoints, temporary);
      return std::string();
    });
    const auto manifests = together(
        peers, [&] { return write_rank_file(temporary / rank_name(peers.rank), state.step, peers.rank, mine); });
    together(peers, [&] {
      if (!is_first) return std::string();
      CheckpointState complete = state;
      complete.ranks = peers.ranks;
      write_index(temporary / "index.h5", complete, manifests);
      write_text(temporary / "index.xxh3", checksum(temporary / "index.h5") + "  index.h5\n");
      publish_folder(temporary, folder);
      write_text(checkpoints / "latest", step_name(state.step) + "\n");
      prune(checkpoints, state.step, keep);
      return std::string();
    });
  } catch (...) {
    std::error_code ignored;
    if (is_first) fs::remove_all(temporary, ignored);
    throw;
  }
}

// --- reading --------------------------------------------------------------------------------------------------------

namespace {

/// What to do when `folder`, which was given by `option`, cannot be used.
std::string instead_of(const fs::path& folder, std::string_view option) {
  const auto step = step_of(folder.filename().string());
  auto steps = steps_in(folder.parent_path());
  std::erase_if(steps, [&](std::int64_t s) { return step && s >= *step; });
  if (steps.empty()) {
    return fmt::format("There is no older checkpoint beside it: use another run's ({}...), or train anew", option);
  }
  return fmt::format("Use the one before: {}{}", option, (folder.parent_path() / step_name(steps.back())).string());
}

Failure damaged(const fs::path& file, const std::string& what, std::string_view option) {
  return Failure(Exit::files, fmt::format("{}: {}. {}.", file.string(), what, instead_of(file.parent_path(), option)));
}

/// The index, checked before HDF5 trusts its contents.
h5::File open_index(const fs::path& folder, std::string_view option) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw Failure(Exit::files,
                  fmt::format("{}: no such checkpoint folder. {}.", folder.string(), instead_of(folder, option)));
  }
  const fs::path path = folder / "index.h5", sum_path = folder / "index.xxh3";
  for (const fs::path& file : {path, sum_path}) {
    const fs::file_status status = fs::status(file, error);
    if (status.type() == fs::file_type::not_found) throw damaged(file, "missing", option);
    if (status.type() == fs::file_type::none) throw damaged(file, "cannot be read: " + error.message(), option);
    if (!fs::is_regular_file(status)) throw damaged(file, "not a regular file", option);
  }
  const std::string expected = read_text(sum_path).substr(0, 16), found = checksum(path);
  std::optional<h5::File> index;
  std::int64_t version = kVersion;
  try {
    index = h5::File::open(path);
    version = index->integer("format_version");
  } catch (const Failure&) {
    if (found == expected) throw;  // else the checksum says more than HDF5 does
  }
  if (version != kVersion) {
    throw damaged(path, fmt::format("checkpoint format version {} where this program reads {}", version, kVersion),
                  option);
  }
  if (found != expected)
    throw damaged(path, fmt::format("damaged: its checksum is {}, index.xxh3 says {}", found, expected), option);
  return std::move(*index);
}

void verify_rank_file(const fs::path& path, std::int64_t bytes, const std::string& expected, std::string_view option) {
  std::error_code error;
  const auto found_bytes = fs::file_size(path, error);
  if (error) throw damaged(path, fmt::format("cannot be read: {}", error.message()), option);
  if (found_bytes != static_cast<std::uintmax_t>(bytes)) {
    throw damaged(path, fmt::format("damaged: it has {} bytes, the index says {}", found_bytes, bytes), option);
  }
  const std::string found = checksum(path);
  if (found != expected)
    throw damaged(path, fmt::format("damaged: its checksum is {}, the index says {}", found, expected), option);
}

}  // namespace

struct CheckpointReader::Opened {
  fs::path folder;
  h5::File index;
  CheckpointState state;
  std::vector<std::string> files;   // of the ranks
  std::vector<std::int64_t> bytes;  // theirs
};

CheckpointReader::CheckpointReader(std::unique_ptr<Opened> opened) : opened_(std::move(opened)) {}
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

const CheckpointState& CheckpointReader::state() const { return opened_->state; }
const fs::path& CheckpointReader::folder() const { return opened_->folder; }

std::vector<std::string> CheckpointReader::labels(const std::string& group) const {
  return opened_->index.has(group) ? opened_->index.group(group).names() : std::vector<std::string>();
}

bool CheckpointReader::has(const std::string& group, const std::string& label) const {
  return opened_->index.has(group + "/" + label);
}

std::vector<std::int64_t> CheckpointReader::shape(const std::string& group, const std::string& label) const {
  return opened_->index.dataset(group + "/" + label).shape();
}

void CheckpointReader::read(const std::string& group, const std::string& label, std::span<float> out) const {
  opened_->index.dataset(group + "/" + label).read(out);
}

void CheckpointReader::require_unchanged() const {
  for (std::size_t i = 0; i < opened_->files.size(); ++i) {
    const fs::path path = opened_->folder / opened_->files[i];
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    if (error || bytes != static_cast<std::uintmax_t>(opened_->bytes[i])) {
      throw Failure(Exit::files, fmt::format("{}: {} while it was read: another run deletes or writes the checkpoints "
                                             "there. Copy the checkpoint to another folder, and start again.",
                                             path.string(), error ? "disappeared" : "changed"));
    }
  }
}

CheckpointReader open_checkpoint(const fs::path& step_folder, const Peers& peers, std::string_view option) {
  // "x/step_00000010/" and relative paths get the same name and neighbours as the plain one
  fs::path folder = fs::absolute(step_folder).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  std::unique_ptr<CheckpointReader::Opened> opened;
  together(peers, [&] {
    h5::File index = open_index(folder, option);
    const CheckpointState state = read_state(index);
    const auto names = index.dataset("files/name").strings(), checksums = index.dataset("files/xxh3").strings();
    const auto bytes = index.dataset("files/bytes").values<std::int64_t>();
    for (std::size_t file = static_cast<std::size_t>(peers.rank); file < names.size();
         file += static_cast<std::size_t>(peers.ranks)) {
      verify_rank_file(folder / names[file], bytes.at(file), checksums.at(file), option);
    }
    opened.reset(new CheckpointReader::Opened{folder, std::move(index), state, names, bytes});
    return std::string();
  });
  return CheckpointReader(std::move(opened));
}

namespace {

constexpr std::string_view kAbandoned = "abandoned_";

/// The text of `latest`: the name of the newest checkpoint, and while a rewind to it is under way the folder that takes
/// the later ones.
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

/// The first abandoned_NN that is not there.
std::string free_abandoned(const fs::path& checkpoints) {
  std::error_code error;
  for (int number = 1;; ++number) {
    std::string name = fmt::format("{}{:02d}", kAbandoned, number);
    if (!fs::exists(checkpoints / name, error)) return name;
  }
}

}  // namespace

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
