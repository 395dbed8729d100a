/// NCCL's communicators: ranks that NCCL has joined, their stream and the log of their transfers; and the family of those
/// that are abandoned together.
///
/// Source  NCCL 2.28 user guide, "Creating a communicator", "Fault tolerance".
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/tensor.hpp"
#include "kernels/cuda/event.hpp"
#include "kernels/cuda/stream.hpp"
#include "parallel/watch/stream_log.hpp"

namespace tessera::parallel {

class CopyEngines;
class World;

class Communicator;

/// Communicators that are abandoned together: that of all ranks, and those split off it. The watchdog queries them from
/// its own thread while the main thread makes and destroys them.
class Family {
 public:
  void add(Communicator& member);
  void remove(Communicator& member);
  void use(CopyEngines* engines);  // null: none

  /// The fault of the first member that has one; empty: none.
  std::string fault();

  void abandon();
  bool was_abandoned() const { return was_abandoned_; }

 private:
  // A thread that holds it may hang in NCCL, so neither fault() nor abandon() waits for long.
  using Lock = std::unique_lock<std::timed_mutex>;
  static constexpr std::chrono::seconds kPatience{1};

  std::timed_mutex mutex_;
  std::vector<Communicator*> members_;
  CopyEngines* engines_ = nullptr;
  std::atomic<bool> was_abandoned_ = false;
};

/// Ranks that NCCL has joined, and their stream.
class Communicator {
 public:
  /// Of all ranks. `priority`: of the stream.
  /// Throws  EnvironmentError if the ranks cannot be connected; MemoryError if NCCL finds no memory.
  Communicator(const World& world, int priority);

  /// Of those ranks of `all` that give the same `group`. Collective in `all`.
  /// Throws  the same; std::invalid_argument for a group below 0.
  Communicator(Communicator& all, int group, int priority);

  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  cudaStream_t stream() const { return stream_; }
  const kernels::Device& instance() const { return compute_; }  // the same stream, for kernels of ours
  Family& family() const { return *family_; }
  StreamLog& log() { return log_; }

  /// For calls between connected ranks, where a failure means a lost rank or network.
  /// Throws  LossError or MemoryError, unless `result` is success.
  void check(ncclResult_t result, const char* call) const;

  /// Whether an orderly shutdown would wait for ranks that are lost or leave: a fault of one member is one of all.
  bool is_leaving() const;

  /// Running kernels end at once. The call itself returns only when the last graph that contains NCCL kernels has been
  /// destroyed, which may be much later: hence the thread. Only for one thread at a time, as is own_fault().
  void abandon();

  std::string own_fault() const;

  /// The host waits for what has been enqueued on the stream, or for a fault.
  /// Throws  LossError at a fault.
  void drain() const;

  /// When a timing event happened, on the clock of events::now_s().
  double seconds_at(const kernels::cuda::Event& event);

 private:
  Communicator(ncclComm_t comm, std::shared_ptr<Family> family, FlightRecorder& recorder, int priority);
  static ncclComm_t connect(const World& world);
  ncclComm_t split(int group) const;

  kernels::cuda::Stream stream_, clock_stream_;  // the second never waits: an event recorded there happens at once
  kernels::Device compute_;
  StreamLog log_;
  kernels::cuda::Event drained_{cudaEventDisableTiming}, reference_;
  double reference_s_ = -1e9;
  ncclComm_t comm_;
  int rank_ = 0, size_ = 1;
  std::shared_ptr<Family> family_;
  std::thread abort_;
};

}  // namespace tessera::parallel
