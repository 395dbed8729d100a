/// Requested output on standard output: it is written whole, or the program exits with 6.
///
/// A training run's console (io/console.hpp) is not part of it: its reader may leave, and the run continues.
#pragma once

#include <string_view>

namespace tessera::io {

/// To be called before any file is opened. A standard stream that is closed is a place where reads and writes fail from
/// here on, so that no file gets its number and other text with it; and a reader that goes away is an error of the
/// write, no longer a signal that ends the process.
void hold_standard_streams();

/// Writes to standard output. What does not get there is remembered, and the program goes on: a benchmark has a file to
/// write besides.
void answer(std::string_view text);

/// Throws Failure(Exit::files) where an answer did not get there whole.
void require_answered();

}  // namespace tessera::io
