/// Collectives over labelled spans of memory: mpi.* for all memory that the host can access or copy, nccl.* and
/// copy_engine.* for that of NVIDIA GPUs.
///
/// Every rank calls the same operations in the same order. A started transfer owns its spans until it has completed.
/// Over MPI it progresses only inside test() and join(), so the caller must poll while it computes; otherwise it runs
/// on its own stream, join() orders the streams, and the host never waits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/core/scalar.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::parallel {

enum class Operation { all_reduce, reduce_scatter, all_gather, broadcast };

inline constexpr Operation kOperations[] = {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather,
                                            Operation::broadcast};

/// In decks, files and reports: "all_reduce".
constexpr std::string_view word_of(Operation operation) {
  constexpr std::string_view words[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};
  return words[static_cast<int>(operation)];
}

/// In messages: "all-reduce".
constexpr std::string_view name_of(Operation operation) {
  constexpr std::string_view names[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast"};
  return names[static_cast<int>(operation)];
}

/// The operation and what carries it out: "all_reduce[copy_engine]".
inline std::string label_of(Operation operation, std::string_view means) {
  return std::string(word_of(operation)).append("[").append(means).append("]");
}

/// The operation in such a label.
constexpr std::string_view word_in_label(std::string_view label) { return label.substr(0, label.find('[')); }

struct Span {
  std::string label;  // "grad.bucket.2"
  void* data = nullptr;
  std::int64_t count = 0;  // elements
  Dtype dtype = Dtype::fp32;

  std::int64_t bytes() const { return count * bytes_of(dtype); }

  /// `length` of its elements, from `first` on.
  Span part(std::int64_t first, std::int64_t length) const {
    return {label, static_cast<char*>(data) + first * bytes_of(dtype), length, dtype};
  }

  /// As an array of the device, whose numbers have the span's dtype or are bytes.
  template <class Number>
  kernels::Vector<Number, kernels::Device> as() const {
    return kernels::Vector<Number, kernels::Device>(static_cast<Number*>(data), bytes() / sizeof(Number));
  }
};

class Squares;

/// Whether the devices compute while a transfer is in flight; if not, it may use their SMs. Must be the same on every
/// rank, since it decides how the transfer works.
enum class Overlap { compute, none };

/// The memory of a transfer. `wire`: empty, or as many elements of a narrower dtype in the same kind of memory as
/// `span`. Values are rounded into it, cross the network and are summed there, and are widened back. Nothing else may
/// use it while the transfer is in flight.
struct Message {
  Operation operation;
  Span span;       // of an all-gather: the whole result
  Span wire = {};  // of sums only
  Span part = {};  // of an all-gather: this rank's; of a reduce-scatter: where its sum goes, or empty
  Overlap overlap = Overlap::compute;  // of all-reduces only
};

/// One operation of a group of ranks on fixed memory. May be started again once it has completed: its resources are
/// allocated once.
class Transfer {
 public:
  virtual ~Transfer() = default;

  /// Collective, once, before the first start: the ranks exchange addresses and the like. Making a transfer is not
  /// collective, so a rank that lacks memory for it can report that before the others wait here.
  /// Throws  on every rank or on none.
  virtual void connect() {}

  /// Makes each run leave the squares of the sums that this rank computes, added up (squares.hpp). Returns false if it
  /// computes none. Call at most once, before connect().
  virtual bool leave_squares(Squares&) { return false; }

  /// Starts after the work enqueued on `exec` so far. Starting and joining allocate nothing after the first time.
  /// If is_asynchronous(), start and join may be captured together in a graph.
  virtual void start(const kernels::Device& exec) = 0;

  /// Polls; true once it has completed. Not during capture.
  virtual bool test() = 0;

  /// Work enqueued on `exec` after this sees the results. The host waits unless is_asynchronous().
  virtual void join(const kernels::Device& exec) = 0;

  struct Times {
    double start_s;   // of the communication, on the clock of events::now_s()
    double end_s;     // when it and, if is_asynchronous(), all transfers started before it had ended
    double joined_s;  // when the wait for it began; end_s if nothing waited
  };
  /// Times of the latest run, or of its graph's latest replay. Call after it has completed and before the next start.
  /// Throws  std::logic_error while it runs.
  virtual Times times() = 0;
};

/// How GPUs exchange data; automatic: by copy engines if the ranks can access each other's memory, else by NCCL's ring.
enum class TransferMethod { automatic, ring, copy_engine };

/// Size of each GPU's receive buffer for transfers by copy engines (parallel/collectives/copy_engine.hpp) [bytes]:
/// 64 MiB for reduce-scatters, and for each of two all-reduces 16 MiB per other rank, at most 48 MiB.
constexpr std::int64_t receive_bytes(int ranks) {
  return (std::int64_t{64} + 2 * (ranks < 4 ? 16 * (ranks - 1) : 48)) << 20;
}

/// The most ranks that copy engines serve.
inline constexpr int kMaxCopyEngineRanks = 16;

/// A group of ranks that exchange data: all ranks, or a group made by make_group().
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::string name() const = 0;  // "mpi"
  /// What carries out an operation: "mpi", "nccl" (its ring) or "copy_engine".
  virtual std::string means_of(Operation) const { return name(); }
  /// The operation with it: "all_reduce[copy_engine]".
  std::string label(Operation operation) const { return label_of(operation, means_of(operation)); }
  virtual std::string description() const = 0;  // with version and settings, for logs

  /// Whether join() leaves the host free. Such collectives also complete in the order in which they were started, and
  /// progress by themselves.
  virtual bool is_asynchronous() const = 0;

  /// Whether an overlapping all-reduce whose kernels wait for SMs delays no other transfer: then a step's kernels may
  /// have priority.
  virtual bool can_yield() const { return false; }

  /// Bytes of this rank's device for its own buffers, allocated at the start; excludes a library's allocations at its
  /// first transfers.
  virtual std::int64_t device_bytes() const { return 0; }

  virtual int rank() const = 0;  // in the group
  virtual int size() const = 0;

  /// Makes one transfer. Not collective; connect() is, in the same order on every rank.
  /// Numerics  sums support fp32, fp64, bf16 and fp16.
  /// Order     bitwise repeatable from run to run on the same number of ranks (MPI does not guarantee it; tests check).
  /// Throws    std::invalid_argument for unsupported spans.
  virtual std::unique_ptr<Transfer> make(const Message& message) = 0;

  /// `span` becomes its sum over the ranks, the same bits on each, for either Overlap.
  std::unique_ptr<Transfer> make_all_reduce(const Span& span, const Span& wire, Overlap overlap = Overlap::compute) {
    return make({.operation = Operation::all_reduce, .span = span, .wire = wire, .overlap = overlap});
  }
  /// `span` has size() equal parts. The sum over the ranks of part rank() goes to `part`, which lies outside `span`;
  /// if empty, to its own place in `span`. The rest of `span`, and all of `wire`, become undefined.
  std::unique_ptr<Transfer> make_reduce_scatter(const Span& span, const Span& wire, const Span& part = {}) {
    return make({.operation = Operation::reduce_scatter, .span = span, .wire = wire, .part = part});
  }
  /// `whole` becomes the concatenation of all ranks' parts, in rank order; this rank's `part` lies outside `whole`, or
  /// at its own place in it. Any dtype.
  std::unique_ptr<Transfer> make_all_gather(const Span& part, const Span& whole) {
    return make({.operation = Operation::all_gather, .span = whole, .part = part});
  }
  /// `span` becomes a copy of the group's rank 0's. Any dtype.
  std::unique_ptr<Transfer> make_broadcast(const Span& span) {
    return make({.operation = Operation::broadcast, .span = span});
  }

  /// The collectives of the ranks that pass the same `group`, in the same order. Collective.
  virtual std::unique_ptr<Collectives> make_group(int group) = 0;

  /// The instance that waits for every asynchronous transfer: work enqueued on it, or transfers started from it, follow
  /// all earlier transfers. Otherwise the default instance.
  virtual kernels::Device instance() const { return {}; }

  /// A broadcast that is complete on return. The work that writes the span must have been fenced.
  virtual void broadcast(const Span& span) = 0;

  /// A fault of another rank that the library has detected; empty: none. Callable from any thread.
  virtual std::string fault() = 0;

  /// For a rank that leaves in mid-step: aborts the transfers in progress on its device, so that its memory can be
  /// freed. Nothing can be started afterwards.
  virtual void abandon() = 0;
};

}  // namespace tessera::parallel
