#include "train/offload.hpp"  // the contract is there; here is how

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels/core/dtype.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/round_up.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kMinChunk = 1024, kMaxChunk = std::int64_t{1} << 22;  // elements
constexpr std::int64_t kMinChunks = 16;                                      // if kMinChunk allows

// Points of order: per slot, when it has been filled, updated and emptied; the beginning; the latest release; per unit,
// when its weights are up to date.
int filled(int slot) { return slot; }
int updated(int slot) { return kChunkSlots + slot; }
int emptied(int slot) { return 2 * kChunkSlots + slot; }
constexpr int kBegin = 3 * kChunkSlots;
constexpr int kReleased = kBegin + 1;
int is_done(int unit) { return kReleased + 1 + unit; }

// Units whose chunks are enqueued ahead of the one that is waited for. All at once would fill the device's queues, and
// the host would wait there before it had enqueued the work that the streams run beside.
constexpr int kUnitsAhead = kernels::kIsHost<kernels::Device> ? 0 : 2;

}  // namespace

std::int64_t chunk_elements(std::int64_t owned_count) {
  const std::int64_t share = kernels::round_up(kernels::ceil_div(owned_count, kMinChunks), kMinChunk);
  return std::min(std::clamp(share, kMinChunk, kMaxChunk), owned_count);
}

std::vector<Chunk> chunks_of(std::int64_t owned_count) {
  std::vector<Chunk> chunks;
  const std::int64_t most = chunk_elements(owned_count);
  for (std::int64_t first = 0; first < owned_count; first += most) {
    chunks.push_back({first, std::min(most, owned_count - first)});
  }
  return chunks;
}

Offload::Offload(const Plan& plan, const memory::Arena<Exec>& arena, bool has_backward)
    : arena_(arena),
      arrays_(plan.state.staged),
      has_weights_(plan.state.slots_of(plan.state.params) != nullptr),
      chunks_(chunks_of(plan.sharing.ownership.owned_count())),
      middle_(has_backward ? (chunks_.size() + 1) / 2 : chunks_.size()),
      order_(is_done(plan.sharing.ownership.units())) {
  const parallel::Ownership& o = plan.sharing.ownership;
  std::size_t end = 0;
  for (int unit = 0; unit < o.units(); ++unit) {
    const std::int64_t last = o.owned_first(unit) + o.part(unit);
    begins_.push_back(end);
    while (end < chunks_.size() && chunks_[end].first < last) ++end;
    ends_.push_back(end);
  }
}

void Offload::start(const Exec& exec, Part part, UpdateChunk update) {
  if (is_under_way_) throw std::logic_error("offload: started before the previous update was joined");
  update_ = std::move(update);
  part_ = part;
  next_ = 0;
  count_ = part == Part::forward ? middle_ : chunks_.size() - middle_;
  is_under_way_ = true;
  order_.record(exec, kBegin);
  order_.wait(in_.instance(), kBegin);
  order_.wait(update_stream_.instance(), kBegin);
}

void Offload::await(const Exec& exec, int unit) {
  if (!is_under_way_ || part_ != Part::forward) return;
  const std::size_t ahead = std::min(static_cast<std::size_t>(unit + kUnitsAhead), ends_.size() - 1);
  advance(std::min(ends_[ahead], count_));
  order_.wait(exec, is_done(unit));
}

void Offload::release(const Exec& exec, int unit) {
  if (!is_under_way_ || part_ != Part::backward) return;
  order_.record(exec, kReleased);
  order_.wait(update_stream_.instance(), kReleased);
  advance(chunks_.size() - std::max(middle_, begins_[unit]));
}

void Offload::join(const Exec& exec) {
  if (!is_under_way_) return;
  if (part_ == Part::backward) release(exec, 0);
  advance(count_);
  for (std::size_t i = count_ - std::min<std::size_t>(count_, kChunkSlots); i < count_; ++i) {
    order_.wait(exec, emptied(static_cast<int>(i % kChunkSlots)));
  }
  is_under_way_ = false;
}

/// The chunk that is number `place` of the part under way.
std::size_t Offload::chunk_at(std::size_t place) const {
  return part_ == Part::forward ? place : chunks_.size() - 1 - place;
}

/// Enqueues the first `end` chunks of the part under way, as far as they have not been.
void Offload::advance(std::size_t end) {
  const Exec &in = in_.instance(), &update = update_stream_.instance(), &out = out_.instance();
  for (; next_ < end; ++next_) {
    const std::size_t number = chunk_at(next_);
    const Chunk& chunk = chunks_[number];
    const int slot = static_cast<int>(next_ % kChunkSlots);
    if (next_ >= kChunkSlots) order_.wait(in, emptied(slot));
    for (const StagedArray& array : arrays_) copy(in, array, chunk, slot, true);
    order_.record(in, filled(slot));
    order_.wait(update, filled(slot));
    update_(update, number, slot);
    order_.record(update, updated(slot));
    order_.wait(out, updated(slot));
    for (const StagedArray& array : arrays_) copy(out, array, chunk, slot, false);
    order_.record(out, emptied(slot));
    for (std::size_t unit = 0; unit < ends_.size() && part_ == Part::forward; ++unit) {
      if (std::min(ends_[unit], count_) == next_ + 1)
        order_.record(has_weights_ ? out : update, is_done(static_cast<int>(unit)));
    }
  }
}

LinkRate Offload::measure(const Exec& exec) {
  exec.fence();
  const double begin_s = events::now_s();
  for (const Part part : {Part::forward, Part::backward}) {
    start(exec, part, [](const Exec&, std::size_t, int) {});
    join(exec);
  }
  exec.fence();
  LinkRate rate{.bytes = 0, .seconds = events::now_s() - begin_s};
  for (const StagedArray& array : arrays_) rate.bytes += static_cast<double>(arena_.layout()[array.home].bytes);
  return rate;
}

/// Copies a chunk of one array in or out. The host's memory is pinned, so the copy runs on the stream.
void Offload::copy(const Exec& exec, const StagedArray& array, const Chunk& chunk, int slot, bool is_in) const {
  using Pinned = Kokkos::View<unsigned char*, kernels::PinnedSpace, kernels::Unmanaged>;
  const std::int64_t size = bytes_of(arena_.layout()[array.home].dtype);
  const auto bytes = static_cast<std::size_t>(chunk.count * size);
  const Pinned home(static_cast<unsigned char*>(arena_.raw(array.home)) + chunk.first * size, bytes);
  const kernels::Vector<unsigned char, Exec> place(static_cast<unsigned char*>(arena_.raw(array.slots[slot])), bytes);
  if (is_in) {
    Kokkos::deep_copy(exec, place, home);
  } else {
    Kokkos::deep_copy(exec, home, place);
  }
}

}  // namespace tessera::train
