/// Sums of squares that transfers leave, so that the norm need not read the gradients again: a transfer that computes
/// its own sums leaves one for each kBytes that this rank adds. Their total over the ranks is the whole message's. Room
/// is handed out front to back.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/core/round_up.hpp"
#include "kernels/core/sum_parts.hpp"
#include "parallel/collectives/collective.hpp"

namespace tessera::parallel {

class Squares {
 public:
  static constexpr std::int64_t kBytes = kernels::SumParts<kernels::Device, float>::kSquaresBytes;

  /// The number of partial sums for this many bytes of sums.
  static std::int64_t count_of(std::int64_t bytes) { return kernels::ceil_div(bytes, kBytes); }

  /// `room`: fp64, in memory of the same kind as what is summed.
  explicit Squares(const Span& room) : room_(room) {}

  /// Call before connecting `sums`: makes them leave their squares in the room. Returns how many; none if the room is
  /// empty or a transfer leaves none.
  /// Throws  std::logic_error if there is too little room.
  static std::optional<std::int64_t> left_by(const std::vector<Transfer*>& sums, const Span& room) {
    Squares squares(room);
    for (Transfer* sum : sums) {
      if (room.count == 0 || !sum->leave_squares(squares)) return std::nullopt;
    }
    return squares.taken_;
  }

  /// A place for the squares of this many bytes of sums.
  double* take(std::int64_t bytes) {
    double* const place = static_cast<double*>(room_.data) + taken_;
    taken_ += count_of(bytes);
    if (taken_ <= room_.count) return place;
    throw std::logic_error("'" + room_.label + "' has room for " + std::to_string(room_.count) + " of " +
                           std::to_string(taken_) + " sums of squares");
  }

 private:
  Span room_;
  std::int64_t taken_ = 0;
};

}  // namespace tessera::parallel
