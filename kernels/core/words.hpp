/// Numbers in sentences.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace tessera {

/// "1 rank", "2 ranks".
inline std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

/// `value`, with a NaN made positive: the sign of a NaN means nothing, but would be printed.
inline double without_sign_of_nan(double value) { return std::isnan(value) ? std::copysign(value, 1.0) : value; }

}  // namespace tessera
