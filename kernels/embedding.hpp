/// Token embedding: a row of the table per token, and the gradient of the table.
///
///   forward    out[n,:] = weight[tokens[n],:]
///   backward   d_weight[v,:] += sum_{n: tokens[n]=v} d_out[n,:]
///
/// Backward sorts the positions by token, so that equal tokens are adjacent, and sums each run:
///
///   count, place   a stable radix sort, kDigits buckets per pass; a team per chunk of kChunk positions counts its
///                  digits (if there is more than one chunk), then places its positions after those of smaller digits
///                  and of earlier chunks; within a chunk each of kParts threads handles a part of the positions
///   sum            a team per window of the sorted positions: a run inside the window is added to its row of d_weight,
///                  the pieces of runs that cross a window's border go to `partial`, at most two per window
///   join           a team per window in which a crossing run begins: sums its pieces and adds them to its row
///
/// A token that fills the batch is thus distributed over all teams, and no two teams add to one row.
///
/// Source     least-significant-digit radix sort: Knuth, The Art of Computer Programming 3, 5.2.5.
/// Numerics   forward copies; backward sums in Accum<Scalar>.
/// Error      forward none; backward E<Real>(N) times the largest entry of d_weight (kernels/core/scalar.hpp), plus a
///            rounding.
/// Order      fixed for given tokens: bitwise repeatable. Only integers are added atomically.
/// Memory     pad: level 0, int (kParts + 1)*kDigits + kParts*kVectorLanes. From the caller: `order` and `partial`.
/// Cost       moves 2*N*C elements forward; backward N*C Scalar, at most 2*N*C Accum<Scalar> and some integers.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree.
/// Limits     token ids are in [0,V): src/data refuses others; here only builds with assertions check.
#pragma once

#include "kernels/core/packet.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct EmbeddingForward {
  Vector<const int, Exec> tokens;     // [N]    in
  Matrix<const Scalar, Exec> weight;  // [V,C]  in
  Matrix<Scalar, Exec> out;           // [N,C]  out

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, const Member& team) const;
};

/// Grad is the storage type of weight gradients: a row of d_weight is read and rounded once per run, and once more for
/// a run that crosses a window's border.
template <class Exec, class Scalar, class Grad = Accum<Scalar>>
struct EmbeddingBackward {
  using Real = Accum<Scalar>;

  Vector<const int, Exec> tokens;    // [N]    in
  Matrix<const Scalar, Exec> d_out;  // [N,C]  in
  Matrix<Grad, Exec> d_weight;       // [V,C]  in and out: added to
  Vector<int, Exec> order;           // [order_size(N)]  workspace
  Matrix<Real, Exec> partial;        // [partial_rows(N),C]  workspace

  static constexpr int kDigitBits = 9, kDigits = 1 << kDigitBits;  // buckets of a pass: two serve 262,144 words
  static constexpr int kChunk = 4096;                              // positions per sorting team
  static constexpr int kParts = kIsHost<Exec> ? 1 : 16;
  KOKKOS_FUNCTION static constexpr int chunks(int N) { return ceil_div(N, kChunk); }
  static constexpr int kMaxWindows = 4096, kMinWindow = 8;
  /// Sorted positions per summing team: enough teams to fill a GPU, each with enough rows to be worth its launch.
  KOKKOS_FUNCTION static constexpr int window(int N) {
    return N > kMinWindow * kMaxWindows ? ceil_div(N, kMaxWindows) : kMinWindow;
  }
  KOKKOS_FUNCTION static constexpr int windows(int N) { return ceil_div(N, window(N)); }
  /// Sizes of the workspace. They do not decrease with N, so a workspace for N positions serves fewer.
  static constexpr std::int64_t order_size(int N) { return std::int64_t{3} * N + std::int64_t{chunks(N)} * kDigits; }
  static constexpr int partial_rows(int N) {
    return 2 * (N > kMinWindow * kMaxWindows ? kMaxWindows : ceil_div(N, kMinWindow));
  }

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  struct Count {};
  struct Place {};
  template <int kWidth>
  struct Sum {};
  template <int kWidth>
  struct Join {};
  KOKKOS_FUNCTION void operator()(Count, const Member& team) const;
  KOKKOS_FUNCTION void operator()(Place, const Member& team) const;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(Sum<kWidth>, const Member& team) const;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(Join<kWidth>, const Member& team) const;

  int shift = 0;  // set by launch: the pass sorts by digit (token >> shift) % kDigits

 private:
  KOKKOS_FUNCTION int N() const { return d_out.extent_int(0); }
  // The parts of `order`: the positions before and after a pass (in turn), the sorted tokens, the digits' counts.
  KOKKOS_FUNCTION int* positions(int pass) const { return order.data() + std::int64_t{pass % 2} * N(); }
  KOKKOS_FUNCTION int* sorted_tokens() const { return order.data() + std::int64_t{2} * N(); }
  KOKKOS_FUNCTION int* counts() const { return order.data() + std::int64_t{3} * N(); }
  KOKKOS_FUNCTION int pass() const { return shift / kDigitBits; }
  KOKKOS_FUNCTION int position(int i) const { return pass() == 0 ? i : positions(pass() - 1)[i]; }
  KOKKOS_FUNCTION int digit(int token) const { return (token >> shift) % kDigits; }
  KOKKOS_FUNCTION Real* partial_of_run(int window, int first, int last) const;
  KOKKOS_FUNCTION static constexpr bool grows_in_place() { return std::is_same_v<Grad, Real>; }
  KOKKOS_FUNCTION Real* in_place(int token) const {
    if constexpr (std::is_same_v<Grad, Real>) {
      return &d_weight(token, 0);
    } else {
      return nullptr;
    }
  }
  template <int kWidth>
  KOKKOS_FUNCTION void add_to_row(int token, int column, const Packet<Real, kWidth>& sum) const {
    Grad* to = &d_weight(token, column);
    auto row = load<kWidth>(to);
    for (int k = 0; k < kWidth; ++k) row.set(k, row[k] + sum[k]);
    store(to, row);
  }
};

}  // namespace tessera::kernels
