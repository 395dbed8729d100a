/// Transfers between the GPUs of one host by copy engines: apart from short kernels that add, or copy a rank's own part,
/// they take no multiprocessors from the products that run concurrently. An all-reduce beside which nothing is computed
/// takes them: over NVLink they read, add and write faster than copy engines copy back and forth.
///
/// Each rank owns one of R equal parts of a span, except that those of an all-reduce are rounded up to 256 bytes, so
/// that the last ones may be shorter.
///
///   scatter    every rank copies the parts that others own into their receive buffers
///   add        the owner adds the R contributions, in rank order, in fp32 (fp64 in fp64), and rounds once; a
///              reduce-scatter may leave the sum outside the span
///   gather     the owner copies its part to its place in every rank's span
///
/// A reduce-scatter is scatter and add, an all-reduce all three, in pieces: the first piece of every part, then the
/// second, with a barrier of all ranks after scatter and at the end of each piece. Pieces of a reduce-scatter are as large
/// as the receive buffer holds, those of an all-reduce small enough to stay in L2 from scatter to gather.
///
/// Sums may wait for multiprocessors, and all that comes behind them in their stream with them. All-reduces beside work
/// therefore go by two channels, in turn as they were made, each with a stream, a part of the receive buffer and flags of
/// its own: while one channel waits or adds, the other one copies.
///
/// An all-gather is gather alone, at once and without the receive buffer, between two barriers. An all-reduce beside which
/// nothing is computed needs no receive buffer either: between two barriers one kernel reads this rank's part of every
/// rank's span, adds as above and writes the sum to its place in each. Nothing else reads another rank's memory. The other
/// ranks' memory is addressed through CUDA's interprocess handles. A transfer is enqueued on one stream and may be captured
/// in a graph.
///
/// Order   the same bits on every rank and from run to run: one rank adds, in a fixed order.
/// Safety  a rank arrives at a barrier when everything it enqueued before has completed, including what it copies and
///         stores into the others' memory. Hence:
///         - in a sum, the barrier after scatter guarantees that the others' contributions are in the receive buffer,
///           and that every rank's piece has been sent: gather overwrites only that piece of a span. Later scatters
///           read other pieces.
///         - the barrier at the end of a piece guarantees that it has been added and gathered: its place in the receive
///           buffer may be overwritten by the next piece or transfer, and what follows sees the sums.
///         - in an all-gather, the barrier before the copies guarantees that no rank still uses the previous content of
///           its whole: each stream first waits for the work after which the transfer was started. The one after them
///           guarantees that all parts have arrived. The copy to a rank's own place concerns no other rank and needs
///           neither.
///         - in an all-reduce beside nothing, the barrier before the kernel guarantees that every rank's values are
///           there, and the one after it that all sums are, and that nobody reads the span any longer. Only its owner
///           reads and writes a part in between.
///         Barriers (stream_barrier.hpp) alternate between two sets of flags, within and across the transfers
///         of a channel, each of which has an even number of barriers. Transfers of no channel have two sets as well,
///         and, for reduce-scatters, a place of their own in the receive buffer. All ranks therefore enqueue the same
///         transfers in the same order, those of a channel one after the other, and those of none.
/// Limits  at most 16 ranks, on one host.
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
#include "parallel/collectives/operation.hpp"
#include "parallel/strategies/ownership.hpp"
#include "parallel/collectives/stream_barrier.hpp"

namespace tessera::parallel {

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

class CopyEngineTransfer;

/// What transfers share: the receive buffer, the barrier and the channels.
class CopyEngines {
 public:
  /// Collective. If fault() is not empty, no rank may use it.
  explicit CopyEngines(const World& world);
  ~CopyEngines() { close(); }
  CopyEngines(const CopyEngines&) = delete;
  CopyEngines& operator=(const CopyEngines&) = delete;

  const std::string& fault() const { return fault_; }
  std::int64_t device_bytes() const { return memory_ == nullptr ? 0 : kReceiveBytes; }

  /// Makes a transfer over `span`, in the device's memory: for a sum, what is summed in place; for an all-gather, the
  /// whole. `part` is this rank's: what an all-gather takes, outside the whole or at its own place in it; where a
  /// reduce-scatter leaves its sum, outside the span or at its own place in it, which null means, too. `squares`: null,
  /// or, of a sum, a place for squares_of() partial sums of squares. `beside`: of an all-reduce. Collective.
  ///
  /// Throws  if the other ranks cannot access the memory: MemoryError if CUDA reports that memory has run out, else
  ///         EnvironmentError. std::invalid_argument for a broadcast.
  /// Limits  R divides the count, except for an all-reduce.
  std::unique_ptr<CopyEngineTransfer> make(Operation operation, const Span& span, void* part = nullptr,
                                           double* squares = nullptr, Beside beside = Beside::work);

  /// Partial sums of the squares of what this rank adds in such a transfer: of each kSquaresBytes of its part.
  std::int64_t squares_of(Operation operation, const Span& span) const;

  /// Waits for the channels and unmaps the other ranks' receive buffers; no transfer may follow.
  void close();

  /// Frees the receive buffer. Before the first rank does, every rank must have closed its own and destroyed its
  /// transfers. Without this the memory stays until the process ends: ranks that leave in disorder may have it mapped.
  void free();

  /// After this, nothing waits for other ranks: enqueued work runs to its end, with wrong results.
  void abandon() {
    if (barrier_) barrier_->abandon();
  }

 private:
  friend class CopyEngineTransfer;
  static constexpr int kChannels = 2;
  static constexpr int kNoChannel = -1;

  std::int64_t part_bytes(Operation operation, const Span& span) const;
  Range own_part(Operation operation, const Span& span) const;  // of this rank [bytes]
  int take_channel(Operation operation, Beside beside);         // for the next transfer
  Range room(int channel) const;                                // of a channel, or of no channel, in the receive buffer
  std::int64_t slot_bytes(int channel) const;                   // of it: one for each other rank
  void meet(int channel, int set, cudaStream_t stream) const { barrier_->enqueue(channel + 1, set, stream); }

  const World& world_;
  int rank_, ranks_;
  std::array<kernels::SideStream<kernels::Device>, kChannels> channels_;
  int next_channel_ = 0;
  char* memory_ = nullptr;  // the allocation, which holds
  char* buffer_ = nullptr;  // the receive buffer
  std::unique_ptr<StreamBarrier> barrier_;
  std::unique_ptr<PeerArray> buffers_;
  std::string fault_;
};

class CopyEngineTransfer {
 public:
  /// The instance of its channel; null: it has none.
  const kernels::Device* channel() const;

  /// Enqueues it on the stream of `exec`. Transfers of one channel, and those of none, may not be under way on several
  /// streams.
  void enqueue(const kernels::Device& exec) const;

 private:
  friend class CopyEngines;
  CopyEngineTransfer(const CopyEngines& engines, Operation operation, const Span& span, void* part, double* squares,
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
  char* part_;               // of an all-gather; of a reduce-scatter: where the sum goes; null: its place in the span
  double* squares_;          // of a sum; null: none
  int channel_;
  PeerArray arrays_;
};

}  // namespace tessera::parallel
