/// Requested output on standard output: written whole, or the program exits with 6.
///
/// Unlike a training run's console (io/console.hpp), whose reader may leave while the run continues.
#pragma once

#include <string_view>

namespace tessera::io {

/// Call before any file is opened. Replaces each closed standard stream by one that fails on every use, so that no
/// file gets its descriptor. A reader that leaves, or a file size limit, then fails the write; no signal ends the
/// process.
void hold_standard_streams();

/// Writes to standard output, with control characters escaped (kernels/core/words.hpp). Remembers a failure and
/// continues: a benchmark has a file to write, too.
void answer(std::string_view text);

/// The same, byte by byte: generated text, which may be read by a program.
void answer_bytes(std::string_view text);

/// Throws Failure(Exit::files) if an answer was not written whole.
void require_answered();

}  // namespace tessera::io
