/// Prints a line to the user, on rank 0.
#pragma once

#include <functional>
#include <string>

namespace tessera::jobs {

using Note = std::function<void(const std::string&)>;

}  // namespace tessera::jobs
