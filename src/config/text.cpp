#include "config/text.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "config/toml.hpp"

namespace tessera::config {

std::optional<std::size_t> first_bad_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned lead = byte(i);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xC2 ? 0
                               : lead < 0xE0 ? 2
                               : lead < 0xF0 ? 3
                               : lead < 0xF5 ? 4
                                             : 0;
    if (length == 0 || i + length > text.size()) return i;
    for (std::size_t k = 1; k < length; ++k)
      if ((byte(i + k) & 0xC0) != 0x80) return i;
    if (length > 2) {
      const unsigned second = byte(i + 1);  // the four leads whose first continuation byte is restricted
      if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
          (lead == 0xF4 && second > 0x8F))
        return i;
    }
    i += length;
  }
  return std::nullopt;
}

std::string as_utf8(std::string_view text) {
  std::string out;
  while (const auto bad = first_bad_utf8(text)) {
    out += text.substr(0, *bad);
    out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[*bad]));
    text.remove_prefix(*bad + 1);
  }
  return out += text;
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    switch (text[i]) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default:
        if (byte < 0x20 || byte == 0x7F) {
          out += fmt::format("\\u{:04X}", byte);
        } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F, in two bytes
          out += fmt::format("\\u{:04X}", next);
          ++i;
        } else {
          out += text[i];
        }
    }
  }
  return out + '"';
}

std::string toml_number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::optional<std::string> node_text(const toml::node& node) {
  if (const auto* value = node.as_string()) return toml_string(value->get());
  if (const auto* value = node.as_integer()) return fmt::to_string(value->get());
  if (const auto* value = node.as_floating_point()) return toml_number(value->get());
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  const auto* array = node.as_array();
  if (array == nullptr) return std::nullopt;
  std::string text = "[";
  for (const toml::node& element : *array) {
    const auto part = node_text(element);
    if (!part) return std::nullopt;
    text += (text.size() > 1 ? ", " : "") + *part;
  }
  return text + "]";
}

std::vector<std::string> element_texts(const toml::node& node) {
  const toml::array* list = node.as_array();
  if (list == nullptr) return {node_text(node).value_or("")};
  std::vector<std::string> texts;
  for (const toml::node& element : *list) texts.push_back(node_text(element).value_or(""));
  return texts;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment: three rolling rows, row i holds the distances of a[0,i) to every b[0,j).
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string nearest(std::string_view name, const std::vector<std::string_view>& candidates) {
  std::string best;
  std::size_t fewest = std::max<std::size_t>(1, name.size() / 3) + 1;
  if (name.size() > 200) return best;  // too long for a mistyped key
  for (const std::string_view candidate : candidates) {
    const std::size_t edits = edit_distance(name, candidate);
    if (edits < fewest) {
      fewest = edits;
      best = candidate;
    }
  }
  return best;
}

}  // namespace tessera::config
