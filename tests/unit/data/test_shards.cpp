/// Corpora of many files: what a pattern matches reads like one file that holds it all, and a faulty file is named.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <functional>
#include <numeric>
#include <random>

#include "data/formats.hpp"
#include "io/h5.hpp"
#include "tests/unit/data/corpora.hpp"

namespace tessera::test {
namespace {

using data::Corpus;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using Tokens = std::vector<std::uint16_t>;

/// A way to store tokens, all of them below 256.
struct Form {
  std::string name, ending;  // of its files
  std::function<void(const fs::path&, const Tokens&)> write;
  std::string dataset = "";

  Corpus open(const fs::path& path) const {
    return name == "text" ? open_text(path) : open_tokens(path.string() + dataset);
  }
};

std::vector<std::uint32_t> wide(const Tokens& tokens) { return {tokens.begin(), tokens.end()}; }

void write_hdf5(const fs::path& path, const std::string& dataset, const auto& tokens) {
  auto file = io::h5::File::create(path);
  file.write(dataset, tokens, {"1", "tokens"});
  file.close();
}

const std::vector<Form> kForms{
    {"text", ".txt",
     [](const auto& path, const auto& tokens) {
       write_bytes(path, {tokens.begin(), tokens.end()});
     }},
    {"raw", ".bin", [](const auto& path, const auto& tokens) { write_array(path, tokens); }},
    {"llmc16", ".bin",
     [](const auto& path, const auto& tokens) {
       write_bytes(path, llmc_file(20240520, 1, static_cast<std::int32_t>(tokens.size()), tokens));
     }},
    {"llmc32", ".bin",
     [](const auto& path, const auto& tokens) {
       write_bytes(path, llmc_file(20240801, 7, static_cast<std::int32_t>(tokens.size()), wide(tokens)));
     }},
    {"hdf5", ".h5", [](const auto& path, const auto& tokens) { write_hdf5(path, "tokens", tokens); }},
    {"hdf5_dataset", ".hdf5", [](const auto& path, const auto& tokens) { write_hdf5(path, "deep/val", tokens); },
     ":/deep/val"},
};

Tokens some_tokens(std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::uint16_t>(i * i % 251);
  return tokens;
}

/// NAME_000.ending, NAME_001.ending, ... with as many tokens each as `counts` says.
void write_shards(const ScratchFolder& folder, const Form& form, const Tokens& tokens, const std::vector<int>& counts) {
  auto first = tokens.begin();
  for (std::size_t i = 0; i < counts.size(); ++i, first += counts[i - 1]) {
    const std::string number = std::to_string(1000 + i).substr(1);
    form.write(folder / (form.name + "_" + number + form.ending), Tokens(first, first + counts[i]));
  }
}
fs::path pattern_of(const ScratchFolder& folder, const Form& form) { return folder / (form.name + "_*" + form.ending); }

/// While it lives the process may have `count` files open.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{count, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(Shards, read_like_one_file_that_holds_them_all) {
  const ScratchFolder folder;
  const Tokens tokens = some_tokens(2000);
  for (const Form& form : kForms) {
    form.write(folder / ("whole" + form.ending), tokens);
    write_shards(folder, form, tokens, {700, 1, 2, 1297});
    const Corpus whole = form.open(folder / ("whole" + form.ending));
    const Corpus shards = form.open(pattern_of(folder, form));
    ASSERT_EQ(shards.size(), whole.size()) << form.name;
    EXPECT_EQ(all_of(shards), all_of(whole)) << form.name;
    EXPECT_EQ(shards.fingerprint(), whole.fingerprint()) << form.name;
    EXPECT_EQ(shards.tokenisation(), whole.tokenisation()) << form.name;
    for (const std::int64_t count : {1, 2, 3, 4, 100}) {  // windows over one, two, three and four files
      for (std::int64_t first = 600; first < 720; ++first)
        ASSERT_EQ(tokens_of(shards, first, count), tokens_of(whole, first, count)) << form.name << " at " << first;
    }
    EXPECT_THROW(tokens_of(shards, shards.size() - 1, 2), std::out_of_range) << form.name;
  }
}

// The blocks that are hashed of a large corpus lie across the ends of files.
TEST(Shards, of_a_large_corpus_have_the_fingerprint_of_one_file) {
  const ScratchFolder folder;
  constexpr std::uintmax_t kPart = (std::uintmax_t{1} << 25) - 12345;
  const auto grow = [&](const std::string& name, std::uintmax_t bytes, std::uintmax_t flipped) {
    write_bytes(folder / name, "");
    fs::resize_file(folder / name, bytes);  // zeros, without taking space
    flip_byte(folder / name, flipped);
  };
  for (const std::uintmax_t part : {0, 1, 2}) grow("part" + std::to_string(part), kPart, kPart - 1);
  grow("whole", 3 * kPart, kPart - 1);
  flip_byte(folder / "whole", 2 * kPart - 1);
  flip_byte(folder / "whole", 3 * kPart - 1);
  EXPECT_EQ(open_text(folder / "part*").fingerprint(), open_text(folder / "whole").fingerprint());
  flip_byte(folder / "part0", 0);
  EXPECT_NE(open_text(folder / "part*").fingerprint(), open_text(folder / "whole").fingerprint());
}

TEST(Shards, of_text_end_once) {
  const ScratchFolder folder;
  write_bytes(folder / "1.txt", "A\xC3");  // a character that goes on in the next file
  write_bytes(folder / "2.txt", "\xA9");
  const Corpus corpus = open_text(folder / "?.txt");
  EXPECT_THAT(all_of(corpus), ElementsAre('A', 0xC3, 0xA9, 256));
  EXPECT_THAT(tokens_of(corpus, 3, 1), ElementsAre(256));
}

TEST(Shards, name_is_the_pattern_and_their_number) {
  const ScratchFolder folder;
  for (const std::string name : {"a1.txt", "a2.txt", "b.txt"}) write_bytes(folder / name, name);
  EXPECT_EQ(open_text(folder / "*.txt").name(), (folder / "*.txt").string() + " (3 files)");
  EXPECT_EQ(open_text(folder / "b*").name(), (folder / "b*").string() + " (1 file)");
  EXPECT_EQ(open_text(folder / "b.txt").name(), (folder / "b.txt").string());
}

TEST(Shards, more_of_them_than_may_be_open_are_read) {
  const ScratchFolder folder;
  std::vector<int> counts(300);
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = 1 + static_cast<int>(i) % 7;
  const Tokens tokens = some_tokens(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), 0)));
  for (const Form& form : kForms) write_shards(folder, form, tokens, counts);
  const DescriptorLimit limit(data::kOpenFiles + 30);
  for (const Form& form : kForms) {
    const Corpus corpus = form.open(pattern_of(folder, form));
    ASSERT_EQ(corpus.size(), std::ssize(tokens) + (form.name == "text" ? 1 : 0));
    std::mt19937 random(1);
    for (int i = 0; i < 1000; ++i) {
      const auto first = static_cast<std::int64_t>(random() % (tokens.size() - 20));
      const auto read = tokens_of(corpus, first, 20);
      ASSERT_TRUE(std::equal(read.begin(), read.end(), tokens.begin() + first)) << form.name << " at " << first;
    }
  }
}

