/// HDF5 handles: what is written comes back, and every fault names the file and the next action.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <limits>
#include <numeric>

#include "io/h5.hpp"
#include "tests/unit/io/scratch.hpp"

namespace tessera::test {
namespace {

namespace h5 = io::h5;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Clusters turn locking off. HDF5 reads this once, when it is first used.
[[maybe_unused]] const int kLocking = ::setenv("HDF5_USE_FILE_LOCKING", "BEST_EFFORT", 1);

const h5::Meaning kMeaning{"s", "a column"};

template <class T>
class H5Types : public testing::Test {};
using Elements = testing::Types<float, double, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t,
                                std::uint64_t>;
TYPED_TEST_SUITE(H5Types, Elements);

TYPED_TEST(H5Types, tensor_comes_back_with_type_shape_and_meaning) {
  const ScratchFolder folder;
  std::vector<TypeParam> values(24);
  std::iota(values.begin(), values.end(), TypeParam{1});
  values[5] = std::numeric_limits<TypeParam>::max();
  values[6] = std::numeric_limits<TypeParam>::lowest();
  {
    auto file = h5::File::create(folder / "a.h5");
    file.write("deep/down/x", {2, 3, 4}, std::span<const TypeParam>(values), kMeaning);
    file.close();
  }
  const auto file = h5::File::open(folder / "a.h5");
  const auto again = file.dataset("deep/down/x");
  EXPECT_EQ(again.type(), h5::type_of<TypeParam>());
  EXPECT_THAT(again.shape(), ElementsAre(2, 3, 4));
  EXPECT_EQ(again.template values<TypeParam>(), values);
  EXPECT_EQ(again.text("units"), "s");
  EXPECT_EQ(again.text("description"), "a column");
}

TEST(H5, empty_columns_and_scalars_come_back) {
  const ScratchFolder folder;
  auto file = h5::File::create(folder / "a.h5");
  file.write("numbers", std::vector<double>{}, kMeaning);
  file.write("texts", std::vector<std::string>{}, kMeaning);
  const float loss = 1.5f;
  file.write("loss", {}, std::span<const float>(&loss, 1), kMeaning);
  file.close();
  const auto again = h5::File::open(folder / "a.h5");
  EXPECT_TRUE(again.dataset("numbers").values<double>().empty());
  EXPECT_TRUE(again.dataset("texts").strings().empty());
  EXPECT_THAT(again.dataset("loss").shape(), ElementsAre());
  EXPECT_THAT(again.dataset("loss").values<float>(), ElementsAre(1.5f));
}

TEST(H5, text_and_attributes_come_back) {
  const ScratchFolder folder;
  const std::string deck(100'000, 'x');  // beyond the 64 KiB of a compact attribute
  {
    auto file = h5::File::create(folder / "a.h5");
    file.write("names", std::vector<std::string>{"Überschrift", "", "block.03"}, kMeaning);
    file.set_attribute("deck", "first");
    file.set_attribute("deck", deck);
    file.set_attribute("count", std::int64_t{-7});
    file.set_attribute("seed", std::numeric_limits<std::uint64_t>::max());
    file.set_attribute("scale", 0.1);
    file.set_attribute("names", std::vector<std::string>{"Überschrift", ""});
    file.set_attribute("no names", std::vector<std::string>{});
    file.set_attribute("numbers", std::vector<std::int64_t>{1, -7});
    file.close();
  }
  const auto file = h5::File::open(folder / "a.h5");
  EXPECT_THAT(file.dataset("names").strings(), ElementsAre("Überschrift", "", "block.03"));
  EXPECT_EQ(file.text("deck"), deck);
  EXPECT_EQ(file.integer("count"), -7);
  EXPECT_EQ(file.natural("seed"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(file.number("scale"), 0.1);
  EXPECT_EQ(file.number("count"), -7.0);
  EXPECT_THAT(file.texts("names"), ElementsAre("Überschrift", ""));
  EXPECT_THAT(file.texts("no names"), ElementsAre());
  EXPECT_THAT(file.texts("deck"), ElementsAre(deck));
  EXPECT_FALSE(file.has_attribute("nothing"));
  EXPECT_THAT(failure_of([&] { file.integer("nothing"); }),
              AllOf(HasSubstr("a.h5"), HasSubstr("@nothing"), HasSubstr("missing")));
  EXPECT_THAT(failure_of([&] { file.integer("deck"); }), HasSubstr("not an integer"));
  EXPECT_THAT(failure_of([&] { file.integer("scale"); }), HasSubstr("not an integer"));
  EXPECT_THAT(failure_of([&] { file.text("count"); }), HasSubstr("no text"));
  EXPECT_THAT(failure_of([&] { file.text("names"); }), HasSubstr("an array"));
  EXPECT_THAT(failure_of([&] { file.texts("numbers"); }), HasSubstr("no text"));
  EXPECT_THAT(failure_of([&] { file.integer("numbers"); }), HasSubstr("an array"));
}

// Input files come from h5py, which writes booleans, short strings and default types in its own way.
TEST(H5, reads_what_h5py_writes) {
  const ScratchFolder folder;
  write_bytes(folder / "write.py", R"(
import h5py, numpy, sys
with h5py.File(sys.argv[1], "w") as file:
    file.attrs["flag"] = True
    file.attrs["off"] = numpy.bool_(False)
    file.attrs["number"] = 3
    file.attrs["small"] = numpy.int8(-3)
    file.attrs["text"] = "Grüße"
    file.attrs["bytes"] = numpy.bytes_("fixed")
    file["double"] = numpy.arange(6.0).reshape(2, 3)
    file["default"] = numpy.arange(5)
    file["half"] = numpy.arange(3, dtype="float16")
    file["big_endian"] = numpy.arange(3, dtype=">i4")
    file.create_dataset("packed", data=numpy.arange(1000, dtype="int32"), chunks=(100,), compression="gzip")
    file["words"] = numpy.array([b"one", b"three"])
)");
  const std::string command =
      "'" TESSERA_PYTHON "' '" + (folder / "write.py").string() + "' '" + (folder / "a.h5").string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const auto file = h5::File::open(folder / "a.h5");
  EXPECT_EQ(file.integer("flag"), 1);
  EXPECT_EQ(file.integer("off"), 0);
  EXPECT_EQ(file.integer("number"), 3);
  EXPECT_EQ(file.integer("small"), -3);
  EXPECT_EQ(file.text("text"), "Grüße");
  EXPECT_EQ(file.text("bytes"), "fixed");
  EXPECT_THAT(file.dataset("double").values<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(file.dataset("default").values<std::int32_t>(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(file.dataset("big_endian").values<std::int32_t>(), ElementsAre(0, 1, 2));
  EXPECT_EQ(file.dataset("packed").values<std::int32_t>()[999], 999);
  EXPECT_THAT(file.dataset("words").strings(), ElementsAre("one", "three"));
  EXPECT_THAT(failure_of([&] { file.dataset("half").values<float>(); }), HasSubstr("common type"));
}

TEST(H5, lists_what_is_there) {
  const ScratchFolder folder;
  auto file = h5::File::create(folder / "a.h5");
  const std::vector<float> one{1};
  file.write("params/block.00.out", one, kMeaning);
  file.write("params/block.00.in", one, kMeaning);
  file.write("loss", one, kMeaning);
  EXPECT_THAT(file.names(), ElementsAre("loss", "params"));
  EXPECT_THAT(file.dataset_paths(), ElementsAre("loss", "params/block.00.in", "params/block.00.out"));
  EXPECT_TRUE(file.has("params/block.00.in"));
  EXPECT_FALSE(file.has("params/none"));
  EXPECT_FALSE(file.has("none/none/none"));
}

TEST(H5, reads_ranges) {
  const ScratchFolder folder;
  auto file = h5::File::create(folder / "a.h5");
  std::vector<std::uint16_t> tokens(1000);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  const auto dataset = file.write("tokens", tokens, kMeaning);
  std::vector<std::int32_t> out(3);
  dataset.read_from(997, std::span<std::int32_t>(out));
  EXPECT_THAT(out, ElementsAre(997, 998, 999));
  EXPECT_THAT(failure_of([&] { dataset.read_from(998, std::span<std::int32_t>(out)); }), HasSubstr("998..1000"));
}

TEST(H5, refuses_what_would_change_the_numbers) {
  const ScratchFolder folder;
  auto file = h5::File::create(folder / "a.h5");
  const auto wide = file.write("wide", std::vector<std::int64_t>{1, std::int64_t{1} << 40}, kMeaning);
  const auto large = file.write("large", std::vector<double>{1e300}, kMeaning);
  const auto names = file.write("names", std::vector<std::string>{"a"}, kMeaning);
  std::vector<std::int32_t> integers(2);
  std::vector<float> floats(1);
  EXPECT_THAT(failure_of([&] { wide.read(std::span<std::int32_t>(integers)); }), HasSubstr("/wide"));
  EXPECT_THAT(failure_of([&] { wide.read(std::span<float>(floats)); }), HasSubstr("holds integers where floats"));
  EXPECT_THAT(failure_of([&] { large.read(std::span<float>(floats)); }), HasSubstr("/large"));
  EXPECT_THAT(failure_of([&] { names.read(std::span<float>(floats)); }), HasSubstr("holds text"));
  EXPECT_THAT(failure_of([&] { wide.read(std::span<std::int32_t>(integers).first(1)); }),
              HasSubstr("2 entries where 1"));
  EXPECT_THAT(failure_of([&] { file.dataset("gone"); }), AllOf(HasSubstr("/gone"), HasSubstr("missing")));
  EXPECT_THAT(failure_of([&] { file.group("gone"); }), HasSubstr("missing"));
}

TEST(H5, names_files_that_cannot_be_opened) {
  const ScratchFolder folder;
  EXPECT_THAT(failure_of([&] { h5::File::open(folder / "none.h5"); }),
              AllOf(HasSubstr("none.h5"), HasSubstr("No such file")));
  EXPECT_THAT(failure_of([&] { h5::File::open(folder.path()); }), HasSubstr("directory"));
  write_bytes(folder / "text.h5", "this is not HDF5\n");
  EXPECT_THAT(failure_of([&] { h5::File::open(folder / "text.h5"); }),
              AllOf(HasSubstr("text.h5"), HasSubstr("signature")));
  {
    auto file = h5::File::create(folder / "cut.h5");
    file.write("x", std::vector<double>(1000), kMeaning);
    file.close();
  }
  fs::resize_file(folder / "cut.h5", 5000);
  EXPECT_THAT(failure_of([&] { h5::File::open(folder / "cut.h5"); }),
              AllOf(HasSubstr("cut.h5"), HasSubstr("truncated")));
}

TEST(H5, what_is_no_file_is_refused_and_not_waited_for) {
  const ScratchFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo.h5").c_str(), 0600), 0);
  fs::create_symlink("fifo.h5", folder / "link.h5");
  fs::create_symlink("loop.h5", folder / "loop.h5");
  for (const char* name : {"fifo.h5", "link.h5"}) {
    EXPECT_THAT(failure_of([&] { h5::File::open(folder / name); }), AllOf(HasSubstr(name), HasSubstr("a FIFO")));
  }
  EXPECT_THAT(failure_of([&] { h5::File::open(folder / "loop.h5"); }), HasSubstr("symbolic links"));
}

// HDF5 alone would read zeros there.
TEST(H5, refuses_a_file_that_was_shortened_while_it_is_open) {
  const ScratchFolder folder;
  {
    auto file = h5::File::create(folder / "a.h5");
    file.write("x", std::vector<std::int32_t>(100'000, 7), kMeaning);
    file.close();
  }
  const auto file = h5::File::open(folder / "a.h5");
  const auto x = file.dataset("x");
  std::vector<std::int32_t> out(10);
  x.read_from(90'000, std::span(out));
  fs::resize_file(folder / "a.h5", fs::file_size(folder / "a.h5") - 4);
  for (const std::int64_t first : {0, 99'990}) {
    EXPECT_THAT(failure_of([&] { x.read_from(first, std::span(out)); }),
                AllOf(HasSubstr("a.h5"), HasSubstr("shortened")));
  }
  EXPECT_THAT(failure_of([&] { x.values<std::int32_t>(); }), HasSubstr("shortened"));
}

TEST(H5, hints_at_locking_when_another_process_writes) {
  const ScratchFolder folder;
  int ready[2], done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto file = h5::File::create(folder / "a.h5");
    char byte = 1;
    if (::write(ready[1], &byte, 1) != 1 || ::read(done[0], &byte, 1) != 1) ::_exit(1);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THAT(failure_of([&] { h5::File::open(folder / "a.h5"); }), HasSubstr("HDF5_USE_FILE_LOCKING=FALSE"));
  ASSERT_EQ(::write(done[1], &byte, 1), 1);
  ::waitpid(child, nullptr, 0);
}

TEST(H5, virtual_dataset_follows_its_folder) {
  const ScratchFolder folder;
  fs::create_directory(folder / "before");
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  {
    auto source = h5::File::create(folder / "before/rank.h5");
    source.write("params/w", {2, 3}, std::span<const float>(values), kMeaning);
    source.close();
    auto index = h5::File::create(folder / "before/index.h5");
    const h5::Source whole{"rank.h5", "/params/w"};
    index.write_virtual("params/w", h5::Type::float32, {2, 3}, {&whole, 1}, kMeaning);
    index.close();
  }
  fs::rename(folder / "before", folder / "after");
  const auto index = h5::File::open(folder / "after/index.h5");
  EXPECT_THAT(index.dataset("params/w").shape(), ElementsAre(2, 3));
  EXPECT_EQ(index.dataset("params/w").values<float>(), values);
}

// Every range of a scalar, a line, a row, a column, a matrix and a block, against the flat values: read, and mapped
// from a source of its own between two others.
TEST(H5, every_range_is_read_and_mapped) {
  const ScratchFolder folder;
  for (const h5::Shape& shape : {h5::Shape{}, {5}, {1, 4}, {4, 1}, {3, 4}, {2, 3, 2}}) {
    const auto size = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    std::vector<float> values(static_cast<std::size_t>(size));
    std::iota(values.begin(), values.end(), 1.0F);
    auto file = h5::File::create(folder / "a.h5");
    const auto plain = file.write("plain", shape, std::span<const float>(values), kMeaning);
    for (std::int64_t first = 0; first <= size; ++first) {
      for (std::int64_t count = 0; count <= size - first; ++count) {
        SCOPED_TRACE(testing::Message() << testing::PrintToString(shape) << " from " << first << ", " << count);
        const std::vector<float> expected(values.begin() + first, values.begin() + first + count);
        std::vector<float> out(expected.size());
        plain.read_from(first, std::span(out));
        ASSERT_EQ(out, expected);
        if (shape.empty()) continue;

        std::vector<h5::Source> sources;
        auto source = h5::File::create(folder / "source.h5");
        for (const auto& [from, to] :
             {std::pair(std::int64_t{0}, first), {first, first + count}, {first + count, size}}) {
          if (from == to) continue;
          sources.push_back({"source.h5", "/" + std::to_string(from), from, to - from});
          source.write(sources.back().path, {to - from}, std::span<const float>(values).subspan(from, to - from),
                       kMeaning);
        }
        source.close();
        auto index = h5::File::create(folder / "index.h5");
        index.write_virtual("w", h5::Type::float32, shape, sources, kMeaning);
        index.close();
        const auto reopened = h5::File::open(folder / "index.h5");
        const auto mapped = reopened.dataset("w");
        ASSERT_EQ(mapped.shape(), shape);
        ASSERT_EQ(mapped.values<float>(), values);
        mapped.read_from(first, std::span(out));
        ASSERT_EQ(out, expected);
      }
    }
    std::vector<float> out(2);
    for (const std::int64_t first : {std::int64_t{-1}, size - 1, size}) {
      EXPECT_THAT(failure_of([&] { plain.read_from(first, std::span(out)); }), HasSubstr("no entries"));
    }
  }
}

// The write, the flush or the close may be the call that fails at the limit: each must be reported, none may crash.
TEST(H5, full_disk_is_told_wherever_it_hits) {
  const ScratchFolder folder;
  const auto write_file = [&] {
    auto file = h5::File::create(folder / "a.h5");
    for (const char* name : {"small", "other"}) file.write(name, std::vector<double>(8), kMeaning);
    file.write("large", std::vector<float>(20'000), kMeaning);
    file.write("names", std::vector<std::string>(100, "label"), kMeaning);
    file.close();
  };
  write_file();
  const auto size = fs::file_size(folder / "a.h5");
  for (rlim_t limit = 0; limit < size; limit += 1009) {
    const FileSizeLimit full(limit);
    EXPECT_THAT(failure_of(write_file),
                AllOf(HasSubstr("a.h5"), HasSubstr("File too large"), HasSubstr("job.directory")))
        << limit;
  }
  write_file();  // the library has survived all of them
  EXPECT_EQ(h5::File::open(folder / "a.h5").dataset("large").size(), 20'000);
}

#ifndef __SANITIZE_ADDRESS__  // it takes terabytes of address space
TEST(H5, memory_that_runs_out_is_no_damage) {
  const ScratchFolder folder;
  write_bytes(folder / "write.py", R"(
import h5py, sys
with h5py.File(sys.argv[1], "w") as file:
    file.create_dataset("packed", (1 << 26,), "uint8", chunks=(1 << 26,), compression="gzip")[0] = 1
)");
  const std::string command =
      "'" TESSERA_PYTHON "' '" + (folder / "write.py").string() + "' '" + (folder / "a.h5").string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const auto file = h5::File::open(folder / "a.h5");
  const auto packed = file.dataset("packed");
  std::vector<std::uint8_t> out(1);
  const auto read = [&] { packed.read_from(0, std::span(out)); };
  {
    const AddressSpaceLimit small(std::int64_t{16} << 20);  // a chunk has 64 MiB
    EXPECT_THAT(failure_of(read, Exit::out_of_memory),
                AllOf(HasSubstr("a.h5"), HasSubstr("ulimit -v unlimited"), Not(HasSubstr("is damaged"))));
  }
  read();  // the library has survived it
  EXPECT_EQ(out[0], 1);
}
#endif

TEST(H5, read_only_folder_is_named) {
  const ScratchFolder folder;
  fs::permissions(folder.path(),
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const OrdinaryUser user;
  EXPECT_THAT(failure_of([&] { h5::File::create(folder / "a.h5"); }),
              AllOf(HasSubstr("a.h5"), HasSubstr("Permission denied")));
}

}  // namespace
}  // namespace tessera::test
