#include "io/answer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "errors.hpp"
#include "kernels/core/words.hpp"

namespace tessera::io {
namespace {

int first_error = 0;  // errno of the first write that failed

}  // namespace

void hold_standard_streams() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // open() takes the lowest free descriptor, which is this one; its mode makes every use of it fail.
    static_cast<void>(::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

void answer(std::string_view text) { answer_bytes(printable(text)); }

void answer_bytes(std::string_view text) {
  if (first_error != 0) return;
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  first_error = errno != 0 ? errno : EIO;
}

void require_answered() {
  if (first_error == 0) return;
  throw Failure(Exit::files, std::string("standard output: ") + std::strerror(first_error) +
                                 ": the output was not written whole; send it elsewhere");
}

}  // namespace tessera::io
