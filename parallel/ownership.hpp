/// Which elements of the flat arrays a rank keeps and updates.
#pragma once

#include <cstdint>

namespace tessera::parallel {

/// Elements first .. first + count - 1 of the flat index space of all parameters.
struct Range {
  std::int64_t first, count;
};

}  // namespace tessera::parallel
