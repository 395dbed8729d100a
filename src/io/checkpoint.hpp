/// Checkpoints: a folder per step, complete if it has an index.h5; otherwise it holds only the user's own files.
///
///   checkpoints/step_NNNNNNNN/index.h5       state as root attributes; /params/<label>, /moments/m/<label>, ... as
///                                            virtual datasets with relative sources: the logical tensors, however
///                                            many ranks wrote them; /<axis>, a dimension scale of the tensors that
///                                            have that axis; /files/{name,bytes,xxh3}
///   checkpoints/step_NNNNNNNN/rank_NNNNN.h5  what this rank wrote, float32, under the same paths: whole tensors in
///                                            their shape, parts of tensors as 1-D datasets; further parts of the same
///                                            tensor as <label>.from_<first>
///   checkpoints/step_NNNNNNNN/index.xxh3     checksum of index.h5
///   checkpoints/latest                       text: name of the newest complete folder; during a rewind also of the
///                                            folder that receives later ones
///   checkpoints/abandoned_NN/                set aside by a rewind: later checkpoints, and a copy of run.h5
///
/// Writing   all ranks together. They first compare what each will write: every element exactly once, since HDF5 reads
///           a gap as zeros. Files go to a temporary folder, are synced and read back; the folder is renamed, `latest`
///           is moved, and only then are checkpoints older than the newest `keep` deleted: one that verified stays.
/// Reading   every byte is verified against size and checksum (XXH3, 64 bit) before anything is used: HDF5 reads a
///           missing source of a virtual dataset as zeros. When R ranks open a checkpoint, rank i verifies the files
///           of writers i, i + R, .... Any number of ranks may then read, each any range of a tensor; a read opens only
///           files that hold part of its range.
/// Versions  format_version is 1. Parts of tensors and later attributes of the state are optional: every program that
///           reads version 1 reads all its files.
/// Throws    the same Failure on every rank, naming the one that failed, with the exit code of the callback that
///           fetches a tensor, that of exhausted memory, or else Exit::files. A failed write changes no checkpoint.
/// Limits    one run per directory at a time. Kill-safe where renaming is atomic. A scale is attached to at most 4,000
///           tensors; others have only the axis's name. Groups, labels and axes contain no white space.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/h5.hpp"

namespace tessera::io {

/// The ranks that read or write a checkpoint together. `all_gather` (collective, a barrier) runs a function on every
/// rank and returns the results by rank; if any failed, all throw the first rank's failure. io does not use MPI itself;
/// a single rank leaves the defaults.
struct Peers {
  using Work = std::function<std::string()>;
  int rank = 0;
  int ranks = 1;
  std::function<std::vector<std::string>(const Work&)> all_gather = [](const Work& work) {
    return std::vector<std::string>{work()};
  };
  std::function<void()> progress = [] {};  // called after every tensor and every few hundred megabytes
};

/// A logical tensor, unpadded and unsharded, or the part of one that this rank writes. Shape and axes are always those
/// of the whole tensor. A rank may write several parts of a tensor, or none.
struct CheckpointTensor {
  std::string group;  // "params", "moments/m", "moments/v"
  std::string label;  // "block.03.attn.qkv.weight"
  std::vector<std::int64_t> shape;
  /// Elements first .. first + count - 1, row-major. Called once, or never if count is 0; the result is valid until
  /// another tensor's `data` is called.
  std::function<std::span<const float>()> data;
  std::vector<std::string> axes = {};  // a name for each dimension ("channel"), or none
  std::int64_t first = 0;              // element of the tensor, in row-major order
  std::int64_t count = -1;             // elements; -1: the whole tensor; 0: none
};

struct CheckpointState {
  std::int64_t step = 0;          // optimizer steps done
  std::int64_t sample_index = 0;  // next global sample
  std::uint64_t seed = 0;         // with step and sample_index, all the state of random numbers
  double loss_scale = 1.0;
  std::int64_t good_steps = 0;              // since the loss scale last changed
  std::int64_t optimizer_steps = 0;         // updates that were not skipped
  std::int64_t bad_steps = 0;               // so far
  std::vector<std::int64_t> left_out = {};  // samples of bad steps, ascending: first, end, first, end, ...
  std::vector<double> norms = {};           // gradient norms that spikes are measured by, oldest first
  std::int64_t ranks = 1;                   // that wrote it; filled in by write_checkpoint
  std::string shard = {};                   // what they sharded: "none", "optimizer", ...; "" if not recorded
  std::string deck;                         // resolved, TOML
  std::string tokenisation;                 // Corpus::tokenisation()
  std::int64_t corpus_tokens = 0;           // Corpus::size()
  std::string corpus_fingerprint;           // Corpus::fingerprint(); "" if not recorded
  std::string gemm;                         // GEMM library and algorithms
  std::string git_hash;
  std::string run_id = {};     // of the run that wrote it, as in its run.h5; "" if not recorded
  std::string directory = {};  // of that run, without links; filled in by write_checkpoint
};

/// Writes checkpoints/step_NNNNNNNN of `run_directory`, replacing any of that step, and deletes all but the newest
/// `keep`. The state is rank 0's. Collective.
///
/// Throws  on every rank, as above; Exit::files if parts do not cover a tensor exactly once, naming it, the elements,
///         and any ranks that both write them.
void write_checkpoint(const std::filesystem::path& run_directory, const CheckpointState&,
                      std::span<const CheckpointTensor> mine, const Peers&, int keep);

class CheckpointReader {
 public:
  const CheckpointState& state() const { return state_; }
  const std::filesystem::path& folder() const { return folder_; }
  std::int64_t bytes() const;  // of the ranks' files
  std::vector<std::int64_t> shape(const std::string& group, const std::string& label) const;
  /// Reads the whole tensor, row-major.
  /// Throws  Failure(Exit::files) if `out` has another size.
  void read(const std::string& group, const std::string& label, std::span<float> out) const;
  /// Reads elements first .. first + out.size() - 1 of the tensor, in row-major order. Local.
  /// Throws  std::out_of_range if the range exceeds the tensor.
  void read(const std::string& group, const std::string& label, std::int64_t first, std::span<float> out) const;
  /// Call after the last read: if a file has disappeared or shrunk since it was verified, HDF5 silently reads zeros.
  /// Throws  Failure(Exit::files) if a rank's file has disappeared or changed size.
  void require_unchanged() const;

