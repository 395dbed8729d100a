/// The laboratory: benchmarks, experiments, and plans beside what runs measured. A program may be built without it
/// (TESSERA_ENABLE_LAB=OFF); then src/no_lab.cpp stands for it.
#pragma once

#include <string>

namespace tessera::config {
struct CommandLine;
}

namespace tessera::lab {

/// Adds its jobs and its keys to the program's, before the first deck is read.
void join();

/// What --plan --compare RUN.h5 prints (plan_compare.cpp).
/// Throws  Failure(Exit::usage) in a program without it.
std::string compare_text(const config::CommandLine& line);

}  // namespace tessera::lab
