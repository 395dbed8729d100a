/// Sums over the GPUs of one host whose bytes are moved by copy engines: no processor of a GPU is taken from the
/// products that run beside them, but for one short kernel that adds.
///
/// Each rank owns one part in R of a span. A sum is
///
///   scatter    every rank copies the parts that others own into their receive buffers
///   add        the owner adds the R parts, in the order of the ranks, in fp32, and rounds once
///   gather     the owner copies its sums to their place in everybody's span
///
/// in pieces as large as the receive buffer holds, with a meeting of all ranks behind scatter and behind gather. The
/// other ranks' memory is addressed through CUDA's interprocess handles; ranks meet by flags in each other's memory,
/// for which one warp waits. All of it is enqueued on one stream and may be captured in a graph.
///
/// Order   the same bits on every rank and from run to run: one rank adds, in a fixed order.
/// Safety  the meeting behind gather is what keeps the next piece's scatter off a receive buffer in use; the one
///         behind scatter keeps gather off a span whose owner has not sent it yet. A meeting alternates between two
///         sets of flags, so that nobody can set a flag before it was taken back.
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

/// The same array of every rank of the host, at the addresses that it has here. Whoever frees the own one first waits
/// until this has ended on every rank: before, it is undefined behaviour (CUDA, cudaIpcOpenMemHandle).
class PeerArray {
 public:
  /// Collective. `fault` says why it cannot be, of the first rank that knows; empty: it is.
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

/// What all sums share: the receive buffer and the flags.
class CopyEngines {
 public:
  /// Collective. Where fault() says something it cannot be used, on any rank.
  explicit CopyEngines(const World& world);
  ~CopyEngines();
  CopyEngines(const CopyEngines&) = delete;
  CopyEngines& operator=(const CopyEngines&) = delete;

  const std::string& fault() const { return fault_; }
  std::int64_t device_bytes() const { return memory_ == nullptr ? 0 : kReceiveBytes; }

  /// Collective. A sum over `span`, in place; its memory is the device's.
  /// Throws Failure where the other ranks cannot reach it: Exit::out_of_memory where CUDA says so, else
  /// Exit::environment.
  std::unique_ptr<CopyEngineSum> make_sum(const Span& span);

  /// Gives back the other ranks' receive buffers: nothing is summed any more. Every rank's must be, and every sum gone,
  /// before the first one ends.
  void close() { buffers_.reset(); }

  /// From here on nothing waits for other ranks: what is enqueued runs to its end, with wrong sums.
  void abandon();

 private:
  friend class CopyEngineSum;
  void meet(int set, cudaStream_t stream) const;

  const World& world_;
  int rank_, ranks_;
  std::int64_t slot_bytes_;      // of the receive buffer: one for each other rank
  char* memory_ = nullptr;       // holds
  char* buffer_ = nullptr;       // the receive buffer, then flags [2, R]
  int* is_abandoned_ = nullptr;  // on the host, where the GPU can read it
  std::unique_ptr<PeerArray> buffers_;
  std::string fault_;
};

class CopyEngineSum {
 public:
  /// Behind what was enqueued on `exec`, in its stream.
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
