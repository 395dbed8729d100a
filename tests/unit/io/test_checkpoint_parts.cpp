/// Checkpoints of which each rank writes parts of tensors, and of which each rank reads the ranges that it asks for.
#include <gmock/gmock.h>
#include <sys/inotify.h>

#include <cstdlib>
#include <map>
#include <numeric>

#include "io/checkpoint.hpp"
#include "io/h5.hpp"
#include "tests/unit/io/peers.hpp"
#include "tests/unit/io/scratch.hpp"

namespace tessera::test {
namespace {

using io::CheckpointTensor;
using io::Peers;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Shape = std::vector<std::int64_t>;

const Peers kAlone{};

io::CheckpointState at_step_1() {
  io::CheckpointState state;
  state.step = 1;
  return state;
}

/// Lines, a row, a column, matrices, a block; no two alike in size.
const std::map<std::string, Shape> kShapes{{"line", {7}},      {"one", {1}},       {"row", {1, 6}},
                                           {"column", {5, 1}}, {"matrix", {3, 4}}, {"block", {2, 3, 4}}};

std::int64_t size_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// 1000 n + 1, 1000 n + 2, ... for the n-th label in alphabetical order: no zero, and no value twice.
std::vector<float> values_of(const std::string& label) {
  std::vector<float> values(static_cast<std::size_t>(size_of(kShapes.at(label))));
  std::iota(values.begin(), values.end(),
            static_cast<float>(1000 * std::distance(kShapes.begin(), kShapes.find(label)) + 1));
  return values;
}

CheckpointTensor part_of(const std::string& label, std::int64_t first, std::int64_t count) {
  const auto data = [values = values_of(label), first, count] {
    return std::span<const float>(values).subspan(static_cast<std::size_t>(first),
                                                  count < 0 ? std::dynamic_extent : static_cast<std::size_t>(count));
  };
  std::vector<std::string> words;
  for (std::size_t i = 0; i < kShapes.at(label).size(); ++i) words.push_back(label + ".axis" + std::to_string(i));
  return {"params", label, kShapes.at(label), data, words, first, count};
}

/// Where a rank's part begins, of `size` elements on `ranks` ranks. `begin(ranks)` is `size`.
using Cut = std::function<std::int64_t(std::int64_t size, int rank, int ranks)>;

const std::map<std::string, Cut> kCuts{
    {"even", [](std::int64_t size, int rank, int ranks) { return size * rank / ranks; }},
    {"one element, then the rest",
     [](std::int64_t size, int rank, int ranks) { return rank == ranks ? size : std::min<std::int64_t>(rank, size); }},
    {"all but one element, then it",
     [](std::int64_t size, int rank, int ranks) { return rank == 0       ? 0
                                                         : rank == ranks ? size
                                                                         : size - 1; }},
    {"all on the last rank", [](std::int64_t size, int rank, int ranks) { return rank == ranks ? size : 0; }},
    {"growing", [](std::int64_t size, int rank, int ranks) { return size * rank * rank / (ranks * ranks); }}};

std::vector<CheckpointTensor> parts_of(const Cut& cut, const Peers& peers) {
  std::vector<CheckpointTensor> mine;
  for (const auto& [label, shape] : kShapes) {
    const std::int64_t first = cut(size_of(shape), peers.rank, peers.ranks);
    mine.push_back(part_of(label, first, cut(size_of(shape), peers.rank + 1, peers.ranks) - first));
  }
  return mine;
}

/// Writes step 1 of `run`, and returns its folder; `mine` says what a rank writes.
template <class Mine>
fs::path write_parts(const ScratchFolder& run, int ranks, Mine mine) {
  const auto thrown =
      run_ranks(ranks, [&](const Peers& peers) { write_checkpoint(run.path(), at_step_1(), mine(peers), peers, 1); });
  EXPECT_THAT(thrown, Each(IsEmpty()));
  return run / "checkpoints/step_00000001";
}

/// Reads the whole tensors, and each range of each.
void expect_whole(const io::CheckpointReader& reader) {
  for (const auto& [label, shape] : kShapes) {
    const std::vector<float> values = values_of(label);
    std::vector<float> out(values.size());
    reader.read("params", label, out);
    ASSERT_EQ(reader.shape("params", label), shape);
    ASSERT_EQ(out, values) << label;
    for (std::size_t first = 0; first <= values.size(); ++first) {
      for (std::size_t end = first; end <= values.size(); ++end) {
        out.assign(end - first, 0);
        reader.read("params", label, static_cast<std::int64_t>(first), out);
        ASSERT_TRUE(std::equal(out.begin(), out.end(), values.begin() + static_cast<std::ptrdiff_t>(first)))
            << label << " from " << first << " to " << end;
      }
    }
  }
}

TEST(CheckpointParts, come_back_by_any_range_on_any_number_of_ranks) {
  for (int writers = 1; writers <= 4; ++writers) {
    for (const auto& [name, cut] : kCuts) {
      SCOPED_TRACE(name + " on " + std::to_string(writers));
      const ScratchFolder run;
      const auto folder = write_parts(run, writers, [&](const Peers& peers) { return parts_of(cut, peers); });
      const auto thrown =
          run_ranks(2, [&](const Peers& peers) { expect_whole(io::open_checkpoint(folder, peers, "")); });
      EXPECT_THAT(thrown, Each(IsEmpty()));
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(CheckpointParts, of_one_rank_may_be_several_in_any_order) {
  const ScratchFolder run;
  const auto folder = write_parts(run, 2, [](const Peers& peers) {
    std::vector<CheckpointTensor> mine;
    for (const auto& [label, shape] : kShapes) {
      for (std::int64_t first = size_of(shape); first-- > 0;) {
        if (first % 2 == peers.rank) mine.push_back(part_of(label, first, 1));
      }
    }
    return mine;
  });
  expect_whole(io::open_checkpoint(folder, kAlone, ""));
}

TEST(CheckpointParts, whole_tensors_keep_their_shape_and_parts_are_lines) {
  const ScratchFolder run;
  const auto folder = write_parts(run, 2, [](const Peers& peers) {
    std::vector<CheckpointTensor> mine;
    if (peers.rank == 1) mine.push_back(part_of("block", 0, 24));
    for (const std::string label : {"line", "one", "row", "column"}) {
      if (peers.rank == 0) mine.push_back(part_of(label, 0, -1));
    }
    mine.push_back(part_of("matrix", peers.rank == 0 ? 0 : 5, peers.rank == 0 ? 5 : 7));
    return mine;
  });
  {
    const auto first = io::h5::File::open(folder / "rank_00000.h5");
    const auto second = io::h5::File::open(folder / "rank_00001.h5");
    EXPECT_THAT(first.dataset("params/row").shape(), ElementsAre(1, 6));
    EXPECT_THAT(second.dataset("params/block").shape(), ElementsAre(2, 3, 4));
    EXPECT_THAT(first.dataset("params/matrix").shape(), ElementsAre(5));
    EXPECT_THAT(second.dataset("params/matrix").shape(), ElementsAre(7));
    EXPECT_EQ(second.dataset("params/matrix").text("description"), "params of matrix, elements 5..11");
  }
  EXPECT_EQ(io::h5::File::open(folder / "index.h5").integer("format_version"), 1);
  expect_whole(io::open_checkpoint(folder, kAlone, ""));
}

TEST(CheckpointParts, open_in_h5py_as_the_logical_tensors) {
  for (const auto& [name, cut] : kCuts) {
    const ScratchFolder run;
    const auto folder = write_parts(run, 3, [&](const Peers& peers) { return parts_of(cut, peers); });
    std::string command = "'" TESSERA_PYTHON "' '" TESSERA_SOURCE_DIR "/tests/unit/io/open_checkpoint.py' '" +
                          (folder / "index.h5").string() + "'";
    for (const auto& [label, shape] : kShapes) {
      command += " params/" + label + ":" + std::to_string(static_cast<int>(values_of(label)[0]));
      for (const std::int64_t extent : shape) command += ":" + std::to_string(extent);
    }
    EXPECT_EQ(std::system(command.c_str()), 0) << name;
  }
}

TEST(CheckpointParts, data_of_none_are_not_asked_for) {
  const ScratchFolder run;
  const auto folder = write_parts(run, 2, [](const Peers& peers) {
    auto mine = parts_of(kCuts.at("all on the last rank"), peers);
    if (peers.rank == 1) return mine;
    for (CheckpointTensor& tensor : mine) {
      tensor.data = []() -> std::span<const float> { throw std::logic_error("asked for"); };
    }
    return mine;
  });
  expect_whole(io::open_checkpoint(folder, kAlone, ""));
}

TEST(CheckpointParts, range_outside_the_tensor_is_not_read) {
  const ScratchFolder run;
  const auto folder = write_parts(run, 2, [](const Peers& peers) { return parts_of(kCuts.at("even"), peers); });
  const auto reader = io::open_checkpoint(folder, kAlone, "");
  std::vector<float> out(3);
  for (const std::int64_t first : {std::int64_t{-1}, std::int64_t{10}, std::int64_t{12}, INT64_MAX, INT64_MIN}) {
    try {
      reader.read("params", "matrix", first, out);
      ADD_FAILURE() << "from " << first;
    } catch (const std::out_of_range& fault) {
      EXPECT_THAT(fault.what(), AllOf(HasSubstr("params/matrix"), HasSubstr("[3, 4]"),
                                      HasSubstr("no 3 elements from " + std::to_string(first))));
    }
  }
  reader.read("params", "matrix", 12, std::span(out).first(0));
  EXPECT_THAT(out, Each(0.0F));
}

/// How often `file` has been opened since the last call.
class Openings {
 public:
  explicit Openings(const fs::path& file) : descriptor_(::inotify_init1(IN_NONBLOCK)) {
    if (descriptor_ < 0 || ::inotify_add_watch(descriptor_, file.c_str(), IN_OPEN) < 0) {
      throw std::runtime_error("inotify " + file.string());
    }
  }
  ~Openings() { ::close(descriptor_); }
  Openings(const Openings&) = delete;
  Openings& operator=(const Openings&) = delete;

  bool any() {
    alignas(inotify_event) char events[4096];
    return ::read(descriptor_, events, sizeof events) > 0;
  }

 private:
  int descriptor_;
};

TEST(CheckpointParts, file_of_another_range_is_not_opened) {
  const ScratchFolder run;
  const auto folder = write_parts(run, 2, [](const Peers& peers) { return parts_of(kCuts.at("even"), peers); });
  const auto reader = io::open_checkpoint(folder, kAlone, "");
  std::vector<float> out(2);
  Openings openings(folder / "rank_00001.h5");
  reader.read("params", "matrix", 3, out);
  EXPECT_THAT(out, ElementsAre(values_of("matrix")[3], values_of("matrix")[4]));
  EXPECT_FALSE(openings.any());
  reader.read("params", "matrix", 5, out);
  EXPECT_TRUE(openings.any());
}

TEST(CheckpointParts, damaged_file_is_refused_by_name) {
  const ScratchFolder run;
  const auto folder = write_parts(run, 3, [](const Peers& peers) { return parts_of(kCuts.at("growing"), peers); });
  const fs::path file = folder / "rank_00001.h5";
  const auto refusal = [&] { return failure_of([&] { io::open_checkpoint(folder, kAlone, "--resume "); }); };
  flip_byte(file, fs::file_size(file) / 2);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("rank_00001.h5"), HasSubstr("checksum")));
  fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("rank_00001.h5"), HasSubstr("bytes, the index says")));
  fs::remove(file);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("rank_00001.h5"), HasSubstr("No such file")));
}

