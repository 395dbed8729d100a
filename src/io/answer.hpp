/// Requested output on standard output: it is written whole, or the program exits with 6.
///
/// A training run's console (io/console.hpp) is not part of it: its reader may leave, and the run continues.
#pragma once

#include <string_view>

namespace tessera::io {

/// To be called before any file is opened. Replaces a closed standard stream by one on which reads and writes
/// fail, so that no file gets its descriptor and the text written to it; a reader that goes away, or a limit on the
/// size of files, makes the write fail instead of ending the process by a signal.
void hold_standard_streams();

/// Writes to standard output, with control characters escaped (kernels/core/words.hpp). A failure is remembered and
/// the program continues: a benchmark has a file to write, too.
void answer(std::string_view text);

/// The same, byte by byte: generated text, which may be read by a program.
void answer_bytes(std::string_view text);

/// Throws Failure(Exit::files) if an answer was not written whole.
void require_answered();

}  // namespace tessera::io
