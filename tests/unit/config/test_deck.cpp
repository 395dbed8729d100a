/// Reading a deck: precedence, overrides, sizes, paths, the resolved deck, decks from files.
#include "config/deck.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "support.hpp"

namespace tessera::config {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

TEST(Deck, defaults_then_deck_then_overrides_the_later_one_last) {
  const Settings settings =
      read("[train]\nsteps = 50\nbatch_size = 4\n", {"train.batch_size=6", "train.batch_size = 12"});
  EXPECT_EQ(settings.train.steps, 50);
  EXPECT_EQ(settings.train.batch_size, 12);
  EXPECT_EQ(settings.model.d_model, Model{}.d_model);
}

TEST(Deck, overrides_are_toml_or_bare_words) {
  const Settings settings =
      read("train.steps = 100",
           {"trace.profile_steps=[3, 5]", "precision.compute=bf16", "model.size=2.7b", "optimizer.eps=1e-3",
            "generate.prompt=In the beginning", "job.overwrite=true", "optimizer.clip_norm=2"});
  EXPECT_THAT(settings.trace.profile_steps, testing::ElementsAre(3, 5));
  EXPECT_EQ(settings.precision.compute, Precision::bf16);
  EXPECT_EQ(settings.model.size, "2.7b");
  EXPECT_EQ(settings.optimizer.eps, 1e-3);
  EXPECT_EQ(settings.generate.prompt, "In the beginning");
  EXPECT_TRUE(settings.job.overwrite);
  EXPECT_EQ(settings.optimizer.clip_norm, 2.0);
}

TEST(Deck, names_one_kernel_of_attention) {
  EXPECT_EQ(read("train.steps = 9").attention.kernel, AttentionKernel::automatic);
  EXPECT_EQ(read("attention.kernel = 'flash2'", {"attention.kernel=flash2/3"}).attention.kernel,
            AttentionKernel::flash2_3);
  EXPECT_THAT(parse_deck("attention.kernel = 'flash1/2'", "deck.toml").resolved,
              HasSubstr("\nkernel = \"flash1/2\"\n"));
  EXPECT_THAT(deck_refusal("attention.kernel = 'flash1/6'"),
              HasSubstr("is not a word of this key  legal: auto standard"));
}

TEST(Deck, a_line_break_in_an_override_is_text_and_cannot_set_a_second_key) {
  EXPECT_EQ(read("train.steps = 9", {"generate.prompt=1\ntrain = 2"}).generate.prompt, "1\ntrain = 2");
  EXPECT_EQ(read("train.steps = 9", {"generate.prompt=\"a # b\" # c"}).generate.prompt, "a # b");
}

TEST(Deck, an_override_that_begins_like_a_string_of_toml_must_be_one) {
  const auto refused = [](const std::string& text) { return deck_refusal("train.steps = 9", {text}); };
  const std::string escape = refused("generate.prompt=\"Once \\d\"");
  EXPECT_THAT(escape, HasSubstr("\ncommand line  generate.prompt  is not TOML: "));
  EXPECT_THAT(escape, HasSubstr("unknown escape sequence '\\d'"));
  EXPECT_THAT(escape, HasSubstr("; in TOML's double quotes \\\\ is a backslash and \\\" a quote;"));
  for (const char* right : {"\"open", "'tis", " \"a\" and \"b\"", "\"a\nb\"", "\"a\"\ntrain = 2"})
    EXPECT_THAT(refused(std::string("generate.prompt=") + right),
                HasSubstr("command line  generate.prompt  is not TOML: "))
        << right;
  EXPECT_THAT(refused("data.path='a"), HasSubstr("command line  data.path  is not TOML: "));
  EXPECT_THAT(refused("train.steps=\"5"), HasSubstr("command line  train.steps  is not TOML: "));
  EXPECT_THAT(refused("model.size='small"), HasSubstr("command line  model.size  is not TOML: "));
}

TEST(Deck, an_override_that_begins_with_a_bracket_is_text_only_for_keys_that_take_any_text) {
  const Settings settings = read("data.source = 'tokens'", {"data.path=[0-9]*.bin", "generate.prompt={ or [, a"});
  EXPECT_EQ(settings.data.path, (fs::current_path() / "[0-9]*.bin").string());
  EXPECT_EQ(settings.generate.prompt, "{ or [, a");
  const auto refused = [](const std::string& text) { return deck_refusal("train.steps = 9", {text}); };
  EXPECT_THAT(refused("trace.profile_steps=[64, "), HasSubstr("command line  trace.profile_steps  is not TOML: "));
  EXPECT_THAT(refused("generate.prompts=[bf16]"), HasSubstr("command line  generate.prompts  is not TOML: "));
  EXPECT_THAT(refused("generate.prompts=[bf16]"), HasSubstr("; quoted for the shell: 'generate.prompts=[\"...\"]'"));
  EXPECT_THAT(refused("model.size=[small]"), HasSubstr("command line  model.size  is not TOML: "));
  EXPECT_THAT(refused("data.path=[0]"), HasSubstr("command line  data.path  is a list"));
}

TEST(Deck, an_integer_that_toml_cannot_hold_is_told_from_a_string) {
  const auto refused = [](const std::string& text) { return deck_refusal("train.steps = 9", {text}); };
  EXPECT_THAT(refused("job.seed=9223372036854775808"),
              HasSubstr("command line  job.seed  9223372036854775808 is larger than 9223372036854775807  legal: "
                        "integer, 0 to 9223372036854775807\n"));
  EXPECT_EQ(read("train.steps = 9", {"job.seed=9223372036854775807"}).job.seed, 9223372036854775807u);
  EXPECT_THAT(refused("parallel.ranks=99999999999999999999"),
              HasSubstr("99999999999999999999 is larger than 9223372036854775807  legal: integer, 0 to 1048576"));
  EXPECT_THAT(refused("job.seed=-9_223_372_036_854_775_809"), HasSubstr("is smaller than -9223372036854775808"));
  EXPECT_THAT(refused("job.seed=0xFFFFFFFFFFFFFFFFF"), HasSubstr("0xFFFFFFFFFFFFFFFFF is larger than"));
  EXPECT_THAT(refused("optimizer.clip_norm=99999999999999999999"), HasSubstr("; write it as a float, such as 1e20"));
  EXPECT_THAT(refused("job.seed=9999999999 9999999999"), HasSubstr("is the string \"9999999999 9999999999"));
  EXPECT_THAT(refused("job.seed= 9223372036854775808 "), HasSubstr(" is larger than 9223372036854775807"));
  EXPECT_THAT(refused("job.seed= "), HasSubstr("is the string \" \""));
  EXPECT_THAT(refused("job.seed=99999999999999999999 or so"), HasSubstr("is the string \"99999999999999999999 or so"));
  EXPECT_EQ(read("train.steps = 9", {"generate.prompt=99999999999999999999"}).generate.prompt, "99999999999999999999");
}

TEST(Deck, sections_may_be_tables_dotted_keys_or_inline) {
  const Settings settings = read("model.d_ff = 64\ntrain = { steps = 7 }\n[optimizer]\nwarmup_steps = 3\n");
  EXPECT_EQ(settings.model.d_ff, 64);
  EXPECT_EQ(settings.train.steps, 7);
  EXPECT_EQ(settings.optimizer.warmup_steps, 3);
}

TEST(Deck, a_byte_order_mark_and_windows_line_ends_do_no_harm) {
  EXPECT_EQ(read("\xEF\xBB\xBF[train]\r\nsteps = 7\r\n").train.steps, 7);
}

struct SizeCase {
  const char* name;
  std::int64_t d_model, d_ff, num_layers, num_heads, vocab_size;
};

TEST(Deck, sizes_fill_what_is_left_out) {
  for (const SizeCase& row : {SizeCase{"small", 768, 3072, 12, 12, 257},
                              {"medium", 1024, 4096, 24, 16, 257},
                              {"large", 1280, 5120, 36, 20, 257},
                              {"xl", 1600, 6400, 48, 25, 257},
                              {"2.7b", 2560, 10240, 32, 32, 257},
                              {"8b", 4096, 11008, 34, 32, 151936}}) {
    const Deck deck = parse_deck("model.size = \"" + std::string(row.name) + "\"", "deck.toml");
    const Model& model = deck.settings.model;
    EXPECT_EQ(model.d_model, row.d_model);
    EXPECT_EQ(model.d_ff, row.d_ff);
    EXPECT_EQ(model.num_layers, row.num_layers);
    EXPECT_EQ(model.num_heads, row.num_heads);
    EXPECT_EQ(model.vocab_size, row.vocab_size) << row.name;
    EXPECT_EQ(model.size, row.name);
    EXPECT_THAT(deck.resolved, HasSubstr("d_model = " + std::to_string(row.d_model) + "  # from model.size"));
    EXPECT_TRUE(are_same(parse_deck(deck.resolved, "again.toml").settings, deck.settings)) << row.name;
  }
}

TEST(Deck, a_number_beside_a_size_wins_and_the_size_is_custom_then) {
  const Deck deck = parse_deck("[model]\nsize = \"small\"\nnum_layers = 2\n", "deck.toml");
  EXPECT_EQ(deck.settings.model.num_layers, 2);
  EXPECT_EQ(deck.settings.model.d_model, 768);
  EXPECT_EQ(deck.settings.model.size, "custom");
  EXPECT_TRUE(are_same(parse_deck(deck.resolved, "again.toml").settings, deck.settings));
  EXPECT_EQ(read("[model]\nsize = \"small\"\nnum_layers = 12\n").model.size, "small");
  EXPECT_EQ(read("model.size = \"small\"", {"model.d_ff=1024"}).model.size, "custom");
}

TEST(Deck, paths_start_at_the_deck_and_in_overrides_at_the_current_directory) {
  const std::string here = fs::current_path().string();
  const Deck deck =
      parse_deck("[data]\nsource = \"text\"\npath = \"../data/text.txt\"\n[job]\ndirectory = \"out/\"\n", "deck.toml",
                 {"job.kind=verify.model", "job.input=in.h5", "job.output=./a/../b.h5"}, "/some/input");
  EXPECT_EQ(deck.settings.data.path, "/some/data/text.txt");
  EXPECT_EQ(deck.settings.job.directory, "/some/input/out");
  EXPECT_EQ(deck.settings.job.output, here + "/b.h5");
  EXPECT_EQ(deck.settings.job.input, here + "/in.h5");
}

TEST(Deck, a_path_up_from_a_link_starts_at_its_target) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("tessera_deck_{}", getpid());
  fs::create_directories(folder / "real/deep");
  fs::create_directories(folder / "work");
  fs::create_directory_symlink(folder / "real/deep", folder / "work/link");
  const Deck deck =
      parse_deck("data = {source = \"text\", path = \"link/../text.txt\"}", "d", {}, (folder / "work").string());
  EXPECT_EQ(deck.settings.data.path, (fs::canonical(folder) / "real/text.txt").string());
  fs::remove_all(folder);
}

