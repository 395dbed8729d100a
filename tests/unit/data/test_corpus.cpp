/// Token sources: what is in the file comes out as tokens; what cannot be right is refused by name.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "io/h5.hpp"
#include "kernels/core/events.hpp"
#include "tests/unit/data/corpora.hpp"

namespace tessera::test {
namespace {

using config::DataSource;
using data::Corpus;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::uint16_t> kTokens{0, 1, 50256, 7};

TEST(TextCorpus, bytes_are_tokens_and_end_of_text_comes_last) {
  const ScratchFolder folder;
  write_bytes(folder / "a.txt", "Aé\n");  // é is two bytes of UTF-8
  const auto corpus = open_text(folder / "a.txt");
  EXPECT_EQ(corpus.size(), 5);
  EXPECT_THAT(all_of(corpus), ElementsAre('A', 0xC3, 0xA9, '\n', 256));
  EXPECT_THAT(tokens_of(corpus, 1, 2), ElementsAre(0xC3, 0xA9));
  EXPECT_THAT(tokens_of(corpus, 4, 1), ElementsAre(256));
  EXPECT_EQ(corpus.tokenisation(), "bytes");
}

TEST(TextCorpus, bytes_that_are_not_utf8_are_bytes) {
  const ScratchFolder folder;
  write_bytes(folder / "a.txt", std::string("\xFF\x00\x80", 3));
  EXPECT_THAT(all_of(open_text(folder / "a.txt")), ElementsAre(255, 0, 128, 256));
}

TEST(TextCorpus, refuses_a_vocabulary_without_end_of_text) {
  const ScratchFolder folder;
  write_bytes(folder / "a.txt", "abc");
  EXPECT_THAT(failure_of([&] { open_text(folder / "a.txt", 256); }),
              AllOf(HasSubstr("a.txt"), HasSubstr("model.vocab_size=257")));
}

TEST(AnyCorpus, files_that_cannot_be_read_are_named) {
  const ScratchFolder folder;
  write_bytes(folder / "empty", "");
  EXPECT_THAT(failure_of([&] { open_text(folder / "empty"); }),
              AllOf(HasSubstr("empty"), HasSubstr("the file is empty")));
  EXPECT_THAT(failure_of([&] { open_tokens((folder / "empty").string()); }), HasSubstr("the file is empty"));
  EXPECT_THAT(failure_of([&] { open_text(folder / "none"); }),
              AllOf(HasSubstr("none"), HasSubstr("No such file"), HasSubstr("Check the path")));
  EXPECT_THAT(failure_of([&] { open_text(folder.path()); }), HasSubstr("directory"));
  EXPECT_THAT(failure_of([&] { open_text("/dev/null"); }), HasSubstr("not a regular file"));
  write_bytes(folder / "secret", "abc");
  fs::permissions(folder.path(), fs::perms::all);
  fs::permissions(folder / "secret", fs::perms::none);
  const OrdinaryUser user;
  EXPECT_THAT(failure_of([&] { open_text(folder / "secret"); }),
              AllOf(HasSubstr("secret"), HasSubstr("Permission denied")));
}

TEST(AnyCorpus, a_fifo_is_refused_and_not_waited_for) {
  const ScratchFolder folder;
  for (const std::string name : {"a.txt", "a.bin", "a.h5"}) {
    ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
    fs::create_symlink(name, folder / ("link " + name));
    for (const fs::path& path : {folder / name, folder / ("link " + name)}) {
      EXPECT_THAT(failure_of([&] { name == "a.txt" ? open_text(path) : open_tokens(path.string()); }),
                  HasSubstr(path.string() + ": not a regular file but a FIFO"));
    }
  }
  EXPECT_THAT(failure_of([&] { open_tokens((folder / "a.h5").string() + ":/tokens"); }), HasSubstr("FIFO"));
}

TEST(AnyCorpus, copies_stay_inside) {
  const ScratchFolder folder;
  write_bytes(folder / "a.txt", "abc");
  const auto corpus = open_text(folder / "a.txt");
  std::vector<std::int32_t> out(2);
  EXPECT_THROW(corpus.copy(3, out), std::out_of_range);
  EXPECT_THROW(corpus.copy(-1, out), std::out_of_range);
  corpus.copy(4, {});
}

/// 2000 tokens from 0 to 255, in files of every form.
struct EveryForm {
  EveryForm() {
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * i % 251);
    const std::vector<std::uint32_t> wide(tokens.begin(), tokens.end());
    write_bytes(folder / "text", {tokens.begin(), tokens.end()});
    write_array(folder / "raw.bin", tokens);
    write_bytes(folder / "llmc16.bin", llmc_file(20240520, 1, 2000, tokens));
    write_bytes(folder / "llmc32.bin", llmc_file(20240801, 7, 2000, wide));
    auto file = io::h5::File::create(folder / "a.h5");
    file.write("tokens", tokens, {"1", "tokens"});
    file.close();
  }
  Corpus open(const std::string& name) const {
    return name == "text" ? open_text(folder / name) : open_tokens((folder / name).string());
  }
  ScratchFolder folder;
  std::vector<std::uint16_t> tokens = std::vector<std::uint16_t>(2000);
  std::vector<std::string> names{"text", "raw.bin", "llmc16.bin", "llmc32.bin", "a.h5"};
};

TEST(AnyCorpus, a_file_that_was_shortened_is_named) {
  const EveryForm forms;
  for (const std::string& name : forms.names) {
    const auto corpus = forms.open(name);
    const auto before = tokens_of(corpus, 1000, 1000);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), forms.tokens.begin() + 1000)) << name;
    fs::resize_file(forms.folder / name, fs::file_size(forms.folder / name) - 1);
    EXPECT_THAT(failure_of([&] { tokens_of(corpus, 1000, 1000); }), AllOf(HasSubstr(name), HasSubstr("shortened")));
  }
}

