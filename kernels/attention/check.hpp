/// The preconditions that every attention kernel shares.
#pragma once

#include "kernels/core/require.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels::detail {

/// q and friends are [B,H,Tq,D], k and friends [B,H,Tk,D]; the head width is contiguous.
template <class Query, class Key>
void require_attention_shapes(const Query& q, const Key& k, int max_head) {
  const auto D = q.extent_int(3);
  TESSERA_REQUIRE(D >= 1 && D <= max_head, "attention: head width out of range", D, max_head);
  TESSERA_REQUIRE(k.extent(0) == q.extent(0) && k.extent(1) == q.extent(1) && k.extent(3) == q.extent(3),
                  "attention: k must be [B,H,Tk,D] with q's B, H and D", q.extent(0), q.extent(1), q.extent(3),
                  k.extent(0), k.extent(1), k.extent(3));
}

template <class Like, class Other>
void require_same_heads(const char* rule, const Like& like, const Other& other) {
  TESSERA_REQUIRE(like.extent(0) == other.extent(0) && like.extent(1) == other.extent(1) &&
                      like.extent(2) == other.extent(2) && like.extent(3) == other.extent(3) &&
                      (other.span() == 0 || other.stride(3) == 1),
                  rule, like.extent(0), like.extent(1), like.extent(2), like.extent(3), other.extent(0),
                  other.extent(1), other.extent(2), other.extent(3));
}

template <class Query, class Rows>
void require_head_rows(const char* rule, const Query& q, const Rows& rows) {
  TESSERA_REQUIRE(rows.extent(0) == q.extent(0) && rows.extent(1) == q.extent(1) && rows.extent(2) == q.extent(2), rule,
                  q.extent(0), q.extent(1), q.extent(2), rows.extent(0), rows.extent(1), rows.extent(2));
}

}  // namespace tessera::kernels::detail
