/// Attention of one query per head over the keys of a cache: what generation computes for each token.
///
///   out[b,h,:] = sum_{j < keys[b]} softmax_j( scale * q[b,h,:].k[b,h,j,:] ) v[b,h,j,:]
///
/// One query gives too few teams to fill a device, so the keys are cut into S parts, a team each. A part's result is
/// its own softmax (out_p, lse_p); the last team of a head to finish joins the parts by their log-sum-exps:
///
///   lse = log sum_p exp(lse_p),   out = sum_p exp(lse_p - lse) out_p
///
/// Every key and value is read once, in packets, straight into registers. On a GPU a thread of a team is a group of
/// lanes that spans a row of D channels; it has the rows of several keys in flight and keeps a softmax of its own, and
/// the groups of a team meet once, at the end. Lengths are read from the device's memory, so that a launch, or a graph
/// that contains it, does not depend on them: the grid is always B*H*S teams, and those without keys end at once.
///
/// Source     Dao et al. 2023, "Flash-Decoding for long-context inference"; running softmax: Milakov & Gimelshein 2018,
///            arXiv:1805.02867. Teams that count their arrivals: CUDA Programming Guide, "Memory Fence Functions".
/// Numerics   products, sums and parts in Real = Accum<Scalar>; out is rounded once.
/// Error      against double: eps<Scalar> relative plus (E<Real>(keys + D) + S eps<Real>) max|v|, with S the largest
///            scale |q| |k_j| (kernels/core/scalar.hpp).
/// Order      fixed for given keys and parts: bitwise repeatable. Atomics only count arrivals.
/// Memory     pad: level 0, Real D + 2 per group, or `parts`. From the caller: `partial` and `arrived`.
/// Cost       4*keys*D flop per head; reads 2*keys*D elements per head.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree, D > kMaxHead, or parts is not 1 to kMaxDecodeParts.
/// Limits     keys[b] is 0 to the capacity of the cache. Without keys out is 0 and lse -inf.
/// Fast       on GPUs: rows of k and v aligned to 16 bytes and D a multiple of a packet.
#pragma once

#include "kernels/core/packet.hpp"
#include "kernels/core/target.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

inline constexpr int kMaxDecodeParts = 1024;

/// The number of parts for caches of `capacity` keys and `heads` = B*H: enough teams to fill a GPU, each with
/// work to do where the cache is full. A function of its arguments only, so that repeats agree bit for bit.
int decode_parts(const Target& target, std::int64_t heads, std::int64_t capacity);

/// Elements of `partial`, in Accum<Scalar>: out_p and lse_p of every part.
constexpr std::int64_t decode_partials(std::int64_t heads, std::int64_t D, std::int64_t parts) {
  return parts > 1 ? heads * parts * (D + 1) : 0;
}

template <class Exec, class Scalar>
struct DecodeAttention {
  using Real = Accum<Scalar>;

  HeadTensor<const Scalar, Exec> q;  // [B,H,1,D]         in
  HeadTensor<const Scalar, Exec> k;  // [B,H,capacity,D]  in: the cache
  HeadTensor<const Scalar, Exec> v;  // [B,H,capacity,D]  in
  Vector<const int, Exec> keys;      // [B]               in: keys of each sequence
  HeadTensor<Scalar, Exec> out;      // [B,H,1,D]         out
  HeadRows<Real, Exec> lse;          // [B,H,1]           out, optional: log-sum-exp (natural log)
  Real scale;                        // usually 1/sqrt(D)
  int parts;                         // S
  Vector<Real, Exec> partial;        // [decode_partials(B*H, D, S)]  workspace
  Vector<std::int32_t, Exec>
      arrived;  // [B*H]  workspace: 0 before the first launch, left 0 by every one; unused if S = 1

  static constexpr int kMaxHead = 256;
  static constexpr int kLanes = 128;     // of a team, on GPUs
  static constexpr int kPartAlign = 16;  // keys of a part are a multiple, but for the last

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  struct Plain {};
  KOKKOS_FUNCTION void operator()(Plain, const Member& team) const;
  /// Work tag: a group of kGroup lanes per key, each lane with kSlots packets of kWidth elements of its row.
  template <int kWidth, int kGroup, int kSlots>
  struct Groups {};
  template <int kWidth, int kGroup, int kSlots>
  KOKKOS_FUNCTION void operator()(Groups<kWidth, kGroup, kSlots>, const Member& team) const;

 private:
  struct Place {
    int b, h, part, first, last;  // keys first .. last-1
  };
  KOKKOS_FUNCTION Place place_of(int rank) const;
  template <class Read>
  KOKKOS_FUNCTION void finish(const Member& team, const Place& place, Real* pad, Real part_lse, const Read& read) const;
  KOKKOS_FUNCTION Real* part_out(int head, int part) const;
  KOKKOS_FUNCTION Real& part_lse(int head, int part) const;
  template <int kWidth, int kGroup, int kSlots>
  void launch_groups(const Exec& exec) const;
};

/// The newest token enters the cache: its query and key are rotated, its key and value stored at its position.
///
///   q[b,h,:]                     <-  rotated by positions[b]       (rotary position embedding, kernels/rope.hpp)
///   keys[b,h,positions[b],:]     <-  k[b,h,:], rotated by positions[b]
///   values[b,h,positions[b],:]   <-  v[b,h,:]
///
/// One launch instead of a rotation and two copies. Positions are read from the device's memory, so that a launch, or a
/// graph that contains it, does not depend on them.
///
/// Numerics   the rotation in Real = Accum<Scalar>, as in Rope; values are copied.
/// Error      E<Scalar>(1) times the largest element (kernels/core/scalar.hpp).
/// Order      element-wise: bitwise repeatable.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when D is odd or shapes disagree.
/// Limits     positions[b] is 0 to capacity - 1, and has a row in the table.
template <class Exec, class Scalar>
struct CacheAppend {
  using Real = Accum<Scalar>;

  HeadTensor<Scalar, Exec> q;             // [B,H,1,D]         in and out
  HeadTensor<const Scalar, Exec> k;       // [B,H,1,D]         in
  HeadTensor<const Scalar, Exec> v;       // [B,H,1,D]         in
  HeadRows<const Real, Exec> table;       // [positions,D/2,2] in: cos, sin (fill_rope_table)
  Vector<const int, Exec> positions;      // [B]               in
  HeadTensor<Scalar, Exec> keys, values;  // [B,H,capacity,D]  out: a row of each

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

}  // namespace tessera::kernels