// --- refused on all ranks, before anything is written ---------------------------------------------------------------

/// What all ranks throw, each of which writes `mine[rank]`.
std::string refusal_of(const std::vector<std::vector<CheckpointTensor>>& mine) {
  const ScratchFolder run;
  std::vector<Exit> codes(mine.size());
  const auto thrown = run_ranks(static_cast<int>(mine.size()), [&](const Peers& peers) {
    const auto rank = static_cast<std::size_t>(peers.rank);
    auto unread = mine[rank];
    for (CheckpointTensor& tensor : unread) {
      tensor.data = []() -> std::span<const float> { throw std::logic_error("asked for"); };
    }
    try {
      write_checkpoint(run.path(), at_step_1(), unread, peers, 1);
    } catch (const Failure& failure) {
      codes[rank] = failure.code();
      throw;
    }
  });
  EXPECT_THAT(codes, Each(Exit::files));
  EXPECT_THAT(thrown, Each(thrown[0]));
  EXPECT_THAT(names_in(run / "checkpoints"), IsEmpty());
  return thrown[0];
}

TEST(CheckpointPartsRefused, elements_that_no_rank_writes) {
  EXPECT_THAT(refusal_of({{part_of("matrix", 0, 5)}, {part_of("matrix", 6, 6)}}),
              HasSubstr("no rank writes elements 5..5 of params/matrix"));
  EXPECT_THAT(refusal_of({{part_of("matrix", 5, 4)}, {part_of("matrix", 9, 3)}}),
              HasSubstr("no rank writes elements 0..4 of params/matrix"));
  EXPECT_THAT(refusal_of({{part_of("line", 0, -1)}, {part_of("matrix", 0, 11)}, {}}),
              HasSubstr("no rank writes elements 11..11 of params/matrix"));
  EXPECT_THAT(refusal_of({{part_of("matrix", 5, 0)}, {part_of("matrix", 0, 0)}}),
              HasSubstr("no rank writes elements 0..11 of params/matrix"));
}

