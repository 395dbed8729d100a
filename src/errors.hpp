/// The program's exit codes, the one exception type that carries them to main, and the meaning of other exceptions.
#pragma once

#include <fmt/core.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "kernels/core/words.hpp"

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

/// A fault that ends the job with `code`; the message says what is wrong and ends with the next action. Control
/// characters in names that it quotes are escaped here, once for every printer.
class Failure : public std::runtime_error {
 public:
  Failure(Exit code, const std::string& message) : std::runtime_error(printable(message)), code_(code) {}
  template <class First, class... Rest>
  Failure(Exit code, fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
      : Failure(code, fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
  Exit code() const { return code_; }

 private:
  Exit code_;
};

/// The exit code that an exception means.
inline Exit exit_of(const std::exception& exception) {
  if (const auto* failure = dynamic_cast<const Failure*>(&exception)) return failure->code();
  if (dynamic_cast<const std::bad_alloc*>(&exception)) return Exit::out_of_memory;
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&exception)) return Exit::files;
  return tells_of_no_memory(exception.what()) ? Exit::out_of_memory : Exit::environment;
}

}  // namespace tessera
