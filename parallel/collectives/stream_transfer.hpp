/// Shared by all transfers between GPUs: a stream that forks from the compute stream and joins it again by events,
/// narrower numbers on the network, which are rounded and widened on that stream, the flight recorder's entries, and
/// timing. The host only enqueues, so a capture of the compute stream includes the transfer's stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/tensor.hpp"
#include "kernels/cuda/event.hpp"
#include "kernels/cuda/stream.hpp"
#include "parallel/collectives/collective.hpp"
#include "parallel/collectives/parts.hpp"
#include "parallel/watch/stream_log.hpp"

namespace tessera::parallel {

/// A stream on which transfers complete in start order, its log, and the clock of their times.
class TransferStream {
 public:
  TransferStream(FlightRecorder& recorder, int priority);

  cudaStream_t get() const { return stream_; }
  const kernels::Device& instance() const { return instance_; }  // the same stream, for kernels of ours
  StreamLog& log() { return log_; }

  /// When a timing event happened, on the clock of events::now_s().
  double seconds_at(const kernels::cuda::Event& event);

 private:
  kernels::cuda::Stream stream_, clock_stream_;  // the second never waits: an event recorded there happens at once
  kernels::Device instance_;
  StreamLog log_;
  kernels::cuda::Event reference_;
  double reference_s_ = -1e9;
};

class StreamTransfer : public Transfer {
 public:
  void start(const kernels::Device& exec) final;
  bool test() final { return end_.has_happened(); }
  void join(const kernels::Device& exec) final;
  Times times() final;

 protected:
  /// Of rank `rank` of `size`. `means`: what moves the bytes, as in Collectives::means_of().
  /// Throws  std::invalid_argument for unsupported spans.
  StreamTransfer(std::string_view means, TransferStream& stream, const Message& message, int rank, int size);

  /// The stream of move(): the transfer stream, or another one that the transfer stream then waits for.
  virtual const kernels::Device& runs_on() const { return stream_.instance(); }
  virtual void move(const kernels::Device& on) = 0;

  bool sums() const { return operation_ == Operation::all_reduce || operation_ == Operation::reduce_scatter; }
  const Span& message() const { return wire_.message(); }  // what crosses the network
  const Span& moved_part() const { return moved_part_; }   // this rank's, as it crosses the network; empty: it has none

  TransferStream& stream_;
  const Operation operation_;
  const std::string what_;  // "nccl all-reduce of grad.bucket.2"
  const int rank_, size_;

 private:
  std::uint32_t name_;  // in the recorder
  Wire wire_;           // not narrow in an all-gather
  Span part_;           // this rank's input of an all-gather, or output of a reduce-scatter; else empty
  Span moved_part_;     // the same; in the wire for a reduce-scatter in narrower numbers
  kernels::cuda::Event ready_{cudaEventDisableTiming}, done_{cudaEventDisableTiming};  // order the streams; done_ only
                                                                                       // under capture
  kernels::cuda::Event begin_, end_, joined_;  // time the transfer; outside a capture end_ also joins
  bool was_started_ = false, was_joined_ = false, is_captured_ = false;
};

}  // namespace tessera::parallel
