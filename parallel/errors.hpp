/// Exceptions for faults between ranks. Messages end with what to do; the caller maps each type to an exit code.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace tessera::parallel {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  template <class First, class... Rest>
  Error(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
      : Error(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
};

/// The machine, the build or the launch cannot do what was asked for.
class EnvironmentError final : public Error {
 public:
  using Error::Error;
};

/// No memory is left for what the ranks exchange.
class MemoryError final : public Error {
 public:
  using Error::Error;
};

/// Another rank, the network or this rank's GPU is lost in mid-run.
class LossError final : public Error {
 public:
  using Error::Error;
};

/// Ends the message of a LossError: what to do.
inline constexpr char kAfterLoss[] = "; training and experiments go on from what they stored (--resume auto)";

/// The exit code of a rank that leaves the others, and the cause in words.
struct Departure {
  int exit_code;
  std::string why;
};

/// A failure that all ranks throw together, after they have agreed on it (World::agree). The message is `why`.
class AgreedError final : public Error {
 public:
  explicit AgreedError(const Departure& departure) : Error(departure.why), exit_code_(departure.exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

}  // namespace tessera::parallel
