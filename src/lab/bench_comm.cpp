/// The bench.comm job: a collective operation over the collectives in use, without concurrent computation.
///
/// A repeat's time is the slowest rank's; bandwidths (bus_bandwidth.hpp) are of the mean. Over MPI each repeat follows
/// a barrier and is timed by the host's clock. Over NCCL the repeats are enqueued after the last warm-up run, on the
/// transfers' stream, and timed by it, as in time_repeats(). A message that does not fit in memory has no times; its
/// outcome says so. A single rank is rejected.

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "io/answer.hpp"
#include "lab/bench.hpp"
#include "lab/bus_bandwidth.hpp"
#include "jobs/memory.hpp"
#include "memory/arena.hpp"
#include "parallel/collectives/collective.hpp"
#include "parallel/collectives/mpi.hpp"

namespace tessera::lab {
namespace {

using Exec = kernels::Device;
using parallel::Operation;
using Bytes = Kokkos::View<unsigned char*, Exec::memory_space, kernels::Unmanaged>;

struct Case {
  Operation operation;
  Dtype dtype;
  std::int64_t elements;  // of the whole message

  std::int64_t bytes() const { return elements * bytes_of(dtype); }
};

Operation operation_named(const std::string& word) {
  for (const Operation operation : parallel::kOperations) {
    if (word_of(operation) == word) return operation;
  }
  throw std::invalid_argument(fmt::format("no collective operation is called \"{}\"", word));
}

/// Memory that a rank needs for a case: the message and, on a host, what MPI sums in.
memory::Layout layout_of(const Case& c, const parallel::Collectives& collectives, memory::TensorId& message) {
  memory::Layout layout;
  message = layout.add("message", {c.elements}, c.dtype, memory::Category::workspace, memory::Lifetime::whole_run());
  const bool sums = c.operation == Operation::all_reduce || c.operation == Operation::reduce_scatter;
  if (!collectives.is_asynchronous() && kernels::kIsHost<Exec> && sums) {
    const bool is_scatter = c.operation == Operation::reduce_scatter;
    layout.add_outside(
        "mpi", parallel::mpi_sum_bytes(c.bytes(), is_scatter) + (is_scatter ? parallel::staging_bytes(c.bytes()) : 0));
  }
  layout.place();
  return layout;
}

std::unique_ptr<parallel::Transfer> make_transfer(Operation operation, parallel::Collectives& collectives,
                                                  const parallel::Span& whole) {
  switch (operation) {
    case Operation::all_reduce: return collectives.make_all_reduce(whole, {}, parallel::Overlap::none);
    case Operation::reduce_scatter: return collectives.make_reduce_scatter(whole, {});
    case Operation::all_gather: {
      const std::int64_t count = whole.count / collectives.size();
      char* const own = static_cast<char*>(whole.data) + collectives.rank() * count * bytes_of(whole.dtype);
      return collectives.make_all_gather({"part", own, count, whole.dtype}, whole);
    }
    case Operation::broadcast: break;
  }
  return collectives.make_broadcast(whole);
}

/// A row's buffers and transfer. Other ranks may have mapped this rank's memory until their transfers are gone.
struct RowMemory {
  std::optional<memory::Arena> arena;
  std::unique_ptr<parallel::Transfer> transfer;

  void keep() {
    if (arena) arena->keep_until_exit();
  }
  void disconnect() { transfer.reset(); }
};

Timing measure(const Case& c, const Bench& bench, parallel::World& world, const memory::Layout& layout,
               memory::TensorId message, RowMemory& row) {
  parallel::Collectives& collectives = world.collectives();
  const Exec exec;
  parallel::Span whole;
  {
    const auto watch = world.watch("the set-up of a row", parallel::kPatience);
    world.agree([&] {
      row.arena.emplace(layout);
      whole = {fmt::format("{} of {} bytes", word_of(c.operation), c.bytes()), row.arena->raw(message), c.elements,
               c.dtype};
      // zeros, so that repeated sums do not grow
      const Bytes bytes(static_cast<unsigned char*>(whole.data), static_cast<std::size_t>(whole.bytes()));
      Kokkos::deep_copy(exec, bytes, static_cast<unsigned char>(0));
      exec.fence();
      row.transfer = make_transfer(c.operation, collectives, whole);
    });
    world.agree([&] { row.transfer->connect(); });
  }
  // started again before the host has seen it complete: what follows in the stream waits for it, as in a graph
  const Exec& instance = collectives.instance();
  return time_together(bench, world, instance, collectives.is_asynchronous(), [&] {
    row.transfer->start(instance);
    row.transfer->join(instance);
  });
}

/// Measures a row, whose memory every rank has freed when this returns.
BenchRow measure_case(const Case& c, const Bench& bench, parallel::World& world) {
  memory::TensorId message = memory::kAbsent;
  const memory::Layout layout = layout_of(c, world.collectives(), message);
  const std::int64_t needed = layout.total_bytes();
  const auto watch = world.watch("the exchange between rows");
  const auto limit = static_cast<std::int64_t>(bench.memory_limit_gib * (1 << 30));
  const MemoryShare share{share_of_memory(world).ranks, 0};
  const bool has_room = (limit == 0 || needed <= limit) && fits(layout, share);
  Timing timing;
  const bool is_out_of_memory = world.any(!has_room) || run_row<RowMemory>(world, [&](RowMemory& row) {
                                  timing = measure(c, bench, world, layout, message, row);
                                });
  const double mean_s = timing.mean_s;
  using T = Cell;
  return {T::text("operation", std::string(word_of(c.operation)), "reduce_scatter"),
          T::text("collectives", world.collectives().means_of(c.operation)),
          T::text("dtype", std::string(name_of(c.dtype))),
          T::count("ranks", world.size()),
          T::number("bytes", "B", static_cast<double>(c.bytes())),
          T::ms("mean_ms", mean_s),
          T::ms("min_ms", timing.min_s),
          T::ms("std_ms", timing.std_s),
          T::ms_detail("median_ms", timing.median_s),
          T::ms_detail("first_ms", timing.first_s),
          T::detail("repeats", "1", static_cast<double>(timing.repeats)),
          T::number("algorithm_gbyte_per_s", "GB/s", algorithm_gbyte_per_s(c.bytes(), mean_s)),
          T::number("bus_gbyte_per_s", "GB/s", bus_gbyte_per_s(c.operation, world.size(), c.bytes(), mean_s)),
          T::detail("needed_mib", "MiB", static_cast<double>(needed) / 1048576),
          T::text("outcome", is_out_of_memory ? "out of memory" : "ok", "out of memory")};
}

}  // namespace

Exit bench_comm(const Context& context) {
  const Bench& bench = context.settings().section<Bench>();
  parallel::World& world = context.world;
  require_several_ranks(world, "bench.comm times what ranks send each other");
  return bench_together(context, [&] {
    if (world.rank() == 0) io::answer(fmt::format("transport  {}\n", world.collectives().description()));
    const Operation operation = operation_named(bench.operation);
    const Dtype dtype = dtype_named(bench.dtype);
    const Case c{operation, dtype, message_elements(operation, world.size(), bench.mbyte * 1'000'000, bytes_of(dtype))};
    return measure_case(c, bench, world);
  });
}

}  // namespace tessera::lab
