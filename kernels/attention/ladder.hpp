/// What a team of an attention kernel does with its tiles, on each step of the ladder (ladder_sizes.hpp).
///
/// FlashAttention-1 and -2 are made of these pieces. They differ in the order in which they walk the tiles, and in
/// where they keep a row's output and its running maximum and sum meanwhile. Each step is one `if constexpr` here. All
/// functions are called by the whole team and end without a barrier.
#pragma once

#include <Kokkos_Core.hpp>

#include <cmath>

#include "kernels/attention/ladder_sizes.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/packet.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/cuda/tile_scores.hpp"

namespace tessera::kernels::ladder {

template <class Scalar, int kSteps>
struct Steps {
  using Real = Accum<Scalar>;

  static KOKKOS_FORCEINLINE_FUNCTION Pads pads(int query_tile, int key_tile, int D) {
    return {kSteps, sizeof(Scalar), sizeof(Real), query_tile, key_tile, D};
  }

  /// pad[n, d] = rows[n, d] for n < count, d < D; columns D to width-1 become zero.
  template <class Member, class Element>
  static KOKKOS_FORCEINLINE_FUNCTION void stage(const Member& team, const Element* rows, long row_stride, int count,
                                                int D, int width, [[maybe_unused]] bool fits_packets,
                                                std::remove_const_t<Element>* pad, int pitch) {
    if constexpr (kSteps >= kWideCopies) {
      constexpr int kPacket = kPacketElements<Element>;
      if (fits_packets) {
        const int packets = ceil_div(width, kPacket);
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, count * packets), [&](int i) {
          const int n = i / packets, d = i % packets * kPacket;
          Packet<std::remove_const_t<Element>, kPacket> packet{};
          if (d < D) packet = load<kPacket>(rows + n * row_stride + d);
          store(pad + n * pitch + d, packet);
        });
        return;
      }
    }
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, count), [&](int n) {
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, width),
                           [&](int d) { pad[n * pitch + d] = d < D ? rows[n * row_stride + d] : Element{}; });
    });
  }

  /// rows[n, d] = factor(n) from[n, d] for n < count, d < D, rounded to Element; `from` is a pad or memory.
  template <class Member, class Element, class Factor>
  static KOKKOS_FORCEINLINE_FUNCTION void write(const Member& team, const Real* from, long pitch, int count, int D,
                                                [[maybe_unused]] bool fits_packets, Element* rows, long row_stride,
                                                const Factor& factor) {
    if constexpr (kSteps >= kWideCopies) {
      constexpr int kPacket = kPacketElements<Element>;
      constexpr int kReals = kPacketElements<Real>;
      if (fits_packets) {
        const int packets = D / kPacket;
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, count * packets), [&](int i) {
          const int n = i / packets, d = i % packets * kPacket;
          Packet<std::remove_const_t<Element>, kPacket> packet{};
          TESSERA_UNROLL
          for (int first = 0; first < kPacket; first += kReals) {
            const auto reals = load<kReals>(from + n * pitch + d + first);
            TESSERA_UNROLL
            for (int r = 0; r < kReals; ++r) packet.set(first + r, factor(n) * reals[r]);
          }
          store(rows + n * row_stride + d, packet);
        });
        return;
      }
    }
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, count), [&](int n) {
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, D), [&](int d) {
        rows[n * row_stride + d] = static_cast<Element>(factor(n) * from[n * pitch + d]);
      });
    });
  }

  /// scores[i, j] = scale q_i . k_j, masked or not.
  template <class Member>
  static KOKKOS_FORCEINLINE_FUNCTION void multiply(const Member& team, const Pads& at, const Scalar* q, const Scalar* k,
                                                   int queries, int keys, Real scale, Real* scores) {
    if constexpr (kSteps >= kTensorCores) {
      scores_by_mma(team, q, k, at.pitch(), queries, keys, at.depth(), scale, scores, at.score_pitch());
    } else {
      Kokkos::parallel_for(Kokkos::TeamThreadRange(team, queries), [&](int i) {
        const Scalar* q_i = q + i * at.pitch();
        Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, keys), [&](int j) {
          scores[i * at.score_pitch() + j] = scale * dot(q_i, k + j * at.pitch(), at);
        });
      });
    }
  }

  /// Each row of scores becomes its exponentials, relative to its maximum:
  ///
  ///   top = max(top_before(i), max_j scores[i, j])   scores[i, j] = exp(scores[i, j] - top)   sum = sum_j scores[i, j]
  ///
  /// over the keys j < seen(i); later ones become 0. One lane of the team then calls finish(i, top, sum). A row that
  /// has seen no key has top -inf and sum 0.
  template <class Member, class Seen, class Before, class Finish>
  static KOKKOS_FORCEINLINE_FUNCTION void exponentiate(const Member& team, const Pads& at, Real* scores, int queries,
                                                       int keys, const Seen& seen, const Before& top_before,
                                                       const Finish& finish) {
    if constexpr (kSteps >= kTeamReductions) {
      Kokkos::parallel_for(Kokkos::TeamThreadRange(team, queries), [&](int i) {
        Real* row = scores + i * at.score_pitch();
        const int end = seen(i);
        Real largest = -HUGE_VAL, sum = 0;
        Kokkos::parallel_reduce(
            Kokkos::ThreadVectorRange(team, end), [&](int j, Real& most) { most = larger(most, row[j]); },
            Kokkos::Max<Real>(largest));
        const Real top = end > 0 ? larger(top_before(i), largest) : top_before(i);
        const Real bound = finite_top(top);
        Kokkos::parallel_reduce(
            Kokkos::ThreadVectorRange(team, keys),
            [&](int j, Real& total) {
              row[j] = j < end ? fast_exp(row[j] - bound) : Real(0);
              total += row[j];
            },
            sum);
        Kokkos::single(Kokkos::PerThread(team), [&] { finish(i, top, sum); });
      });
    } else {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, queries), [&](int i) {
        Real* row = scores + i * at.score_pitch();
        const int end = seen(i);
        Real top = top_before(i), sum = 0;
        for (int j = 0; j < end; ++j) top = larger(top, row[j]);
        const Real bound = finite_top(top);
        for (int j = 0; j < keys; ++j) {
          row[j] = j < end ? fast_exp(row[j] - bound) : Real(0);
          sum += row[j];
        }
        finish(i, top, sum);
      });
    }
  }

  /// out[i, d] = combine(i, out[i, d], sum_j weights[i, j] v[j, d]).
  template <class Member, class Combine>
  static KOKKOS_FORCEINLINE_FUNCTION void add_values(const Member& team, const Pads& at, const Real* weights,
                                                     const Scalar* v, int queries, int keys, Real* out,
                                                     const Combine& combine) {
    constexpr int kColumns = kIsHost<typename Member::execution_space> ? 16 : 1;  // of a lane; a host's are vectors
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, queries), [&](int i) {
      const Real* row = weights + i * at.score_pitch();
      Real* out_i = out + i * at.out_pitch();
      const int whole = at.D / kColumns;
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, whole), [&](int block) {
        add_columns<kColumns>(row, v + block * kColumns, at.pitch(), keys, i, out_i + block * kColumns, combine);
      });
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, at.D % kColumns), [&](int column) {
        const int d = whole * kColumns + column;
        add_columns<1>(row, v + d, at.pitch(), keys, i, out_i + d, combine);
      });
    });
  }

 private:
  /// kColumns neighbouring columns of a row of add_values.
  template <int kColumns, class Combine>
  static KOKKOS_FORCEINLINE_FUNCTION void add_columns(const Real* weights, const Scalar* v, int pitch, int keys, int i,
                                                      Real* out, const Combine& combine) {
    Real sums[kColumns] = {};
    for (int j = 0; j < keys; ++j) {
      TESSERA_UNROLL
      for (int c = 0; c < kColumns; ++c) sums[c] += weights[j] * static_cast<Real>(v[j * pitch + c]);
    }
    TESSERA_UNROLL
    for (int c = 0; c < kColumns; ++c) out[c] = combine(i, out[c], sums[c]);
  }

  static KOKKOS_FORCEINLINE_FUNCTION Real dot(const Scalar* a, const Scalar* b, const Pads& at) {
    Real sum = 0;
    if constexpr (kSteps >= kWideProducts) {
      constexpr int kPacket = kPacketElements<Scalar>;
      Real sums[kPacket] = {};  // one for each place in a packet: independent of each other
      for (int d = 0; d < at.depth(); d += kPacket) {
        const auto a_packet = load<kPacket>(a + d), b_packet = load<kPacket>(b + d);
        TESSERA_UNROLL
        for (int i = 0; i < kPacket; ++i) sums[i] += a_packet[i] * b_packet[i];
      }
      TESSERA_UNROLL
      for (int i = 0; i < kPacket; ++i) sum += sums[i];
    } else {
      for (int d = 0; d < at.D; ++d) sum += static_cast<Real>(a[d]) * static_cast<Real>(b[d]);
    }
    return sum;
  }
};

}  // namespace tessera::kernels::ladder