TEST(Shards, one_that_changes_while_they_are_read_is_named) {
  const ScratchFolder folder;
  for (const std::size_t count : {std::size_t{3}, std::size_t{100}}) {  // the first is open still, or was closed
    const bool was_closed = count > data::kOpenFiles;
    const Tokens tokens = some_tokens(count * 400);
    for (const Form& form : kForms) {
      write_shards(folder, form, tokens, std::vector<int>(count, 400));
      const Corpus corpus = form.open(pattern_of(folder, form));
      all_of(corpus);
      const std::string victim = form.name + "_000" + form.ending;
      const auto refusal = [&] { return failure_of([&] { tokens_of(corpus, 390, 20); }); };
      fs::resize_file(folder / victim, fs::file_size(folder / victim) - 30);
      EXPECT_THAT(refusal(), AllOf(HasSubstr(victim), HasSubstr("shortened"), HasSubstr("--resume auto")));
      tokens_of(corpus, 400, 20);  // the others are as they were
      if (!was_closed) continue;
      fs::resize_file(folder / victim, fs::file_size(folder / victim) + 50);
      EXPECT_THAT(refusal(), AllOf(HasSubstr(victim), HasSubstr("lengthened")));
      fs::remove(folder / victim);
      EXPECT_THAT(refusal(), AllOf(HasSubstr(victim), HasSubstr("No such file")));
    }
  }
}

