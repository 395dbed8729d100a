/// Transfers between the GPUs of one host by their copy engines: all-reduce, reduce-scatter and all-gather of all
/// ranks. Only short kernels, which add or copy a rank's own part, take SMs from concurrent GEMMs. Each rank owns one
/// of R equal parts of a span; an all-reduce rounds parts up to 256 bytes.
///
///   scatter    every rank copies the parts that others own into their receive buffers
///   barrier    contributions have arrived, and what gather overwrites has been sent
///   add        the owner adds the R contributions, in rank order, in fp32 (fp64 in fp64), and rounds once
///   gather     the owner copies its part to its place in every rank's span
///   barrier    sums have arrived, and the receive buffer is free again
///
/// An all-reduce takes all these steps, a reduce-scatter all but gather, piece by piece. An all-gather is gather alone
/// between two barriers, the first to ensure that no rank still reads its whole. An all-reduce that overlaps no
/// computation is one kernel per rank between two barriers, without the receive buffer; others alternate between two
/// channels, each with its own stream, part of the receive buffer and barriers (parallel/README.md says why).
///
/// Order   the same bits on every rank and from run to run: one rank adds, in a fixed order.
/// Limits  at most kMaxCopyEngineRanks ranks, on one host. All ranks enqueue the same transfers in the same order;
///         transfers of one channel run one after the other, as do those of none.
/// Source  reduce-scatter and all-gather as in Rabenseifner 2004, "Optimization of Collective Reduction Operations",
///         with direct copies; CUDA C++ Programming Guide 12.2, "Interprocess Communication".
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/side_stream.hpp"
#include "kernels/core/tensor.hpp"
#include "parallel/collectives/collective.hpp"
#include "parallel/collectives/stream_barrier.hpp"

namespace tessera::parallel {

class Family;
class TransferStream;
class World;

/// The corresponding array of every rank of the host, mapped into this process. A rank may free its own array only
/// after the PeerArray of every rank has been destroyed; otherwise behaviour is undefined (CUDA, cudaIpcOpenMemHandle).
class PeerArray {
 public:
  /// Collective. On failure fault() gives the reason of the first rank that failed; empty: success.
  PeerArray(const World& world, void* mine);
  ~PeerArray();
  PeerArray(const PeerArray&) = delete;
  PeerArray& operator=(const PeerArray&) = delete;

  const std::string& fault() const { return fault_; }
  char* of(int rank) const { return arrays_[rank]; }

 private:
  std::vector<char*> arrays_;  // [R]
  std::vector<void*> opened_;
  std::string fault_;
};

class CopyEngineMove;

/// Shared by transfers: the receive buffer, the barrier and the channels.
class CopyEngines {
 public:
  /// Collective. If fault() is not empty, no rank may use it.
  explicit CopyEngines(const World& world);
  ~CopyEngines() { close(); }
  CopyEngines(const CopyEngines&) = delete;
  CopyEngines& operator=(const CopyEngines&) = delete;

  const std::string& fault() const { return fault_; }
  std::int64_t device_bytes() const { return memory_ == nullptr ? 0 : receive_bytes(ranks_); }

  /// Maps every rank's `span` in device memory: the array to sum in place, or an all-gather's whole. This rank's `part`
  /// is an all-gather's input or a reduce-scatter's output, outside the span or at its own place there (also if null).
  /// `squares`: null, or room for the squares of own_bytes(). `overlap`: of an all-reduce. Collective.
  ///
  /// Throws  if the other ranks cannot access the memory: MemoryError if CUDA reports that memory has run out, else
  ///         EnvironmentError. std::invalid_argument for a broadcast.
  /// Limits  R divides the count, except for an all-reduce.
  std::unique_ptr<CopyEngineMove> make(Operation operation, const Span& span, void* part = nullptr,
                                       double* squares = nullptr, Overlap overlap = Overlap::compute);

  /// Bytes of the part that this rank adds in such a transfer.
  std::int64_t own_bytes(Operation operation, const Span& span) const { return own_part(operation, span).count; }

  /// Waits for the channels and unmaps the other ranks' receive buffers; no transfer may follow.
  void close();

  /// Frees the receive buffer; every rank must first have closed its own and destroyed its transfers. Without this call
  /// the memory stays until the process ends: ranks that leave in disorder may have it mapped.
  void free();

  /// After this, nothing waits for other ranks: enqueued work runs to its end, with wrong results.
  void abandon() {
    if (barrier_) barrier_->abandon();
  }

 private:
  friend class CopyEngineMove;
  static constexpr int kChannels = 2;
  static constexpr int kNoChannel = -1;

  struct Range {
    std::int64_t first, count;  // bytes
  };

  std::int64_t part_bytes(Operation operation, const Span& span) const;
  Range own_part(Operation operation, const Span& span) const;  // of this rank
  int take_channel(Operation operation, Overlap overlap);       // for the next transfer
  Range room(int channel) const;                                // in the receive buffer: of a channel, or of none
  std::int64_t slot_bytes(int channel) const;                   // of that room, for each other rank
  /// A barrier. `set`: 0 and 1 in turn; every transfer uses both equally often.
  void meet(int channel, int set, cudaStream_t stream) const { barrier_->enqueue(channel + 1, set, stream); }

  const World& world_;
  int rank_, ranks_;
  std::array<kernels::SideStream, kChannels> channels_;
  int next_channel_ = 0;
  char* memory_ = nullptr;  // the allocation, which holds
  char* buffer_ = nullptr;  // the receive buffer
  std::unique_ptr<StreamBarrier> barrier_;
  std::unique_ptr<PeerArray> buffers_;
  std::string fault_;
};

/// One transfer's copies and sums.
class CopyEngineMove {
 public:
  /// The instance of its channel; null: it has none.
  const kernels::Device* channel() const;

  /// Enqueues it on the stream of `exec`. Transfers of one channel must not be in flight on several streams, nor must
  /// those without a channel.
  void enqueue(const kernels::Device& exec) const;

 private:
  friend class CopyEngines;
  CopyEngineMove(const CopyEngines& engines, Operation operation, const Span& span, void* part, double* squares,
                 int channel);
  void sum(const kernels::Device& exec) const;
  void sum_by_kernel(const kernels::Device& exec) const;
  void gather(const kernels::Device& exec) const;
  char* slot(int sender, int receiver, const char* own) const;
  void add(const kernels::Device& exec, char* own, std::int64_t done, std::int64_t bytes) const;

  const CopyEngines& engines_;
  Operation operation_;
  Span span_;
  std::int64_t part_bytes_;  // what a rank owns; the last ranks may own less
  char* part_;               // of an all-gather; or where a reduce-scatter's sum goes; null: its place in the span
  double* squares_;          // of a sum; null: none
  int channel_;
  PeerArray arrays_;
};

/// Collectives of all ranks by `engines` on `stream`, which their channels rejoin. `others`, of the same ranks, family
/// and stream, carry broadcasts and groups, which copy engines do not. Destroy it on every rank, as `others`.
std::unique_ptr<Collectives> make_copy_engine_collectives(const World& world, std::unique_ptr<CopyEngines> engines,
                                                          std::shared_ptr<TransferStream> stream,
                                                          std::shared_ptr<Family> family,
                                                          std::unique_ptr<Collectives> others);

}  // namespace tessera::parallel
