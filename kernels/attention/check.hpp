/// The preconditions that every attention kernel shares.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "kernels/core/require.hpp"
#include "kernels/core/target.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels::detail {

/// Query-like tensors are [B,H,Tq,D], key-like ones [B,H,Tk,D]; the head width is contiguous. Rows, of which a kernel
/// has at least one per team, are numbered with int.
template <class Query, class Key>
void require_attention_shapes(const Query& q, const Key& k, int max_head) {
  const auto D = q.extent_int(3);
  TESSERA_REQUIRE(D >= 1 && D <= max_head, "attention: head width out of range", D, max_head);
  TESSERA_REQUIRE(k.extent(0) == q.extent(0) && k.extent(1) == q.extent(1) && k.extent(3) == q.extent(3),
                  "attention: k must be [B,H,Tk,D] with q's B, H and D", q.extent(0), q.extent(1), q.extent(3),
                  k.extent(0), k.extent(1), k.extent(3));
  const std::uint64_t most = std::numeric_limits<int>::max(), heads = q.extent(0) * q.extent(1);
  TESSERA_REQUIRE(heads * q.extent(2) <= most && heads * k.extent(2) <= most,
                  "attention: B*H*Tq and B*H*Tk must be less than 2^31: split the tensors into smaller batches",
                  q.extent(0), q.extent(1), q.extent(2), k.extent(2));
}

template <class Like, class Other>
bool are_same_heads(const Like& like, const Other& other) {
  return like.extent(0) == other.extent(0) && like.extent(1) == other.extent(1) && like.extent(2) == other.extent(2) &&
         like.extent(3) == other.extent(3) && (other.span() == 0 || other.stride(3) == 1);
}

template <class Like, class Other>
void require_same_heads(const char* rule, const Like& like, const Other& other) {
  TESSERA_REQUIRE(are_same_heads(like, other), rule, like.extent(0), like.extent(1), like.extent(2), like.extent(3),
                  other.extent(0), other.extent(1), other.extent(2), other.extent(3));
}

template <class Query, class Rows>
void require_head_rows(const char* rule, const Query& q, const Rows& rows) {
  TESSERA_REQUIRE(rows.extent(0) == q.extent(0) && rows.extent(1) == q.extent(1) && rows.extent(2) == q.extent(2), rule,
                  q.extent(0), q.extent(1), q.extent(2), rows.extent(0), rows.extent(1), rows.extent(2));
}

/// The same with the kernel's name separate from the rule; they are joined only if the rule is broken.
template <class Like, class Other>
void require_same_heads(const char* kernel, const char* rule, const Like& like, const Other& other) {
  if (!are_same_heads(like, other)) require_same_heads((std::string(kernel) + ": " + rule).c_str(), like, other);
}

/// What every flash2 kernel requires of its tensors; `kernel` names it in messages: "flash2 forward". q and out are
/// [B,H,Tq,D], k and v [B,H,Tk,D], lse [B,H,Tq]; head widths are contiguous.
template <class Kernel>
void require_forward_tensors(const char* kernel, const Kernel& x, int max_head) {
  require_attention_shapes(x.q, x.k, max_head);
  require_same_heads(kernel, "q must have a contiguous head width", x.q, x.q);
  require_same_heads(kernel, "k must have a contiguous head width", x.k, x.k);
  require_same_heads(kernel, "v must have k's shape and a contiguous head width", x.k, x.v);
  require_same_heads(kernel, "out must have q's shape and a contiguous head width", x.q, x.out);
  require_head_rows("attention: lse must be [B,H,Tq]", x.q, x.lse);
}

/// The same, and for the gradients: d_out and d_q like q, d_k and d_v like k.
template <class Kernel>
void require_backward_tensors(const char* kernel, const Kernel& x, int max_head) {
  require_forward_tensors(kernel, x, max_head);
  require_same_heads(kernel, "d_out must have q's shape and a contiguous head width", x.q, x.d_out);
  require_same_heads(kernel, "d_q must have q's shape and a contiguous head width", x.q, x.d_q);
  require_same_heads(kernel, "d_k must have k's shape and a contiguous head width", x.k, x.d_k);
  require_same_heads(kernel, "d_v must have k's shape and a contiguous head width", x.k, x.d_v);
}

/// `workspace` has at least `needed` bytes, aligned to `alignment`.
template <class Bytes>
void require_workspace(const char* rule, const Bytes& workspace, std::int64_t needed, std::uintptr_t alignment) {
  const std::uintptr_t beyond = reinterpret_cast<std::uintptr_t>(workspace.data()) % alignment;
  TESSERA_REQUIRE(static_cast<std::int64_t>(workspace.extent(0)) >= needed && beyond == 0, rule, workspace.extent(0),
                  needed, beyond);
}

/// With it all sizes of pads fit an int.
inline constexpr int kMaxTile = 4096;

/// Tiles that a caller chose, and the scratch that a team needs for them.
inline void require_tiles(const char* kernel, int query_tile, int key_tile, std::int64_t pad_bytes,
                          const Target& target) {
  const auto name = [&](const char* rule) { return std::string(kernel) + rule; };
  const auto fits = [](int tile) { return tile >= 16 && tile <= kMaxTile && tile % 16 == 0; };
  if (!fits(query_tile) || !fits(key_tile)) {
    TESSERA_REQUIRE(false, name(": tiles must be multiples of 16 up to 4096").c_str(), query_tile, key_tile);
  }
  const std::int64_t limit = scratch_limit(target);
  if (pad_bytes > limit) {
    TESSERA_REQUIRE(false, name(": tiles beyond the device's scratch of a team; use smaller ones, or flash2").c_str(),
                    pad_bytes, limit, query_tile, key_tile);
  }
}

}  // namespace tessera::kernels::detail