TEST(CheckpointPartsRefused, elements_that_are_written_twice) {
  EXPECT_THAT(refusal_of({{part_of("matrix", 0, 6)}, {part_of("matrix", 5, 7)}}),
              HasSubstr("elements 5..5 of params/matrix are written twice, by rank 0 and rank 1"));
  EXPECT_THAT(refusal_of({{part_of("matrix", 4, 2)}, {part_of("matrix", 0, -1)}}),
              HasSubstr("elements 4..5 of params/matrix are written twice, by rank 1 and rank 0"));
  EXPECT_THAT(refusal_of({{part_of("matrix", 0, -1)}, {}, {part_of("matrix", 0, -1)}}),
              HasSubstr("elements 0..11 of params/matrix are written twice, by rank 0 and rank 2"));
  EXPECT_THAT(refusal_of({{part_of("line", 0, 4), part_of("line", 3, 4)}}),
              HasSubstr("elements 3..3 of params/line are written twice, by rank 0 and rank 0"));
}

TEST(CheckpointPartsRefused, ranges_outside_the_tensor) {
  for (const auto& [first, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {-1, 2}, {0, 13}, {12, 1}, {3, -1}, {0, -2}, {2, INT64_MAX}}) {
    CheckpointTensor outside = part_of("matrix", 0, 12);
    outside.first = first;
    outside.count = count;
    EXPECT_THAT(refusal_of({{part_of("line", 0, -1)}, {outside}}),
                AllOf(HasSubstr("rank 1: "), HasSubstr("params/matrix of shape [3, 4] has no"),
                      HasSubstr("from " + std::to_string(first))));
  }
}