TEST(Deck, a_path_that_begins_with_a_tilde_is_refused) {
  for (const char* path : {"~", "~/run"}) {
    const std::string wrong = fmt::format("\"{}\" begins with ~, which only a shell replaces", path);
    EXPECT_THAT(deck_refusal("train.steps = 9", {fmt::format("job.directory={}", path)}), HasSubstr(wrong));
    EXPECT_THAT(deck_refusal(fmt::format("data = {{source = 'text', path = '{}'}}", path)), HasSubstr(wrong));
  }
  EXPECT_EQ(read("job.directory = 'a~'").job.directory, (fs::current_path() / "a~").string());
}

TEST(Deck, an_hdf5_dataset_stays_behind_its_file) {
  EXPECT_EQ(
      parse_deck("data = {source = \"tokens\", path = \"x/../a.h5:/group/tokens\"}", "d", {}, "/in").settings.data.path,
      "/in/a.h5:/group/tokens");
  EXPECT_EQ(parse_deck("data = {source = \"tokens\", path = \"/abs/a.hdf5:/t\"}", "d", {}, "/in").settings.data.path,
            "/abs/a.hdf5:/t");
}

TEST(Deck, the_run_folder_is_named_after_the_deck) {
  EXPECT_EQ(parse_deck("train.steps = 1", "some/where/2.7b.toml").settings.job.directory,
            (fs::current_path() / "runs/2.7b").string());
  EXPECT_EQ(parse_deck("train.steps = 1", "deck.toml", {}, "/some/where/ladder").settings.job.directory,
            (fs::current_path() / "runs/ladder").string());
}

