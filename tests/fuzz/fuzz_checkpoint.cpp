/// Checkpoints: what --verify-checkpoint, --resume and job.input read. The first byte says what the others are, beside
/// files that are sound: i index.h5, with its checksum; d index.h5 alone; x index.xxh3; l `latest`.
#include <xxhash.h>

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "config/deck.hpp"
#include "io/checkpoint.hpp"
#include "io/h5.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace tessera;
namespace fs = std::filesystem;

/// A run with the checkpoints of two steps.
struct Run {
  const fs::path folder = fuzz::scratch_folder() / "run", checkpoints = io::checkpoints_in(folder);
  const fs::path older = checkpoints / "step_00000002", newest = checkpoints / "step_00000004";

  Run() {
    const fs::path sound = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/checkpoint_v1/ranks_1/step_00000004";
    fs::create_directories(checkpoints);
    fs::copy(sound, older);
    fs::copy(sound, newest);
    index = bytes_of(sound / "index.h5");
  }
  static std::string bytes_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// With the files that are not the input.
  void write(char what, const std::string& input) const {
    const std::string& h5 = what == 'i' || what == 'd' ? input : index;
    const std::string& summed = what == 'd' ? index : h5;
    fuzz::write_file(newest / "index.h5", h5);
    const std::string sum = fmt::format("{:016x}  index.h5\n", XXH3_64bits(summed.data(), summed.size()));
    fuzz::write_file(newest / "index.xxh3", what == 'x' ? input : sum);
    fuzz::write_file(checkpoints / "latest", what == 'l' ? input : "step_00000004\n");
  }
  std::string index;
};

/// As --resume reads a checkpoint, but for the model that it must fit.
void read_all(const fs::path& folder) {
  const io::CheckpointReader reader = io::open_checkpoint(folder, {}, "--resume ");
  fuzz::require(reader.state().step >= 0 && reader.state().sample_index >= 0, "counts below zero");
  config::parse_stored_deck(reader.state().deck, "the checkpoint's deck");
  const io::h5::File index = io::h5::File::open(folder / "index.h5");
  for (const std::string group : {"params", "moments/m", "moments/v"}) {
    if (!index.has(group)) continue;
    for (const std::string& label : index.group(group).names()) {
      std::int64_t size = 1;  // of a small model
      for (const std::int64_t extent : reader.shape(group, label)) size *= std::clamp<std::int64_t>(extent, 0, 64);
      size = std::min<std::int64_t>(size, 4096);
      std::vector<float> values(static_cast<std::size_t>(size));
      fuzz::take_or_refuse({Exit::files}, [&] { reader.read(group, label, std::span(values)); });
    }
  }
  reader.require_unchanged();
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Run run;
  if (size == 0) return 0;
  run.write(static_cast<char>(data[0]), fuzz::text_of(data + 1, size - 1));
  fuzz::take_or_refuse({Exit::files, Exit::out_of_memory, Exit::usage}, [&] { read_all(run.newest); });
  fuzz::take_or_refuse({Exit::files}, [&] {
    const auto newest = io::newest_checkpoint(run.folder);
    fuzz::require(newest && fs::is_directory(*newest), "no newest checkpoint");
    io::named_by_latest(run.folder);
  });
  return 0;
}
