/// UTF-8, quoting, edit distance, nearest name.
#include "config/text.hpp"

#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace tessera::config {
namespace {

TEST(Text, utf8_accepts_every_length_and_its_borders) {
  for (const std::string_view good : {"", "plain", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF",
                                      "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(first_bad_utf8(good), std::nullopt) << good;
}

TEST(Text, utf8_refuses_what_rfc_3629_refuses_at_its_offset) {
  // stray continuation, overlong (2, 3, 4 bytes), surrogate, above U+10FFFF, invalid leads, cut short
  for (const std::string bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\xFF", "\xC2", "\xE2\x82", "\xF0\x9F\x98", "\xC2x"})
    EXPECT_EQ(first_bad_utf8("ab" + bad), std::optional<std::size_t>(2)) << testing::PrintToString(bad);
}

TEST(Text, as_utf8_shows_other_bytes) {
  EXPECT_EQ(as_utf8("d\xE4x \xC3\xA4 \xE2\x82"), "d\\xe4x \xC3\xA4 \\xe2\\x82");
  EXPECT_EQ(as_utf8(""), "");
}

TEST(Text, toml_string_escapes_control_characters_of_two_bytes) {
  EXPECT_EQ(toml_string("a\xC2\x80\xC2\x9F\xC2\xA0\xC3\x85"), "\"a\\u0080\\u009F\xC2\xA0\xC3\x85\"");
}

TEST(Text, toml_string_stays_on_one_line) {
  EXPECT_EQ(toml_string("a\"b\\c\n\t\r\x01\x7F"
                        "é"),
            "\"a\\\"b\\\\c\\n\\t\\r\\u0001\\u007Fé\"");
}

TEST(Text, toml_number_is_a_float_and_exact) {
  EXPECT_EQ(toml_number(25), "25.0");
  EXPECT_EQ(toml_number(0.1), "0.1");
  EXPECT_EQ(toml_number(1e-8), "1e-08");
  for (const double value : {1.0 / 3, 1e300, 2.3e-308, std::numeric_limits<double>::max()})
    EXPECT_EQ(std::stod(toml_number(value)), value);
}

TEST(Text, edit_distance_counts_insert_delete_replace_and_swap) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("steps", "stpes"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("flat", "flash"), 2u);
}

TEST(Text, nearest_is_silent_when_nothing_is_near) {
  EXPECT_EQ(nearest("fp23", {"fp32", "fp16", "bf16"}), "fp32");
  EXPECT_EQ(nearest("zebra", {"fp32", "fp16", "bf16"}), "");
  EXPECT_EQ(nearest(std::string(100000, 'f'), {"fp32"}), "");
}

}  // namespace
}  // namespace tessera::config
