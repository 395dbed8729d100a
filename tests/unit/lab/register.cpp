/// Adds the laboratory's jobs and keys before the first test of an executable.
#include "lab/lab.hpp"

namespace {
[[maybe_unused]] const bool kHasJoined = (tessera::lab::join(), true);
}