TEST(Deck, the_resolved_deck_lists_every_key_and_who_gave_it) {
  const Deck deck = parse_deck("[train]\nsteps = 50\n", "deck.toml", {"train.batch_size=4"});
  for (const Key& key : all_keys())
    EXPECT_THAT(deck.resolved, HasSubstr("\n" + std::string(key.leaf()) + " = " + value_text(key, deck.settings)));
  EXPECT_THAT(deck.resolved, HasSubstr("\nsteps = 50\n"));
  EXPECT_THAT(deck.resolved, HasSubstr("\nbatch_size = 4  # command line\n"));
  EXPECT_THAT(deck.resolved, HasSubstr("\nd_ff = 352  # default\n"));
}

TEST(Deck, long_lists_and_awkward_text_survive_the_resolved_deck) {
  std::string deck = "train.steps = 100000\ntrace.profile_steps = [";
  for (int step = 1; step <= 2000; ++step) deck += std::to_string(step) + ",\n";
  deck += "]\ngenerate.prompt = \"\\u0000\\\"\\\\\\r\\n\\t\\u001F\\u007F é 漢 😀\"\njob.directory = 'a \"b\" c'\n";
  const Deck first = parse_deck(deck, "deck.toml");
  EXPECT_EQ(first.settings.trace.profile_steps.size(), 2000u);
  const Deck second = parse_deck(first.resolved, "deck.toml");
  EXPECT_TRUE(are_same(first.settings, second.settings));
}

