/// All-reduce over the GPUs of one host by copy engines: apart from one short kernel that adds, it takes no
/// multiprocessors from the products that run concurrently.
///
/// Each rank owns one part in R of a span. A sum is
///
///   scatter    every rank copies the parts that others own into their receive buffers
///   add        the owner adds the R parts, in the order of the ranks, in fp32, and rounds once
///   gather     the owner copies its sums to their place in every rank's span
///
/// in pieces as large as the receive buffer holds, with a barrier of all ranks after scatter and after gather. The
/// other ranks' memory is addressed through CUDA's interprocess handles; the barriers are flags in each other's memory,
/// on which one warp waits. All of it is enqueued on one stream and may be captured in a graph.
///
/// Order   the same bits on every rank and from run to run: one rank adds, in a fixed order.
/// Safety  the barrier after gather keeps the next piece's scatter from overwriting a receive buffer in use; the one
///         after scatter keeps gather from overwriting a span that its owner has not sent yet. Barriers alternate
///         between two sets of flags, so that no flag is set before it was reset.
/// Source  reduce-scatter and all-gather as in Rabenseifner 2004, "Optimization of Collective Reduction Operations",
///         with direct copies; CUDA C++ Programming Guide 12.2, "Interprocess Communication".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/tensor.hpp"
#include "parallel/collective.hpp"

namespace tessera::parallel {

class World;

/// The same array of every rank of the host, mapped into this process. A rank may free its own array only after the
/// PeerArray of every rank has been destroyed; otherwise behaviour is undefined (CUDA, cudaIpcOpenMemHandle).
class PeerArray {
 public:
  /// Collective. On failure fault() gives the reason of the first rank that has one; empty: success.
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

class CopyEngineSum;

/// Common to all sums: the receive buffer and the flags.
class CopyEngines {
 public:
  /// Collective. If fault() is not empty, no rank may use it.
  explicit CopyEngines(const World& world);
  ~CopyEngines();
  CopyEngines(const CopyEngines&) = delete;
  CopyEngines& operator=(const CopyEngines&) = delete;

  const std::string& fault() const { return fault_; }
  std::int64_t device_bytes() const { return memory_ == nullptr ? 0 : kReceiveBytes; }

  /// Collective. A sum over `span`, in place; its memory is the device's.
  /// Throws if the other ranks cannot access it: MemoryError if CUDA reports that memory has run out, else
  /// EnvironmentError.
  std::unique_ptr<CopyEngineSum> make_sum(const Span& span);

  /// Unmaps the other ranks' receive buffers; no sum may follow. Before the first CopyEngines is destroyed, every rank
  /// must have closed its own and destroyed its sums.
  void close() { buffers_.reset(); }

  /// From here on nothing waits for other ranks: enqueued work runs to its end, with wrong sums.
  void abandon();

 private:
  friend class CopyEngineSum;
  void meet(int set, cudaStream_t stream) const;

  const World& world_;
  int rank_, ranks_;
  std::int64_t slot_bytes_;      // of the receive buffer: one for each other rank
  char* memory_ = nullptr;       // the allocation, which holds
  char* buffer_ = nullptr;       // the receive buffer, then flags [2, R]
  int* is_abandoned_ = nullptr;  // on the host, where the GPU can read it
  std::unique_ptr<PeerArray> buffers_;
  std::string fault_;
};

class CopyEngineSum {
 public:
  /// Enqueues the sum on the stream of `exec`.
  void enqueue(const kernels::Device& exec) const;

 private:
  friend class CopyEngines;
  CopyEngineSum(const CopyEngines& engines, const Span& span);
  char* slot(int sender, int receiver, const char* own) const;
  void add(const kernels::Device& exec, char* own, std::int64_t bytes) const;
  template <class Number>
  void add_as(const kernels::Device& exec, char* own, std::int64_t bytes) const;

  const CopyEngines& engines_;
  Span span_;
  PeerArray arrays_;
};

}  // namespace tessera::parallel
