#include "train/offload.hpp"  // the contract is there; here is how

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "config/settings.hpp"
#include "errors.hpp"
#include "kernels/core/byte_copies.hpp"
#include "kernels/core/dtype.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/round_up.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kMinChunk = 1024, kMaxChunk = std::int64_t{1} << 22;  // elements
constexpr std::int64_t kMinChunks = 16;                                      // if kMinChunk allows

// Marks in order_: the start, the latest release, and per unit the moment its weights are up to date.
constexpr int kBegin = 0, kReleased = 1;
int is_done(int unit) { return kReleased + 1 + unit; }

constexpr bool kIsOnHost = kernels::kIsHost<kernels::Device>;

// A stream's queue holds about a thousand operations. A full one blocks the host, which then cannot enqueue the work
// that the copies should overlap. Hence these limits:

// units whose chunks are enqueued ahead of the awaited one;
constexpr int kUnitsAhead = kIsOnHost ? 0 : 2;

// copies out enqueued beyond those whose slots the next update waits for. In a larger ring the others, and the copies
// into their slots, follow unit by unit under backward.
constexpr std::size_t kChunksOut = kIsOnHost ? 1 : 32;

}  // namespace

std::int64_t chunk_elements(std::int64_t owned_count) {
  const std::int64_t share = kernels::round_up(kernels::ceil_div(owned_count, kMinChunks), kMinChunk);
  return std::min(std::clamp(share, kMinChunk, kMaxChunk), owned_count);
}

std::int64_t chunk_count(std::int64_t owned_count) {
  return owned_count == 0 ? 0 : kernels::ceil_div(owned_count, chunk_elements(owned_count));
}

std::vector<Chunk> chunks_of(std::int64_t owned_count) {
  std::vector<Chunk> chunks;
  const std::int64_t most = chunk_elements(owned_count), count = chunk_count(owned_count);
  for (std::int64_t number = 0; number < count; ++number) {
    const std::int64_t first = number * most;
    chunks.push_back({first, std::min(most, owned_count - first)});
  }
  return chunks;
}

int chunk_slots(std::int64_t asked, std::int64_t owned_count) {
  const std::int64_t chunks = chunk_count(owned_count);
  if (asked > chunks && asked > config::Parallel{}.offload_slots) {
    throw Failure(Exit::usage,
                  "parallel.offload_slots = {} exceeds the {} chunks of {} elements in which a rank's state is "
                  "streamed here; set at most {}",
                  asked, chunks, chunk_elements(owned_count), std::max(chunks, config::Parallel{}.offload_slots));
  }
  return static_cast<int>(std::min(asked, chunks));
}

StagedTensors declare_staged(const std::vector<memory::TensorId>& arrays, std::int64_t asked, std::int64_t owned_count,
                             memory::Layout& layout) {
  StagedTensors staged{.arrays = {}, .slots = chunk_slots(asked, owned_count)};
  for (const memory::TensorId home : arrays) {
    if (home == memory::kAbsent || layout[home].space != memory::Space::host) continue;
    const memory::Tensor kept = layout[home];
    staged.arrays.push_back({home, layout.add(kept.label + ".chunks", {staged.slots, chunk_elements(owned_count)},
                                              kept.dtype, kept.category, memory::Lifetime::whole_run())});
  }
  return staged;
}

Offload::Offload(const StagedTensors& staged, const parallel::Ownership& o, const memory::Arena& arena,
                 bool has_weights, bool has_backward)
    : arena_(arena),
      arrays_(staged.arrays),
      slots_(static_cast<std::size_t>(staged.slots)),
      has_weights_(has_weights),
      chunks_(chunks_of(o.owned_count())),
      middle_(has_backward ? (chunks_.size() + 1) / 2 : chunks_.size()),
      most_held_(has_weights_ || has_backward ? 0 : slots_ - std::min(slots_, kChunksOut)),
      order_(is_done(o.units())),
      filled_(staged.slots),
      updated_(staged.slots),
      emptied_(staged.slots) {
  std::size_t end = 0;
  for (int unit = 0; unit < o.units(); ++unit) {
    const std::int64_t last = o.owned_first(unit) + o.part(unit);
    begins_.push_back(end);
    while (end < chunks_.size() && chunks_[end].first < last) ++end;
    ends_.push_back(end);
  }
}

Offload::~Offload() {
  for (const kernels::SideStream* stream : {&in_, &update_stream_, &out_}) stream->instance().fence();
}

void Offload::start(const Exec& exec, Part part, Copies copies, UpdateChunk update) {
  if (is_under_way_) throw std::logic_error("offload: started before the previous update was joined");
  const std::size_t first = part == Part::forward ? 0 : middle_;
  const std::size_t count = part == Part::forward ? middle_ : chunks_.size() - middle_;
  const bool follows = end_ > 0;  // the previous part's copies run on
  if (follows && count > 0 && number_of(end_) != first)
    throw std::logic_error("offload: started a part out of its turn");
  if (!follows) origin_ = first;
  update_ = std::move(update);
  part_ = part;
  copies_ = copies;
  begin_ = end_;
  end_ += count;
  is_under_way_ = true;
  if (count == 0) return;
  order_.record(exec, kBegin);
  if (!follows) order_.wait(in_.instance(), kBegin);
  order_.wait(update_stream_.instance(), kBegin);
}