TEST(Shards, are_held_to_the_vocabulary_each_by_its_name_and_position) {
  const ScratchFolder folder;
  for (const std::string name : {"a", "b", "c"}) write_array(folder / (name + ".bin"), Tokens{1, 2, 3});
  const std::string pattern = (folder / "*.bin").string();
  const Corpus corpus = open_tokens(pattern, 10);
  write_array(folder / "b.bin", Tokens{1, 2, 10});
  const auto says = AllOf(HasSubstr((folder / "b.bin").string() + ": token 10 at position 2"), HasSubstr("of 10"));
  EXPECT_THAT(failure_of([&] { all_of(corpus); }), says) << "written since";
  EXPECT_THAT(failure_of([&] { open_tokens(pattern, 10); }), says);
}

TEST(Shards, of_another_format_than_the_others_are_named) {
  const Tokens tokens = some_tokens(400);
  for (const Form& usual : kForms) {
    for (const Form& odd : kForms) {
      const bool are_same = usual.name == odd.name || (!usual.dataset.empty() || !odd.dataset.empty());
      if (usual.name == "text" || odd.name == "text" || are_same) continue;
      for (const std::string name : {"1", "2", "3"}) {
        const ScratchFolder folder;
        for (const std::string other : {"1", "2", "3"}) {
          const Form& form = other == name ? odd : usual;
          form.write(folder / (other + form.ending), tokens);
        }
        EXPECT_THAT(failure_of([&] { open_tokens((folder / "*").string()); }),
                    AllOf(HasSubstr((folder / (name + odd.ending)).string()), HasSubstr("in 2 of the 3 files")))
            << usual.name << " and " << odd.name;
      }
    }
  }
}

TEST(Shards, of_another_width_in_hdf5_or_without_the_dataset_are_named) {
  const ScratchFolder folder;
  for (const std::string name : {"1.h5", "2.h5"}) write_hdf5(folder / name, "tokens", some_tokens(10));
  const auto refusal = [&] { return failure_of([&] { open_tokens((folder / "*.h5").string()); }); };
  write_hdf5(folder / "3.h5", "tokens", wide(some_tokens(10)));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("3.h5"), HasSubstr("uint32"), HasSubstr("HDF5's uint16")));
  write_hdf5(folder / "3.h5", "others", some_tokens(10));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("3.h5"), HasSubstr("missing")));
}

TEST(Shards, that_cannot_be_read_are_refused_and_not_skipped) {
  const ScratchFolder folder;
  for (const Form& form : kForms) {
    write_shards(folder, form, some_tokens(30), {10, 10, 10});
    const fs::path victim = folder / (form.name + "_001" + form.ending);
    const auto refusal = [&] { return failure_of([&] { form.open(pattern_of(folder, form)); }); };
    write_bytes(victim, "");
    EXPECT_THAT(refusal(), AllOf(HasSubstr(victim.string()), HasSubstr("empty")));
    fs::remove(victim);
    ASSERT_EQ(::mkfifo(victim.c_str(), 0600), 0);
    EXPECT_THAT(refusal(), HasSubstr(victim.string() + ": not a regular file but a FIFO"));
    fs::remove(victim);
    fs::create_directory(victim);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(victim.string()), HasSubstr("folder")));
    fs::remove(victim);
    fs::create_symlink("nowhere", victim);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(victim.string()), HasSubstr("No such file")));
  }
}

