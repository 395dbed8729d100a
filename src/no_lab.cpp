/// What stands for the laboratory in a program without it.
#include <string>

#include "config/command_line.hpp"
#include "config/extension.hpp"
#include "errors.hpp"
#include "lab/lab.hpp"

namespace tessera::lab {

void join() {}

std::string compare_text(const config::CommandLine&) {
  throw Failure(Exit::usage,
                "--compare " + std::string(config::kLeftOut) + "; it takes " + std::string(config::kHowToHaveIt));
}

}  // namespace tessera::lab
