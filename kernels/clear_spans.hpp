/// Sets spans of an array to zero, all in one launch: array[first .. first+count-1] = 0 for every span.
///
/// Async   returns after enqueue on `exec`; never fences.
/// Limits  spans lie inside the array and do not overlap.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/round_up.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

struct ClearSpan {
  std::int64_t first, count;
};

inline constexpr std::int64_t kClearedPerTeam = 16384;  // elements

/// Pieces that cut_spans makes of a span of `count` elements.
constexpr std::int64_t cleared_pieces(std::int64_t count) { return ceil_div(count, kClearedPerTeam); }

/// Cuts spans into pieces of at most kClearedPerTeam elements, one team's work each.
std::vector<ClearSpan> cut_spans(const std::vector<ClearSpan>& spans);

template <class Exec, class Real>
struct ClearSpans {
  Vector<const ClearSpan, Exec> spans;  // in   as cut_spans gives them
  Vector<Real, Exec> array;             // out

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

}  // namespace tessera::kernels