TEST(CheckpointPartsRefused, shapes_or_axes_on_which_ranks_differ) {
  CheckpointTensor other = part_of("matrix", 6, 6);
  other.shape = {4, 3};
  EXPECT_THAT(refusal_of({{part_of("matrix", 0, 6)}, {other}}),
              AllOf(HasSubstr("params/matrix"), HasSubstr("[4, 3]"), HasSubstr("[3, 4]"), HasSubstr("on rank 1")));
  other = part_of("matrix", 6, 6);
  other.axes = {"matrix.axis0", "channel"};
  EXPECT_THAT(refusal_of({{part_of("matrix", 0, 6)}, {other}}), HasSubstr("(matrix.axis0, channel) on rank 1"));
}

TEST(CheckpointPartsRefused, data_of_another_length) {
  const ScratchFolder run;
  const auto thrown = run_ranks(2, [&](const Peers& peers) {
    std::vector<CheckpointTensor> mine{part_of("matrix", 6 * peers.rank, 6)};
    if (peers.rank == 1) mine[0].data = part_of("matrix", 6, 5).data;
    write_checkpoint(run.path(), at_step_1(), mine, peers, 1);
  });
  EXPECT_THAT(thrown[0], AllOf(HasSubstr("rank 1: "), HasSubstr("params/matrix"), HasSubstr("5 values for shape [6]")));
  EXPECT_EQ(thrown[0], thrown[1]);
}

}  // namespace
}  // namespace tessera::test