TEST(Patterns, are_what_a_shell_takes_them_for) {
  const ScratchFolder folder;
  for (const std::string name : {"a1", "a2", "a10", "B", ".hidden", "sub/a3"}) {
    fs::create_directories((folder / name).parent_path());
    write_bytes(folder / name, name);
  }
  const auto matches = [&](const std::string& pattern) {
    std::vector<std::string> names;
    for (const fs::path path : data::matches_of((folder / pattern).string()))
      names.push_back(path.lexically_relative(folder.path()).string());
    return names;
  };
  EXPECT_THAT(matches("a*"), ElementsAre("a1", "a10", "a2"));
  EXPECT_THAT(matches("a?"), ElementsAre("a1", "a2"));
  EXPECT_THAT(matches("[aB]*"), ElementsAre("B", "a1", "a10", "a2"));
  EXPECT_THAT(matches("*/a[!12]"), ElementsAre("sub/a3"));
  for (const std::string none : {"c*", "nowhere/*", "a1/*", "[b"}) {
    EXPECT_THAT(failure_of([&] { matches(none); }),
                AllOf(HasSubstr((folder / none).string() + ": no file matches"), HasSubstr("[...]")));
  }
}

TEST(Patterns, are_not_names_of_files_that_exist) {
  const ScratchFolder folder;
  for (const std::string name : {"*.bin", "x[1].bin", "x1.bin", "y.bin"})
    write_array(folder / name, Tokens{static_cast<std::uint16_t>(name.size())});
  const auto tokens = [&](const std::string& name) { return all_of(open_tokens((folder / name).string())); };
  EXPECT_THAT(tokens("*.bin"), ElementsAre(5));
  EXPECT_THAT(tokens("x[1].bin"), ElementsAre(8));
  fs::remove(folder / "x[1].bin");
  EXPECT_THAT(tokens("x[1].bin"), ElementsAre(6));
  EXPECT_THAT(tokens("?.bin"), ElementsAre(5, 5)) << "of which one is named as a pattern";
  EXPECT_FALSE(data::is_pattern((folder / "a[b").string()));
  EXPECT_FALSE(data::is_pattern((folder / "a]b[").string()));
  EXPECT_THAT(failure_of([&] { tokens("a[b"); }), HasSubstr("No such file"));
}

TEST(Patterns, take_the_folders_before_them_literally) {
  const ScratchFolder folder;
  for (const std::string name : {"d[1]", "d1", "a\\b"}) {
    fs::create_directory(folder / name);
    write_bytes(folder / name / "x.txt", name);
  }
  EXPECT_EQ(data::matches_of((folder / "d[1]/*").string()), std::vector{(folder / "d[1]/x.txt").string()});
  EXPECT_EQ(data::matches_of((folder / "a\\b/*").string()), std::vector{(folder / "a\\b/x.txt").string()});
  fs::remove_all(folder / "d[1]");
  EXPECT_EQ(data::matches_of((folder / "d[1]/*").string()), std::vector{(folder / "d1/x.txt").string()});
}

TEST(Patterns, leave_out_no_folder_that_cannot_be_read) {
  const ScratchFolder folder;
  for (const std::string name : {"a", "b"}) {
    fs::create_directory(folder / name);
    write_bytes(folder / name / "x.txt", name);
  }
  fs::permissions(folder.path(), fs::perms::all);
  fs::permissions(folder / "b", fs::perms::none);
  const OrdinaryUser user;
  EXPECT_THAT(failure_of([&] { data::matches_of((folder / "*/*.txt").string()); }),
              AllOf(HasSubstr((folder / "b").string() + ": "), HasSubstr("*/*.txt"), HasSubstr("Permission denied")));
}

}  // namespace
}  // namespace tessera::test
