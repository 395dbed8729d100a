#include "config/keys.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>

#include <fmt/format.h>

#include "config/text.hpp"

namespace tessera::config {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

std::string toml_text(std::integral auto value) { return fmt::format("{}", value); }
std::string toml_text(const std::string& value) { return toml_string(value); }
std::string toml_text(double value) { return toml_number(value); }
template <class Element>
std::string toml_text(const std::vector<Element>& values) {
  std::string text = "[";
  std::size_t line_start = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool is_full = text.size() - line_start > 100;  // a long list stays readable, and its lines short
    if (i > 0) text += is_full ? ",\n  " : ", ";
    if (is_full) line_start = text.size();
    text += toml_text(values[i]);
  }
  return text + "]";
}

std::string number_text(double value) {
  if (value == kMaxInteger) return std::to_string(std::numeric_limits<std::int64_t>::max());
  return std::abs(value) < 1e10 && value == std::floor(value) ? fmt::format("{:.0f}", value)
                                                              : fmt::format("{:g}", value);
}

using Wrong = std::optional<std::string>;

Wrong violation_of(const Legal&, bool) { return std::nullopt; }

template <class Number>
Wrong violation_of(const Legal& legal, Number number) {
  const auto value = static_cast<double>(number);
  if (!std::isfinite(value)) return fmt::format("is {}, not a finite number", number);
  const bool low = legal.above_min ? value <= legal.min : value < legal.min;
  const bool high = legal.below_max ? value >= legal.max : value > legal.max;
  if (low || high) return fmt::format("{} is out of range", number);
  return std::nullopt;
}

Wrong violation_of(const Legal& legal, const std::string& value) {
  if (const auto bad = first_bad_utf8(value)) return fmt::format("is not UTF-8 text (byte {})", *bad);
  if (toml_string(value).size() > kMaxTextBytes) return fmt::format("is longer than {} bytes", kMaxTextBytes);
  if (legal.not_empty && value.empty()) return "is empty";
  if (legal.is_path && value.find('\0') != std::string::npos) return "holds a NUL character";
  const auto matches = [&](const Word& word) { return word.text == value; };
  if (!legal.words.empty() && std::none_of(legal.words.begin(), legal.words.end(), matches))
    return "is not a word of this key";
  return std::nullopt;
}

template <class Element>
Wrong violation_of(const Legal& legal, const std::vector<Element>& values) {
  if (legal.not_empty && values.empty()) return "is an empty list";
  for (std::size_t i = 0; i < values.size(); ++i)
    if (const Wrong wrong = violation_of(legal, values[i])) return fmt::format("element {}: {}", i + 1, *wrong);
  return std::nullopt;
}

}  // namespace

const Key* find_key(std::string_view name) {
  for (const Key& key : all_keys())
    if (key.name == name) return &key;
  return nullptr;
}

std::vector<std::string_view> section_names() {
  std::vector<std::string_view> names;
  for (const Key& key : all_keys())
    if (names.empty() || names.back() != key.section()) names.push_back(key.section());
  return names;
}

bool is_section(std::string_view name) {
  const auto names = section_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string nearest_key(std::string_view name) {
  const std::string_view leaf = name.substr(name.rfind('.') + 1);
  std::vector<std::string_view> names;
  for (const Key& key : all_keys()) names.push_back(key.name);
  if (const std::string found = nearest(name, names); !found.empty() && edit_distance(found, name) <= 2) return found;
  for (const Key& key : all_keys())  // the right word in the wrong section
    if (key.leaf() == leaf) return std::string(key.name);
  return nearest(name, names);
}

std::string value_text(const Key& key, const Settings& settings) {
  return std::visit(Overloaded{[&](const EnumAccess& access) {
                                 const int value = access.read(settings);
                                 for (const Word& word : key.legal.words)
                                   if (word.value == value) return toml_string(word.text);
                                 // A word is missing in the table: a test looks for this.
                                 return fmt::format("\"?{}\"", value);
                               },
                               [&](const auto& access) { return toml_text(access.read(settings)); }},
                    key.field);
}

std::string overrides_to(const Settings& wanted, const Settings& deck) {
  std::string text;
  for (const Key& key : all_keys()) {
    if (key.name == "model.size") continue;
    std::string value = value_text(key, wanted);
    if (value == value_text(key, deck)) continue;
    if (std::holds_alternative<EnumAccess>(key.field)) std::erase(value, '"');  // shells drop them, and words need none
    text += fmt::format(" {}={}", key.name, value);
  }
  return text;
}

std::string type_text(const Key& key) {
  const bool is_word = !key.legal.words.empty();
  return std::visit(
      Overloaded{[](const Access<bool>&) { return "boolean"; }, [](const Access<std::int64_t>&) { return "integer"; },
                 [](const Access<std::uint64_t>&) { return "integer"; }, [](const Access<double>&) { return "number"; },
                 [&](const Access<std::string>&) { return is_word             ? "word"
                                                          : key.legal.is_path ? "path"
                                                                              : "text"; },
                 [](const Access<std::vector<std::int64_t>>&) { return "list of integers"; },
                 [](const Access<std::vector<std::string>>&) { return "list of texts"; },
                 [](const EnumAccess&) { return "word"; }},
      key.field);
}

bool takes_list(const Key& key) { return type_text(key).starts_with("list"); }

std::string legal_text(const Key& key) {
  const Legal& legal = key.legal;
  std::string text;
  const bool has_min = std::isfinite(legal.min), has_max = std::isfinite(legal.max);
  if (!legal.words.empty()) {
    for (const Word& word : legal.words) text += (text.empty() ? "" : " ") + std::string(word.text);
  } else if (has_min && has_max) {
    text = fmt::format("{}{} to {}{}", legal.above_min ? "above " : "", number_text(legal.min), number_text(legal.max),
                       legal.below_max ? " (not included)" : "");
  } else if (has_min) {
    text = fmt::format(fmt::runtime(legal.above_min ? "above {}" : "{} or more"), number_text(legal.min));
  } else if (legal.is_path) {
    text = "a path";
  } else if (std::holds_alternative<Access<bool>>(key.field)) {
    text = "true false";
  } else {
    text = "any " + type_text(key);
  }
  return legal.not_empty ? text + ", not empty" : text;
}

std::optional<std::string> violation(const Key& key, const Settings& settings) {
  return std::visit(Overloaded{[](const EnumAccess&) -> Wrong { return std::nullopt; },
                               [&](const auto& access) { return violation_of(key.legal, access.read(settings)); }},
                    key.field);
}

std::vector<std::string> differences(const Settings& before, const Settings& after, std::string_view prefix) {
  std::vector<std::string> lines;
  for (const Key& key : all_keys()) {
    if (!key.name.starts_with(prefix) || key.name == "model.size") continue;
    const std::string old_text = value_text(key, before), new_text = value_text(key, after);
    if (old_text != new_text) lines.push_back(fmt::format("{}: {} -> {}", key.name, old_text, new_text));
  }
  return lines;
}

}  // namespace tessera::config
