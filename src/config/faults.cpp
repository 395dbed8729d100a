#include "config/faults.hpp"

#include <algorithm>
#include <charconv>
#include <tuple>
#include <variant>

#include <fmt/format.h>

#include "config/text.hpp"
#include "errors.hpp"

namespace tessera::config {

std::string line(const Fault& fault) {
  std::string text = fault.where.text;
  if (!fault.key.empty()) text += "  " + fault.key;
  text += "  " + fault.wrong;
  if (!fault.legal.empty()) text += "  legal: " + fault.legal;
  if (!fault.nearest.empty()) text += "  nearest: " + fault.nearest;
  return text;
}

void Faults::throw_if_any(std::string_view deck) {
  if (faults_.empty()) return;
  std::stable_sort(faults_.begin(), faults_.end(), [](const Fault& a, const Fault& b) {
    return std::tie(a.where.line, a.where.column) < std::tie(b.where.line, b.where.column);
  });
  std::string text = fmt::format("{} fault{} in deck {}:\n", faults_.size(), faults_.size() == 1 ? "" : "s", deck);
  for (const Fault& fault : faults_) text += line(fault) + "\n";
  throw Failure(Exit::usage, text + "Correct the deck or the override; `tessera --explain KEY` says what a key means.");
}

namespace {

/// Whether the key takes any text, of which TOML is only one way to write it.
bool takes_text(const Key& key) {
  return std::holds_alternative<Access<std::string>>(key.field) && key.legal.words.empty();
}

/// Whether an override that is not TOML was meant to be: it begins with a quote or, unless the key takes any text (a
/// path's pattern [0-9]*.bin), with a bracket. `key`: nullptr for a table.
bool is_meant_as_toml(const Key* key, std::string_view right) {
  const std::size_t begin = right.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return false;
  const char first = right[begin];
  return first == '"' || first == '\'' || ((first == '[' || first == '{') && (key == nullptr || !takes_text(*key)));
}

/// What is wrong with the text of an integer that TOML cannot hold; nothing if it is none.
std::optional<std::string> out_of_integers(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  std::string digits(text.substr(begin, text.find_last_not_of(' ') + 1 - begin));
  std::erase(digits, '_');
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.erase(0, 1);
  int base = 10;
  for (const auto& [prefix, of_prefix] : {std::pair{"0x", 16}, {"0o", 8}, {"0b", 2}}) {
    if (!digits.starts_with(prefix)) continue;
    base = of_prefix;
    digits.erase(0, 2);
  }
  std::int64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, value, base);
  if (error != std::errc::result_out_of_range || last != end) return std::nullopt;
  const std::string shown = text.size() <= 60 ? std::string(text) : "the number";
  using Limits = std::numeric_limits<std::int64_t>;
  return is_negative ? fmt::format("{} is smaller than {}", shown, Limits::min())
                     : fmt::format("{} is larger than {}", shown, Limits::max());
}

/// The legal values, for somebody who began to write TOML.
std::string toml_advice(const Key& key) {
  std::string legal = typed_legal_text(key);
  if (takes_text(key)) {
    legal +=
        R"(; in TOML's double quotes \\ is a backslash and \" a quote; what begins with no quote is taken as it is)";
  } else if (std::holds_alternative<Access<std::vector<std::string>>>(key.field)) {
    legal += fmt::format("; quoted for the shell: '{}=[\"...\"]'", key.name);
  }
  return legal;
}

}  // namespace

std::string typed_legal_text(const Key& key) {
  const std::string legal = legal_text(key), type = type_text(key);
  return legal.find(type) == std::string::npos ? type + ", " + legal : legal;
}

std::string quoting_advice(const Key& key) {
  return fmt::format("; quote it for TOML as well: '{}=\"...\"'", key.name);
}

std::optional<Fault> override_fault(const Key* key, const std::string& right, const std::string& error) {
  if (is_meant_as_toml(key, right)) {
    const std::string legal = key == nullptr ? "a table of TOML, quoted for the shell" : toml_advice(*key);
    return Fault{{}, "", fmt::format("is not TOML: {}", error), legal, ""};
  }
  if (key == nullptr || takes_text(*key)) return std::nullopt;
  if (const auto wrong = out_of_integers(right)) {
    const bool is_float = std::holds_alternative<Access<double>>(key->field);
    return Fault{{}, "", *wrong, typed_legal_text(*key) + (is_float ? "; write it as a float, such as 1e20" : ""), ""};
  }
  return std::nullopt;
}

}  // namespace tessera::config
