/// Properties of each kind of job: one row per job.kind. To add a job of the product: a row here, a row in
/// jobs/jobs.cpp and a file; rooms above register theirs (extension.hpp).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "config/settings.hpp"

namespace tessera::config {

/// A job's memory, as --plan shows it.
struct SetUp {
  enum class Memory { steps, forward, generation };  // optimizer steps; forward passes; decoding

  Settings settings;
  Memory memory = Memory::steps;
  std::int64_t sequences = 0, prompt_tokens = 0;  // of Memory::generation
};

struct JobTraits {
  JobKind kind;
  std::string_view name;                       // in job.kind
  bool resumes = false;                        // takes --resume; after a signal stops it, it can continue
  bool has_steps = false;                      // runs optimizer steps: reads data, has a plan
  bool has_own_dtype = false;                  // its attention computes in a number format other than precision.compute
  std::string_view input = {};                 // what job.input must be; empty: nothing is read
  std::string_view file = {};                  // what it writes in its directory; empty: nothing
  SetUp (*set_up)(const Settings&) = nullptr;  // what --plan plans; null: its steps, if it has some
  std::string_view rows_key = {};  // if its deck describes rows, each a deck of its own: the key that selects them

  bool has_plan() const { return has_steps || set_up != nullptr; }
  bool has_rows() const { return !rows_key.empty(); }
};

inline constexpr std::string_view kCheckpointInput = "the path of a checkpoint folder";
inline constexpr std::string_view kFileInput = "the path of an HDF5 file";

/// The product's.
inline constexpr JobTraits kJobs[] = {
    {JobKind::train, "train", true, true, false, "", "run.h5"},
    {JobKind::generate, "generate", false, false, false, kCheckpointInput, ""},
    {JobKind::verify_attention, "verify.attention", false, false, false, kFileInput, "attention.h5"},
    {JobKind::verify_model, "verify.model", false, false, false, kFileInput, "model.h5"},
};

/// Those of the product, then those that are registered.
std::vector<const JobTraits*> all_jobs();

/// Throws std::logic_error for a kind that is not registered.
const JobTraits& traits_of(JobKind kind);

}  // namespace tessera::config
