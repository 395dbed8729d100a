#include "train/offload.hpp"  // the contract is there; here is how

#include <algorithm>

#include "kernels/core/dtype.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/round_up.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kMinChunk = 1024, kMaxChunk = std::int64_t{1} << 22;  // elements
constexpr std::int64_t kMinChunks = 16;                                      // if kMinChunk allows

// Points of order: per slot, when it has been filled, updated and emptied; and the beginning.
int filled(int slot) { return slot; }
int updated(int slot) { return kChunkSlots + slot; }
int emptied(int slot) { return 2 * kChunkSlots + slot; }
constexpr int kBegin = 3 * kChunkSlots;

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

Offload::Offload(const Plan& plan, const memory::Arena<Exec>& arena)
    : arena_(arena), chunks_(chunks_of(plan.sharing.ownership.owned_count())) {
  const StateTensors& t = plan.state;
  for (std::size_t i = 0; i < t.staged.size(); ++i) {
    const memory::TensorId homes[] = {t.m, t.v, t.master};
    arrays_.push_back({homes[i], t.staged[i]});
  }
}

void Offload::stream(const Exec& exec, const std::function<void(const Chunk&, int)>& update) {
  order_.record(exec, kBegin);  // the slots share memory with earlier tensors
  order_.wait(in_.instance(), kBegin);
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const int slot = static_cast<int>(i % kChunkSlots);
    if (i >= kChunkSlots) order_.wait(in_.instance(), emptied(slot));
    for (const Array& array : arrays_) copy(in_.instance(), array, chunks_[i], slot, true);
    order_.record(in_.instance(), filled(slot));
    order_.wait(exec, filled(slot));
    update(chunks_[i], slot);
    order_.record(exec, updated(slot));
    order_.wait(out_.instance(), updated(slot));
    for (const Array& array : arrays_) copy(out_.instance(), array, chunks_[i], slot, false);
    order_.record(out_.instance(), emptied(slot));
  }
  const std::size_t last = chunks_.size();
  for (std::size_t i = last - std::min<std::size_t>(last, kChunkSlots); i < last; ++i) {
    order_.wait(exec, emptied(static_cast<int>(i % kChunkSlots)));
  }
}

LinkRate Offload::measure(const Exec& exec) {
  exec.fence();
  const double begin_s = events::now_s();
  stream(exec, [](const Chunk&, int) {});
  exec.fence();
  LinkRate rate{.bytes = 0, .seconds = events::now_s() - begin_s};
  for (const Array& array : arrays_) rate.bytes += static_cast<double>(arena_.layout()[array.home].bytes);
  return rate;
}

/// Copies a chunk of one array in or out. The host's memory is pinned, so the copy runs on the stream.
void Offload::copy(const Exec& exec, const Array& array, const Chunk& chunk, int slot, bool is_in) const {
  using Pinned = Kokkos::View<unsigned char*, kernels::PinnedSpace, kernels::Unmanaged>;
  const std::int64_t size = bytes_of(arena_.layout()[array.home].dtype);
  const auto bytes = static_cast<std::size_t>(chunk.count * size);
  const Pinned home(static_cast<unsigned char*>(arena_.raw(array.home)) + chunk.first * size, bytes);
  const kernels::Vector<unsigned char, Exec> place(static_cast<unsigned char*>(arena_.raw(array.staged[slot])), bytes);
  if (is_in) {
    Kokkos::deep_copy(exec, place, home);
  } else {
    Kokkos::deep_copy(exec, home, place);
  }
}

}  // namespace tessera::train
