/// The exit codes of the program, the one exception type that carries them to main and from rank to rank, and what
/// others' exceptions mean.
#pragma once

#include <charconv>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "kernels/core/out_of_memory.hpp"
#include "kernels/core/printable.hpp"

namespace tessera {

enum class Exit : int {
  finished = 0,
  usage = 2,        // command line or deck
  environment = 3,  // what the machine or this build cannot do
  out_of_memory = 4,
  numbers = 5,  // NaN, divergence
  files = 6,    // missing, damaged or unwritable data, checkpoint or output
  hang = 7,
  stopped = 75,  // stopped on a limit or a signal: resume me (EX_TEMPFAIL)
};

/// A fault that ends the job with `code`; the message says what is wrong and ends with the next action. It is
/// printable: control characters in the names that it quotes are escaped here, once for all that print it.
class Failure : public std::runtime_error {
 public:
  Failure(Exit code, const std::string& message) : std::runtime_error(printable(message)), code_(code) {}
  Exit code() const { return code_; }

 private:
  Exit code_;
};

/// Encodes a failure for the other ranks, as "4 its message", and decodes it. Text that does not encode a failure (the
/// bytes of another exchange, if ranks are out of step) decodes to Exit::environment with that text.
inline std::string encoded(const Failure& failure) {
  return std::to_string(static_cast<int>(failure.code())) + " " + failure.what();
}
inline Failure decoded_failure(const std::string& text) {
  int code = 0;
  const char* const end = text.data() + text.size();
  const auto [space, error] = std::from_chars(text.data(), end, code);
  if (error != std::errc() || space == end || *space != ' ') return Failure(Exit::environment, text);
  return Failure(static_cast<Exit>(code), std::string(space + 1, end));
}

/// The exit code that an exception means.
inline Exit exit_of(const std::exception& exception) {
  if (const auto* failure = dynamic_cast<const Failure*>(&exception)) return failure->code();
  if (dynamic_cast<const std::bad_alloc*>(&exception)) return Exit::out_of_memory;
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&exception)) return Exit::files;
  return tells_of_no_memory(exception.what()) ? Exit::out_of_memory : Exit::environment;
}

}  // namespace tessera
