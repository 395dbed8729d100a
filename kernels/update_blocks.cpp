#include "kernels/update_blocks.hpp"

#include <algorithm>

#include "kernels/core/require.hpp"

namespace tessera::kernels {

namespace {

/// Sorts spans by their begin `first`, and rejects spans that overlap there.
void require_disjoint(std::vector<UpdateSpan>& spans, std::int64_t UpdateSpan::*first) {
  std::sort(spans.begin(), spans.end(), [&](const auto& a, const auto& b) { return a.*first < b.*first; });
  std::int64_t end = 0;
  for (const UpdateSpan& span : spans) {
    TESSERA_REQUIRE(span.*first >= 0 && span.count >= 0, "update: a span must not be negative", span.*first,
                    span.count);
    TESSERA_REQUIRE(span.count == 0 || span.*first >= end, "update: spans must not overlap", span.*first, end);
    end = std::max(end, span.*first + span.count);
  }
}

}  // namespace

std::vector<UpdateBlock> make_update_blocks(const std::vector<UpdateSpan>& spans) {
  std::vector<UpdateSpan> sorted = spans;
  require_disjoint(sorted, &UpdateSpan::state);
  require_disjoint(sorted, &UpdateSpan::param);
  std::vector<UpdateBlock> blocks;
  for (const UpdateSpan& span : sorted) {
    for (std::int64_t block = 0; block < update_blocks(span.count); ++block) {
      const std::int64_t done = block * kUpdateBlock;
      const auto count = static_cast<std::int32_t>(std::min(kUpdateBlock, span.count - done));
      blocks.push_back({span.param + done, span.grad + done, span.state + done, count, span.decay, span.index + done});
    }
  }
  return blocks;
}

}  // namespace tessera::kernels
