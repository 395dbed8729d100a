/// The exit codes of the program and the one exception type that carries them to main.
#pragma once

#include <stdexcept>
#include <string>

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

/// A fault that ends the job with `code`; the message says what is wrong and ends with the next action.
class Failure : public std::runtime_error {
 public:
  Failure(Exit code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Exit code() const { return code_; }

 private:
  Exit code_;
};

}  // namespace tessera
