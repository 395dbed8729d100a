/// Text for people: numbers in sentences, names that it quotes, what an error says.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// "1 rank", "2 ranks".
inline std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

/// `value`, with a NaN made positive: the sign of a NaN means nothing, but would be printed.
inline double without_sign_of_nan(double value) { return std::isnan(value) ? std::copysign(value, 1.0) : value; }

/// `text` with its control characters as \xNN, so that a file's name cannot move the cursor or change colours. Line
/// ends and tabs stay; so do all other bytes, UTF-8 or not. Applied twice, it changes nothing more.
inline std::string printable(std::string_view text) {
  std::string out;
  const auto hide = [&](unsigned char byte) {
    constexpr char kDigits[] = "0123456789abcdef";
    ((out += "\\x") += kDigits[byte / 16]) += kDigits[byte % 16];
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : '\n';
    const bool ends_line = byte == '\n' || (byte == '\r' && next == '\n');
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F, further control characters, in UTF-8
      hide(byte);
      hide(next);
      ++i;
    } else if ((byte < 0x20 && byte != '\t' && !ends_line) || byte == 0x7F) {
      hide(byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

/// Whether an error's text says that memory has run out: Kokkos, CUDA's libraries and NCCL report it as text only.
inline bool tells_of_no_memory(std::string_view text) {
  for (const std::string_view words : {"failed to allocate", "out of memory", "ALLOC_FAILED", "Failed to malloc",
                                       "Failed to CUDA "}) {  // the last: NCCL
    if (text.find(words) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace tessera
