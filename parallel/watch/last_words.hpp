/// Output of a watching thread before it ends the process.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string_view>

namespace tessera::parallel {

/// Writes `text` to standard error without the stream's lock and buffer, which the hanging thread may hold. Only the
/// writing is lock-free: making `text` takes the heap's lock.
inline void write_last_words(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace tessera::parallel
