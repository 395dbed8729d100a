#include "io/answer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "errors.hpp"

namespace tessera::io {
namespace {

int first_error = 0;  // of an answer, as errno has it

}  // namespace

void hold_standard_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is this one, and the wrong mode makes every use of it an error.
    static_cast<void>(::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

void answer(std::string_view text) {
  if (first_error != 0) return;
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  first_error = errno != 0 ? errno : EIO;
}

void require_answered() {
  if (first_error == 0) return;
  throw Failure(Exit::files, std::string("standard output: ") + std::strerror(first_error) +
                                 ": what was asked for did not get there whole; send it to another place");
}

}  // namespace tessera::io
