/// Collectives over labelled spans of memory: mpi.* for all memory that the host can access or copy, nccl.* and
/// copy_engine.* for that of NVIDIA GPUs.
///
/// Every rank calls the same operations in the same order. A started transfer owns its spans until it has completed.
/// Over MPI it progresses only inside test() and join(), so the caller polls while it computes; over the others it runs
/// on its own stream and the host never waits: join() orders the streams.
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

/// With what carries it out: "all_reduce[copy_engine]".
inline std::string label_of(Operation operation, std::string_view means) {
  return std::string(word_of(operation)).append("[").append(means).append("]");
}

/// The operation's word in such a label.
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
};

class Squares;

/// Whether the ranks' devices compute while a transfer is in flight. If not, it may take their multiprocessors. The
/// same on every rank, since it decides how the transfer is made.
enum class Overlap { compute, none };

/// What a transfer moves. `wire`: empty, or as many elements of a narrower dtype, in the same memory as `span`, in
/// which the values cross the network: rounded into it, summed there, and widened back. Nothing else may use it until
/// the transfer has completed.
struct Message {
  Operation operation;
  Span span;       // an all-gather's whole
  Span wire = {};  // of a sum
  Span part = {};  // this rank's, of an all-gather; of a reduce-scatter where its sum goes, or empty
  Overlap overlap = Overlap::compute;  // of an all-reduce
};

/// One operation of a group of ranks on fixed memory. May be started again once it has completed: its resources are
/// allocated once.
class Transfer {
 public:
  virtual ~Transfer() = default;

  /// Collective, once, before the first start: exchanges what the ranks must know of each other. Making a transfer is
  /// not collective, so a rank that lacks memory for it can report that before the others wait for it here.
  /// Throws  on every rank or on none.
  virtual void connect() {}

  /// Makes each run leave the squares of the sums that this rank makes (squares.hpp). False: it makes none itself.
  /// Once, before connect().
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
    double end_s;     // of it and, if is_asynchronous(), of all transfers that were started before
    double joined_s;  // when the wait for it began; end_s if nothing waited
  };
  /// Times of the latest run, or of the latest replay of the graph that contains it. Call once it has completed, before
  /// it is started again.
  /// Throws  std::logic_error while it runs.
  virtual Times times() = 0;
};

/// How GPUs exchange data; automatic: by copy engines if the ranks can access each other's memory, else by NCCL's ring.
enum class TransferMethod { automatic, ring, copy_engine };

/// Size of each GPU's receive buffer for transfers by copy engines (parallel/collectives/copy_engine.hpp) [bytes].
inline constexpr std::int64_t kReceiveBytes = std::int64_t{96} << 20;

/// The most ranks that copy engines serve.
inline constexpr int kMaxCopyEngineRanks = 16;

/// A group of ranks that exchange data: all ranks, or a group made by make_group().
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::string name() const = 0;  // "mpi"
  /// What carries an operation out: "mpi", "nccl" (its ring) or "copy_engine".
  virtual std::string means_of(Operation) const { return name(); }
  /// Both: "all_reduce[copy_engine]".
  std::string label(Operation operation) const { return label_of(operation, means_of(operation)); }
  virtual std::string description() const = 0;  // with version and settings, for logs

  /// Whether join() leaves the host free. Such collectives also complete in the order in which they were started, and
  /// progress by themselves.
  virtual bool is_asynchronous() const = 0;

  /// Whether all-reduces that overlap computation hold up no others while their kernels wait for multiprocessors: the
  /// kernels of a step may then go first.
  virtual bool can_yield() const { return false; }

  /// Bytes of this rank's device for its own buffers, allocated at the beginning. Excludes what a library allocates at
  /// its first transfers.
  virtual std::int64_t device_bytes() const { return 0; }

  virtual int rank() const = 0;  // in the group
  virtual int size() const = 0;

  /// Makes one transfer. Not collective; connect() is, in the same order on every rank.
  /// Numerics  sums support fp32, fp64, bf16 and fp16.
  /// Order     bitwise repeatable from run to run on the same number of ranks (MPI does not guarantee it; tests check).
  /// Throws    std::invalid_argument for unsupported spans.
  virtual std::unique_ptr<Transfer> make(const Message& message) = 0;

  /// `span` becomes its sum over the ranks, the same bits on each, whatever it overlaps.
  std::unique_ptr<Transfer> make_all_reduce(const Span& span, const Span& wire, Overlap overlap = Overlap::compute) {
    return make({.operation = Operation::all_reduce, .span = span, .wire = wire, .overlap = overlap});
  }
  /// `span` consists of size() parts of equal length. The sum over the ranks of this rank's, the rank()-th, goes to
  /// `part`, which lies outside `span`; empty: to its own place in it. What else `span` holds, and all of `wire`, are
  /// left undefined.
  std::unique_ptr<Transfer> make_reduce_scatter(const Span& span, const Span& wire, const Span& part = {}) {
    return make({.operation = Operation::reduce_scatter, .span = span, .wire = wire, .part = part});
  }
  /// `whole` becomes the concatenation of all ranks' parts, in rank order; `part` is this rank's, size() times shorter,
  /// either outside `whole` or at its own place in it. Any dtype.
  std::unique_ptr<Transfer> make_all_gather(const Span& part, const Span& whole) {
    return make({.operation = Operation::all_gather, .span = whole, .part = part});
  }
  /// `span` becomes that of the group's rank 0. Any dtype.
  std::unique_ptr<Transfer> make_broadcast(const Span& span) {
    return make({.operation = Operation::broadcast, .span = span});
  }

  /// The collectives of a subset of these ranks: those that pass the same `group`, in the same order. Collective.
  virtual std::unique_ptr<Collectives> make_group(int group) = 0;

  /// The instance that waits for every asynchronous transfer: what is enqueued on it, or started from it, follows all
  /// that were started before. Otherwise the default one.
  virtual kernels::Device instance() const { return {}; }

  /// The same at once: complete on return. The work that writes the span must have been fenced.
  virtual void broadcast(const Span& span) = 0;

  /// A fault of another rank that the library has detected; empty: none. Callable from any thread.
  virtual std::string fault() = 0;

  /// This rank leaves in mid-step: aborts the transfers in progress on its device, so that its memory can be freed.
  /// Nothing can be started afterwards.
  virtual void abandon() = 0;
};

}  // namespace tessera::parallel