/// Counts what is reported while it lives.
struct Reports final : events::Listener {
  Reports() { events::add_listener(*this); }
  ~Reports() override { events::remove_listener(*this); }
  using Listener::on;
  void on(const events::Region& region) override { ++count[std::string(region.label)]; }
  std::map<std::string, std::int64_t> count;
};

TEST(AnyCorpus, reading_all_tokens_is_reported_as_progress) {
  const ScratchFolder folder;
  write_bytes(folder / "zeros.bin", "");
  fs::resize_file(folder / "zeros.bin", static_cast<std::uintmax_t>(2 * (3 * data::kReported + 1)));
  const Reports reports;
  const auto corpus = open_tokens((folder / "zeros.bin").string());
  EXPECT_EQ(reports.count.at("data/check"), 4);
  EXPECT_FALSE(reports.count.contains("data/fingerprint")) << "it is made when it is asked for";
  corpus.fingerprint();
  EXPECT_EQ(reports.count.at("data/fingerprint"), 3 * 16 + 1) << "blocks of 2^16";
}

TEST(AnyCorpus, can_be_checked_in_parts) {
  const EveryForm forms;
  const auto largest = std::max_element(forms.tokens.begin(), forms.tokens.end());
  const auto bad = largest - forms.tokens.begin();
  for (const std::string& name : forms.names) {
    if (name == "text") continue;  // of bytes none is outside
    const auto corpus = Corpus::open_unchecked(DataSource::tokens, (forms.folder / name).string(), *largest, 1);
    ASSERT_TRUE(corpus.needs_check()) << name;
    corpus.check(0, bad);
    EXPECT_THAT(failure_of([&] { corpus.check(bad, 1); }), HasSubstr(" at position " + std::to_string(bad) + " is"));
    EXPECT_THROW(corpus.check(1999, 2), std::out_of_range);
  }
  const auto narrow = Corpus::open_unchecked(DataSource::tokens, (forms.folder / "raw.bin").string(), 65'536, 1);
  EXPECT_FALSE(narrow.needs_check()) << "uint16 cannot leave such a vocabulary";
}

TEST(Fingerprint, is_of_the_tokens_and_not_of_the_file) {
  const EveryForm forms;
  for (const std::string& name : forms.names) {
    if (name == "text") continue;  // has a token more, the end of text
    EXPECT_EQ(forms.open(name).fingerprint(), forms.open("raw.bin").fingerprint()) << name;
  }
  EXPECT_NE(forms.open("text").fingerprint(), forms.open("raw.bin").fingerprint());
  // What checkpoints hold: it must not change from version to version.
  EXPECT_EQ(forms.open("raw.bin").fingerprint(), "ce4d14d3fe5825dc");
}

TEST(Fingerprint, changes_with_any_token_and_with_their_number) {
  const EveryForm forms;
  std::set<std::string> seen{forms.open("raw.bin").fingerprint()};
  for (const std::size_t at : {0, 1, 999, 1999}) {
    auto tokens = forms.tokens;
    tokens[at] ^= 1;
    write_array(forms.folder / "raw.bin", tokens);
    EXPECT_TRUE(seen.insert(forms.open("raw.bin").fingerprint()).second) << at;
  }
  for (const int zeros : {1, 2, 3}) {
    write_bytes(forms.folder / "zeros", std::string(static_cast<std::size_t>(zeros), '\0'));
    EXPECT_TRUE(seen.insert(open_text(forms.folder / "zeros").fingerprint()).second) << zeros;
  }
}

// 2^26 tokens are hashed whole; of one more, blocks: the ends are among them.
TEST(Fingerprint, of_a_large_corpus_is_that_of_samples) {
  const ScratchFolder folder;
  constexpr std::int64_t kWhole = std::int64_t{1} << 26, kSize = 3 * kWhole;
  const auto print_of = [&](std::int64_t bytes, std::int64_t flipped) {
    write_bytes(folder / "large", "");
    fs::resize_file(folder / "large", static_cast<std::uintmax_t>(bytes));  // zeros, without taking space
    if (flipped >= 0) flip_byte(folder / "large", static_cast<std::uintmax_t>(flipped));
    return open_text(folder / "large").fingerprint();
  };
  EXPECT_NE(print_of(kWhole - 1, -1), print_of(kWhole - 1, kWhole / 3));
  const std::string zeros = print_of(kSize - 1, -1);
  EXPECT_NE(zeros, print_of(kSize - 1, 0));
  EXPECT_NE(zeros, print_of(kSize - 1, kSize - 2));
  EXPECT_NE(zeros, print_of(kSize, -1));
  EXPECT_EQ(zeros, print_of(kSize - 1, 100'000)) << "between the first two blocks";
}

TEST(BinCorpus, raw_uint16_as_nanogpt_writes_it) {
  const ScratchFolder folder;
  write_array(folder / "train.bin", kTokens);
  const auto corpus = open_tokens((folder / "train.bin").string());
  EXPECT_THAT(all_of(corpus), ElementsAre(0, 1, 50256, 7));
  EXPECT_THAT(tokens_of(corpus, 2, 2), ElementsAre(50256, 7));
  EXPECT_EQ(corpus.tokenisation(), "uint16");
}

TEST(BinCorpus, tokens_that_were_written_after_it_was_opened_are_held_to_the_vocabulary) {
  const ScratchFolder folder;
  write_array(folder / "train.bin", kTokens);
  const auto corpus = open_tokens((folder / "train.bin").string());
  write_array(folder / "train.bin", std::vector<std::uint16_t>{0, 1, 60000, 7});
  EXPECT_THAT(tokens_of(corpus, 0, 2), ElementsAre(0, 1));
  EXPECT_THAT(failure_of([&] { tokens_of(corpus, 1, 3); }), HasSubstr("token 60000 at position 2"));
}

TEST(BinCorpus, both_formats_of_llmc) {
  const ScratchFolder folder;
  write_bytes(folder / "gpt2.bin", llmc_file(20240520, 1, 4, kTokens));
  write_bytes(folder / "llama3.bin", llmc_file(20240801, 7, 3, std::vector<std::uint32_t>{5, 128'000, 6}));
  EXPECT_THAT(all_of(open_tokens((folder / "gpt2.bin").string())), ElementsAre(0, 1, 50256, 7));
  const auto wide = open_tokens((folder / "llama3.bin").string(), 128'256);
  EXPECT_THAT(all_of(wide), ElementsAre(5, 128'000, 6));
  EXPECT_EQ(wide.tokenisation(), "uint32");
}

TEST(BinCorpus, refuses_files_that_were_cut_off) {
  const ScratchFolder folder;
  const auto refusal = [&](const std::string& bytes) {
    write_bytes(folder / "a.bin", bytes);
    return failure_of([&] { open_tokens((folder / "a.bin").string()); });
  };
  const std::string whole = llmc_file(20240520, 1, 4, kTokens);
  EXPECT_THAT(refusal(whole.substr(0, 500)), AllOf(HasSubstr("a.bin"), HasSubstr("header has 500 bytes of 1024")));
  EXPECT_THAT(refusal(whole.substr(0, 1024)), HasSubstr("promises 4 tokens of 2 bytes, but 0 bytes follow"));
  EXPECT_THAT(refusal(whole.substr(0, 1031)), HasSubstr("7 bytes follow"));
  EXPECT_THAT(refusal(whole + "xx"), HasSubstr("10 bytes follow"));
  EXPECT_THAT(refusal(llmc_file(20240520, 1, -4, kTokens)), HasSubstr("promises -4 tokens"));
  EXPECT_THAT(refusal(llmc_file(20240520, 2, 4, kTokens)), HasSubstr("version 2, not 1"));
  EXPECT_THAT(refusal("odd"), HasSubstr("3 bytes are not a whole number of uint16"));
}

TEST(BinCorpus, refuses_tokens_above_the_vocabulary_with_their_position) {
  const ScratchFolder folder;
  std::vector<std::uint16_t> tokens(100'000, 3);
  tokens[70'001] = 300;
  tokens[99'000] = 999;  // in another block of the scan
  write_array(folder / "a.bin", tokens);
  EXPECT_THAT(failure_of([&] { open_tokens((folder / "a.bin").string(), 300); }),
              AllOf(HasSubstr("a.bin"), HasSubstr("token 300 at position 70001"), HasSubstr("vocabulary of 300"),
                    HasSubstr("model.vocab_size")));
  EXPECT_EQ(open_tokens((folder / "a.bin").string(), 1000).size(), 100'000);
}

TEST(BinCorpus, wider_tokens_without_a_header_are_refused) {
  const ScratchFolder folder;
  const std::string path = (folder / "train.bin").string();
  const auto refusal = [&](const auto& tokens) {
    write_array(path, tokens);
    return failure_of([&] { open_tokens(path, 65'536); });  // of uint16 no token is outside it
  };
  std::vector<std::uint32_t> narrow(5000), wide(5000);
  for (std::uint32_t i = 0; i < 5000; ++i) narrow[i] = i * 7919 % 50257, wide[i] = i * 7919 * 31 % 200'000;
  const auto says = AllOf(HasSubstr(path), HasSubstr("uint32"), HasSubstr("20240801"), HasSubstr(".h5"));
  EXPECT_THAT(refusal(narrow), says);
  EXPECT_THAT(refusal(wide), says);
  EXPECT_THAT(refusal(std::vector<std::int64_t>(narrow.begin(), narrow.end())), says);
}

TEST(BinCorpus, what_only_resembles_wider_tokens_is_read) {
  const ScratchFolder folder;
  const std::string path = (folder / "train.bin").string();
  const auto opens = [&](const std::vector<std::uint16_t>& tokens) {
    write_array(path, tokens);
    return open_tokens(path, 65'536).size() == static_cast<std::int64_t>(tokens.size());
  };
  EXPECT_TRUE(opens({7, 0, 9, 0, 11, 0})) << "too few to tell";
  EXPECT_TRUE(opens(std::vector<std::uint16_t>(5000, 0)));
  std::vector<std::uint16_t> tokens(5000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * i % 4);
  EXPECT_TRUE(opens(tokens)) << "a vocabulary of four";
  for (std::size_t i = 0; i < tokens.size(); i += 2) tokens[i] = static_cast<std::uint16_t>(4 + i % 1000);
  tokens[2501] = 4;
  EXPECT_TRUE(opens(tokens)) << "one upper half that is none";
  tokens[2501] = 3;
  EXPECT_FALSE(failure_of([&] { opens(tokens); }).empty());
  write_bytes(path, llmc_file(20240520, 1, 5000, tokens));  // where the file says what they are, they are that
  EXPECT_THAT(all_of(open_tokens(path)), testing::ElementsAreArray(tokens));
}

TEST(BinCorpus, tokens_above_the_vocabulary_may_be_wider_ones) {
  const ScratchFolder folder;
  write_array(folder / "a.bin", std::vector<std::uint32_t>{1, 2, 300});
  EXPECT_THAT(failure_of([&] { open_tokens((folder / "a.bin").string(), 300); }),
              AllOf(HasSubstr("token 300 at position 4"), HasSubstr("uint32"), HasSubstr("20240801")));
}

TEST(Hdf5Corpus, reads_the_named_or_the_default_dataset) {
  const ScratchFolder folder;
  {
    auto file = io::h5::File::create(folder / "a.h5");
    file.write("tokens", kTokens, {"1", "tokens"});
    file.write("deep/val", std::vector<std::uint32_t>{9, 100'000}, {"1", "tokens"});
    file.close();
  }
  const std::string path = (folder / "a.h5").string();
  EXPECT_THAT(all_of(open_tokens(path)), ElementsAre(0, 1, 50256, 7));
  EXPECT_EQ(open_tokens(path).tokenisation(), "uint16");
  const auto wide = open_tokens(path + ":/deep/val", 100'001);
  EXPECT_THAT(tokens_of(wide, 1, 1), ElementsAre(100'000));
  EXPECT_EQ(wide.tokenisation(), "uint32");
}

TEST(Hdf5Corpus, refuses_what_is_not_a_row_of_tokens) {
  const ScratchFolder folder;
  const std::vector<float> numbers{1, 2};
  std::vector<std::int64_t> tokens(3'000'000, 5);
  tokens[2'500'000] = -1;
  {
    auto file = io::h5::File::create(folder / "a.h5");
    file.write("floats", numbers, {"1", "x"});
    file.write("table", {2, 2}, std::span<const std::uint16_t>(kTokens), {"1", "x"});
    file.write("none", std::vector<std::uint16_t>{}, {"1", "x"});
    file.write("negative", tokens, {"1", "x"});
    file.close();
  }
  const auto refusal = [&](const std::string& dataset) {
    return failure_of([&] { open_tokens((folder / "a.h5").string() + ":/" + dataset); });
  };
  EXPECT_THAT(refusal("floats"), AllOf(HasSubstr("/floats"), HasSubstr("not a 1-D array of integers")));
  EXPECT_THAT(refusal("table"), HasSubstr("not a 1-D array of integers"));
  EXPECT_THAT(refusal("none"), HasSubstr("empty"));
  EXPECT_THAT(refusal("gone"), HasSubstr("missing"));
  EXPECT_THAT(refusal("negative"), HasSubstr("token -1 at position 2500000"));
}

TEST(Hdf5Corpus, a_token_beyond_every_signed_integer_is_outside_the_vocabulary) {
  const ScratchFolder folder;
  constexpr std::uint64_t kBeyond = (std::uint64_t{1} << 63) + 5;
  auto file = io::h5::File::create(folder / "a.h5");
  file.write("tokens", std::vector<std::uint64_t>{1, 2, 3, kBeyond}, {"1", "tokens"});
  file.write("right", std::vector<std::uint64_t>{1, 2, 3}, {"1", "tokens"});
  file.close();
  EXPECT_THAT(failure_of([&] { open_tokens((folder / "a.h5").string()); }),
              AllOf(HasSubstr("token 9223372036854775813 at position 3 is outside the vocabulary of 50257"),
                    HasSubstr("model.vocab_size")));
  EXPECT_THAT(all_of(open_tokens((folder / "a.h5").string() + ":/right")), ElementsAre(1, 2, 3));
}

TEST(SyntheticCorpus, depends_on_the_seed_and_on_nothing_else) {
  const auto make = [](std::uint64_t seed) { return Corpus::open(DataSource::synthetic, "", 257, seed); };
  EXPECT_EQ(tokens_of(make(1), 0, 1000), tokens_of(make(1), 0, 1000));
  EXPECT_NE(tokens_of(make(1), 0, 1000), tokens_of(make(2), 0, 1000));
  const auto whole = tokens_of(make(1), 0, 1000);
  for (const std::int64_t first : {1, 63, 64, 65, 700}) {
    EXPECT_EQ(tokens_of(make(1), first, 200),
              std::vector<std::int32_t>(whole.begin() + first, whole.begin() + first + 200));
  }
  // The first tokens of seed 1, so that a change of the sequence is noticed: stored losses depend on it.
  EXPECT_THAT(tokens_of(make(1), 0, 6), ElementsAre(110, 31, 84, 107, 20, 215));
}

TEST(SyntheticCorpus, next_token_can_be_learnt_but_not_fully) {
  const auto tokens = tokens_of(Corpus::open(DataSource::synthetic, "", 257, 1), 0, 200'000);
  std::map<std::pair<std::int32_t, std::int32_t>, int> pairs;
  std::map<std::int32_t, std::pair<std::int32_t, int>> likeliest;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    ASSERT_GE(tokens[i], 0);
    ASSERT_LT(tokens[i], 257);
    const int count = ++pairs[{tokens[i - 1], tokens[i]}];
    if (count > likeliest[tokens[i - 1]].second) likeliest[tokens[i - 1]] = {tokens[i], count};
  }
  int guessed = 0;
  for (const auto& [token, best] : likeliest) guessed += best.second;
  const double share = guessed / 200'000.0;
  EXPECT_GT(share, 0.80);
  EXPECT_LT(share, 0.90);
  EXPECT_GT(likeliest.size(), 200u) << "only few tokens ever appear";
}

TEST(SyntheticCorpus, serves_the_smallest_vocabulary) {
  for (const std::int32_t token : tokens_of(Corpus::open(DataSource::synthetic, "", 2, 1), 0, 1000))
    EXPECT_LT(token, 2);
}

}  // namespace
}  // namespace tessera::test