// --- decks from files ----------------------------------------------------------------------------------------------

class DeckFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tessera deck XXXXXX").string();  // with a space
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path write(const std::string& name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  static std::string refused(const fs::path& file) {
    return refusal(Exit::usage, [&] { load_deck(file); });
  }
  fs::path folder_;
};

TEST_F(DeckFile, is_read_and_its_folder_is_where_paths_start) {
  const fs::path file = write("a.toml", "data = {source = 'text', path = 'text.txt'}\n");
  const Deck deck = load_deck(file, {"train.steps=3"});
  EXPECT_EQ(deck.settings.data.path, (folder_ / "text.txt").string());
  EXPECT_EQ(deck.settings.train.steps, 3);
  EXPECT_EQ(deck.path, file);
}

TEST_F(DeckFile, missing) { EXPECT_THAT(refused(folder_ / "no.toml"), HasSubstr("no.toml  there is no such deck")); }

TEST_F(DeckFile, below_a_file) {
  EXPECT_THAT(refused(write("a.toml", "train.steps = 1") / "b.toml"), HasSubstr("b.toml"));
}

TEST_F(DeckFile, a_folder) { EXPECT_THAT(refused(folder_), HasSubstr("is a folder")); }

TEST_F(DeckFile, unreadable) {
  const fs::path file = write("a.toml", "train.steps = 1");
  fs::permissions(file, fs::perms::none);
  fs::permissions(folder_, fs::perms::all);
  const bool is_root = geteuid() == 0;  // root may read anything: switch to another user
  ASSERT_EQ(is_root ? seteuid(65534) : 0, 0);
  const std::string message = refused(file);
  ASSERT_EQ(is_root ? seteuid(0) : 0, 0);
  EXPECT_THAT(message, HasSubstr("cannot be read: Permission denied"));
}

TEST_F(DeckFile, empty) {
  EXPECT_THAT(refused(write("a.toml", "")), HasSubstr("contains no key"));
  EXPECT_THAT(refused(write("b.toml", "\n# only a comment\n")), HasSubstr("contains no key"));
}

TEST_F(DeckFile, binary) {
  EXPECT_THAT(refused(write("a.toml", std::string_view("train\0steps", 11))), HasSubstr("byte 0x00 at offset 5"));
  EXPECT_THAT(refused(write("b.toml", "# caf\xE9\n")), HasSubstr("byte 0xE9 at offset 5"));
  EXPECT_THAT(refused(write("c.toml", "\xFF\xFEt\x01")), HasSubstr("is not a text file"));
}

TEST_F(DeckFile, not_toml_with_its_place) {
  EXPECT_THAT(refused(write("a.toml", "[train]\nsteps 5\n")), HasSubstr("a.toml:2:7  is not TOML: "));
  EXPECT_THAT(refused(write("b.toml", "[train]\nsteps = 5\nsteps = 6\n")), HasSubstr("b.toml:3:"));
  EXPECT_THAT(refused(write("c.toml", "[train\n")), HasSubstr("c.toml:1:"));
}

TEST_F(DeckFile, letters_outside_of_quotes) {
  EXPECT_THAT(refused(write("a.toml", "train.steps = é\n")), HasSubstr("a.toml:1:15  is not TOML: "));
  EXPECT_THAT(refused(write("b.toml", "é.steps = 5\n")), HasSubstr("b.toml:1:1  is not TOML: "));
  EXPECT_EQ(load_deck(write("c.toml", "generate.prompt = \"\"\"\\\n§\"\"\" # é\n")).settings.generate.prompt, "§");
}

TEST_F(DeckFile, brackets_without_end) {
  for (const char* text :
       {"[[[1]]]\n", "[[[a]]]\n", "[[=\n", "[.a]\n", "a = {=}\n", "a = {b = 1, @ = 2}\n", "= 5\n", ". = 5\n"})
    EXPECT_THAT(refused(write("a.toml", text)), HasSubstr("is not TOML: ")) << text;
}

TEST_F(DeckFile, endless) { EXPECT_THAT(refused("/dev/zero"), HasSubstr("is longer than")); }

TEST_F(DeckFile, nested_past_all_reason) {
  std::string name = "a";
  while (name.size() < 4000) name += ".a";
  EXPECT_THAT(refused(write("a.toml", "[" + name + "]\n" + name + " = 1\n")), HasSubstr("unknown section"));
  name += name;
  EXPECT_THAT(refused(write("b.toml", name + " = 1\n")), HasSubstr("b.toml:1:1  line is longer than"));
}

}  // namespace
}  // namespace tessera::config
