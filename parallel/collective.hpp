/// Collectives over labelled spans of memory. mpi.cpp implements them for every memory a host can reach or copy,
/// nccl.cpp for the memory of NVIDIA GPUs.
///
/// Every rank calls the same operations in the same order. A started transfer owns its spans until it has completed.
/// Over MPI it makes progress only inside test() and join(), so the caller polls while it computes; over NCCL it runs
/// on its own stream and the host never waits: join() orders the streams.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/scalar.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::parallel {

struct Span {
  std::string label;  // "grad.bucket.2"
  void* data = nullptr;
  std::int64_t count = 0;  // elements
  Dtype dtype = Dtype::fp32;

  std::int64_t bytes() const { return count * bytes_of(dtype); }
};

/// One operation of a group of ranks on fixed memory. May be started again once it has completed: its resources are
/// made once.
class Transfer {
 public:
  virtual ~Transfer() = default;

  /// Collective, once, before the first start: exchanges what the ranks must know of each other. Making a transfer is
  /// not collective, so a rank that has no memory for it can say so before the others wait for it here. Throws on every
  /// rank or on none.
  virtual void connect() {}

  /// Starts after the work enqueued on `exec` so far. Starting and joining allocate nothing after the first time.
  /// Where is_asynchronous(), start and join may be captured in a graph, together.
  virtual void start(const kernels::Device& exec) = 0;

  /// Polls; true once it is complete. Not during capture.
  virtual bool test() = 0;

  /// Work enqueued on `exec` after this sees the results. The host waits, too, unless is_asynchronous().
  virtual void join(const kernels::Device& exec) = 0;

  struct Times {
    double start_s, end_s;  // of the communication, on the clock of events::now_s()
    double joined_s;        // when the wait for it began; end_s if there was none
  };
  /// Of the latest run, or of the latest replay of the graph that holds it. Only once it has completed, and before it
  /// is started again; throws std::logic_error while it runs.
  virtual Times times() = 0;
};

/// How GPUs move what they share; automatic: by copy engines where the ranks reach each other's memory, else by NCCL's
/// ring.
enum class TransferMethod { automatic, ring, copy_engine };

/// Where transfers go by copy engines (parallel/copy_engine.hpp): what each GPU's receive buffer takes [bytes].
inline constexpr std::int64_t kReceiveBytes = std::int64_t{64} << 20;

/// A group of ranks that exchange data: all of them, or those of a group of make_group().
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::string name() const = 0;         // "mpi"
  virtual std::string description() const = 0;  // with version and settings, for logs

  /// Whether join() leaves the host free. Such collectives also complete in the order in which they were started, and
  /// progress by themselves.
  virtual bool is_asynchronous() const = 0;

  /// Bytes of this rank's device that are its own buffers from the beginning. What a library takes when it first moves
  /// something is not among them.
  virtual std::int64_t device_bytes() const { return 0; }

  virtual int rank() const = 0;  // in the group
  virtual int size() const = 0;

  // What follows makes one transfer each; none of it is collective: connect() them, in the same order on every rank.
  // `wire`: empty, or as many elements of another dtype, of the same memory as `span`, in which the values cross the
  // network: rounded into it before, summed there, widened back after. No one else may use it until the transfer has
  // completed. Sums take fp32, fp64, bf16 and fp16, and give the same bits from run to run on as many ranks (MPI does
  // not promise it; the tests hold the library to it). They throw std::invalid_argument for what cannot be moved so.

  /// `span` becomes its sum over the ranks, the same bits on each.
  virtual std::unique_ptr<Transfer> make_all_reduce(const Span& span, const Span& wire) = 0;

  /// `span` is size() parts of equal length; this rank's own, the rank()-th, becomes its sum over the ranks. The other
  /// parts, and all of `wire`, are left undefined.
  virtual std::unique_ptr<Transfer> make_reduce_scatter(const Span& span, const Span& wire) = 0;

  /// `whole` becomes the parts of all ranks, in their order; `part` is this rank's, size() times shorter: anywhere
  /// outside of `whole`, or at its own place in it. Any dtype.
  virtual std::unique_ptr<Transfer> make_all_gather(const Span& part, const Span& whole) = 0;

  /// The collectives of a part of these ranks: of those that give the same `group`, in the same order. Collective.
  virtual std::unique_ptr<Collectives> make_group(int group) = 0;

  /// The instance on which transfers run, where they are asynchronous: what is started from it follows them. Elsewhere
  /// the default one.
  virtual kernels::Device instance() const { return {}; }

  /// Broadcasts the content of the group's rank 0; complete on return. Any dtype. The work that writes it must have
  /// been fenced.
  virtual void broadcast(const Span& span) = 0;

  /// The fault of another rank that the library has detected; empty: none. Callable from any thread.
  virtual std::string fault() = 0;

  /// This rank leaves in mid-step: aborts what is under way on its device, so that its memory can be freed.
  /// Nothing can be started afterwards.
  virtual void abandon() = 0;
};

}  // namespace tessera::parallel
