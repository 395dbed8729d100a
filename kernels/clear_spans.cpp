#include "kernels/clear_spans.hpp"

#include <algorithm>

#include "kernels/core/team.hpp"

namespace tessera::kernels {

std::vector<ClearSpan> cut_spans(const std::vector<ClearSpan>& spans) {
  std::vector<ClearSpan> pieces;
  for (const auto& [first, count] : spans) {
    for (std::int64_t piece = 0; piece < cleared_pieces(count); ++piece) {
      const std::int64_t done = piece * kClearedPerTeam;
      pieces.push_back({first + done, std::min(kClearedPerTeam, count - done)});
    }
  }
  return pieces;
}

template <class Exec, class Real>
void ClearSpans<Exec, Real>::launch(const Exec& exec) const {
  if (spans.extent(0) == 0) return;
  Kokkos::parallel_for("tessera::clear_spans", Policy(exec, spans.extent_int(0), team_size_of<Exec>()), *this);
}

template <class Exec, class Real>
KOKKOS_FUNCTION void ClearSpans<Exec, Real>::operator()(const Member& team) const {
  const ClearSpan span = spans(team.league_rank());
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, static_cast<int>(span.count)),
                       [&](int i) { array(span.first + i) = static_cast<Real>(0.0f); });
}

template struct ClearSpans<Device, float>;
template struct ClearSpans<Device, double>;
template struct ClearSpans<Device, bfloat16>;

}  // namespace tessera::kernels
