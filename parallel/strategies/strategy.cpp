#include "parallel/strategies/strategy.hpp"

#include <stdexcept>
#include <string>

namespace tessera::parallel {

std::optional<std::int64_t> leave_squares(const std::vector<Transfer*>& sums, const Span& room) {
  if (room.count == 0) return std::nullopt;
  std::int64_t all = 0;
  for (const Transfer* sum : sums) {
    const std::optional<std::int64_t> squares = sum->squares();
    if (!squares) return std::nullopt;
    all += *squares;
  }
  if (all > room.count) {
    throw std::logic_error("'" + room.label + "' has room for " + std::to_string(room.count) + " of " +
                           std::to_string(all) + " sums of squares");
  }
  std::int64_t first = 0;
  for (Transfer* sum : sums) {
    const std::int64_t count = *sum->squares();
    sum->leave_squares(room.part(first, count));
    first += count;
  }
  return all;
}

}  // namespace tessera::parallel
