/// Registers what the laboratory adds to decks before the first test of an executable.
#include "lab/kinds.hpp"

namespace {
[[maybe_unused]] const bool kIsRegistered = (tessera::config::extend(tessera::lab::deck_extension()), true);
}