void Offload::await(const Exec& exec, int unit) {
  if (!is_under_way_ || part_ != Part::forward) return;
  const std::size_t ahead = std::min(static_cast<std::size_t>(unit + kUnitsAhead), ends_.size() - 1);
  advance(begin_ + std::min(ends_[ahead], middle_));
  order_.wait(exec, is_done(unit));
}

void Offload::release(const Exec& exec, int unit) {
  if (!is_under_way_) {
    const std::size_t held = most_held_ * static_cast<std::size_t>(unit) / begins_.size();
    return copy_out(updated_end_ - std::min(updated_end_, held));
  }
  const std::size_t end = begin_ + chunks_.size() - std::max(middle_, begins_[unit]);
  if (part_ != Part::backward || end <= updated_end_) return;
  order_.record(exec, kReleased);
  order_.wait(update_stream_.instance(), kReleased);
  advance(end);
}

void Offload::join(const Exec& exec) {
  if (!is_under_way_) return;
  if (part_ == Part::backward) release(exec, 0);
  advance(end_);
  is_under_way_ = false;
  if (end_ == 0) return;
  if (copies_ == Copies::run_on) return (has_weights_ ? emptied_ : updated_).wait(exec, slot_of(end_ - 1));
  copy_out(end_);
  emptied_.wait(exec, slot_of(end_ - 1));
  filled_.wait(exec, slot_of(in_end_ - 1));  // chunks prefetched for later parts are discarded
  in_end_ = updated_end_ = out_end_ = begin_ = end_ = 0;
}

/// A place's number within one round of Part::forward and Part::backward.
std::size_t Offload::number_of(std::size_t place) const { return (origin_ + place) % chunks_.size(); }

std::size_t Offload::chunk_at(std::size_t place) const {
  const std::size_t number = number_of(place);
  return number < middle_ ? number : chunks_.size() - 1 - (number - middle_);
}

/// Enqueues the outstanding updates of places before `end`, with the copies that they need.
void Offload::advance(std::size_t end) {
  const Exec& exec = update_stream_.instance();
  while (updated_end_ < end) {
    copy_in(end);
    const std::size_t place = updated_end_++;
    filled_.wait(exec, slot_of(place));
    update_(exec, chunk_at(place), slot_of(place));
    updated_.record(exec, slot_of(place));
    if (!has_weights_) mark_done(exec, place);
    copy_out(updated_end_ - std::min(updated_end_, most_held_));
  }
}

/// Enqueues the copies in of places before `end` whose slots' copies out have been enqueued.
void Offload::copy_in(std::size_t end) {
  const Exec& exec = in_.instance();
  for (const std::size_t last = std::min(end, out_end_ + slots_); in_end_ < last; ++in_end_) {
    if (in_end_ >= slots_) emptied_.wait(exec, slot_of(in_end_));
    for (const StagedArray& array : arrays_) copy(exec, array, in_end_, true);
    filled_.record(exec, slot_of(in_end_));
  }
}

/// Enqueues the copies out of the slots of updated places before `end`, and copies into them.
void Offload::copy_out(std::size_t end) {
  const Exec& exec = out_.instance();
  while (out_end_ < end) {
    updated_.wait(exec, slot_of(out_end_));
    for (const StagedArray& array : arrays_) copy(exec, array, out_end_, false);
    emptied_.record(exec, slot_of(out_end_));
    if (has_weights_) mark_done(exec, out_end_);
    ++out_end_;
    copy_in(copies_ == Copies::run_on ? out_end_ + slots_ : end_);
  }
}

/// Marks the units whose last chunk of Part::forward is at this place as up to date.
void Offload::mark_done(const Exec& exec, std::size_t place) {
  const std::size_t number = number_of(place);
  for (std::size_t unit = 0; unit < ends_.size() && number < middle_; ++unit) {
    if (std::min(ends_[unit], middle_) == number + 1) order_.record(exec, is_done(static_cast<int>(unit)));
  }
}

LinkRate Offload::measure(const Exec& exec) {
  exec.fence();
  const double begin_s = events::now_s();
  for (const Part part : {Part::forward, Part::backward}) {
    start(exec, part, Copies::joined, [](const Exec&, std::size_t, int) {});
    join(exec);
  }
  exec.fence();
  LinkRate rate{.bytes = 0, .seconds = events::now_s() - begin_s};
  for (const StagedArray& array : arrays_) rate.bytes += static_cast<double>(arena_.layout()[array.home].bytes);
  return rate;
}

/// Copies a place's chunk of one array in or out. The host's memory is pinned, so the copy runs on the stream.
void Offload::copy(const Exec& exec, const StagedArray& array, std::size_t place, bool is_in) const {
  const Chunk& chunk = chunks_[chunk_at(place)];
  const std::int64_t size = bytes_of(arena_.layout()[array.home].dtype), bytes = chunk.count * size;
  std::byte* const home = static_cast<std::byte*>(arena_.raw(array.home)) + chunk.first * size;
  std::byte* const there =
      static_cast<std::byte*>(arena_.raw(array.slots)) + slot_of(place) * chunks_.front().count * size;
  is_in ? kernels::send_bytes(exec, home, there, bytes) : kernels::fetch_bytes(exec, there, home, bytes);
}

}  // namespace tessera::train