 private:
  /// Opens the files with these elements, until require_unchanged(): HDF5 silently reads zeros from one that another
  /// program locks.
  void hold_sources(const h5::Dataset& tensor, std::int64_t first, std::int64_t count) const;

  friend CheckpointReader open_checkpoint(const std::filesystem::path&, const Peers&, std::string_view);
  CheckpointReader(std::filesystem::path folder, h5::File index, CheckpointState state, std::vector<std::string> files,
                   std::vector<std::int64_t> bytes);

  std::filesystem::path folder_;
  h5::File index_;
  CheckpointState state_;
  std::vector<std::string> files_;   // of the ranks: their names
  std::vector<std::int64_t> bytes_;  // of each
  mutable std::map<std::string, h5::File> sources_;
};

/// Collective. Verifies files (divided among the ranks), version and completeness, and that every rank's host has the
/// same checkpoint. `option`, for messages, is what precedes a path on the command line ("--resume ", "job.input=").
///
/// Throws  the same Failure(Exit::files) on every rank, naming the damaged file and an older checkpoint to use instead
CheckpointReader open_checkpoint(const std::filesystem::path& step_folder, const Peers&, std::string_view option);

/// Whether `step_folder`, in any spelling, is one of the run's checkpoints or a link there that stands for one.
bool is_checkpoint_in(const std::filesystem::path& run_directory, const std::filesystem::path& step_folder);

/// Rewinds the run in `run_directory` to `step_folder`, one of its checkpoints: points `latest` there, then moves
/// checkpoints of later steps to a new checkpoints/abandoned_NN, with a copy of run.h5, whose later rows are about to
/// be removed. Returns that folder; empty if there was no later checkpoint. A kill before `latest` has moved changes
/// nothing; after it, newest_checkpoint() is `step_folder`, and calling again with it completes the rewind. Local: call
/// on one rank.
///
/// Throws  Failure(Exit::files) if a file or folder cannot be read, written or moved.
std::optional<std::filesystem::path> rewind_to(const std::filesystem::path& run_directory,
                                               const std::filesystem::path& step_folder);

/// Copies run.h5 of a run without checkpoints to a new checkpoints/abandoned_NN, whose path it returns, before the run
/// begins again. Local: call on one rank.
std::filesystem::path set_trace_aside(const std::filesystem::path& run_directory);

/// Where the checkpoints of the run in `run_directory` lie.
std::filesystem::path checkpoints_in(const std::filesystem::path& run_directory);

/// Deletes the run's checkpoints, those set aside by rewinds, and remains of killed writes; also the folder
/// `checkpoints`, unless it is a link or holds anything else. Returns the files in checkpoints' folders that belong to
/// no checkpoint, which stay. Local: call on one rank.
///
/// Throws  Failure(Exit::files) if something cannot be deleted; before it deletes anything, as the next.
std::vector<std::filesystem::path> remove_checkpoints(const std::filesystem::path& run_directory);

/// Where the run's `checkpoints` is a link, it may lead to another run's.
///
/// Throws  Failure(Exit::files) if a checkpoint behind the link does not name this directory and the id in its run.h5,
///         if the link leads nowhere, or if `latest` is no file.
void require_own_checkpoints(const std::filesystem::path& run_directory);

/// The newest complete checkpoint of the run, even if `latest` names an older one (after a kill before `latest` moved,
/// or an edit); during a rewind, its target. Checkpoints that are links or another run's count only if `latest` names
/// them. Empty: no checkpoint. Local: call on one rank and broadcast the result.
///
/// Throws  Failure(Exit::files) if `latest` is no file, or cannot be read.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run_directory);

/// The folder that `latest` names; "" if it does not exist.
std::string named_by_latest(const std::filesystem::path& run_directory);

}  // namespace tessera::io
