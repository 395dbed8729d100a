#include "train/state.hpp"  // the contract is there; here is how

#include <bit>
#include <memory>
#include <stdexcept>
#include <type_traits>

#include "kernels/core/byte_copies.hpp"
#include "kernels/core/random.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/master_weights.hpp"
#include "model/initial_values.hpp"
#include "train/dtypes.hpp"

namespace tessera::train {
namespace {

using Exec = kernels::Device;
using Host = Kokkos::DefaultHostExecutionSpace;

/// A piece as weights of memory that `Space` reaches. Moments are weights without a master.
template <class Space, class Scalar>
kernels::MasterWeights<Space, Scalar> weights_in(const Piece& piece) {
  kernels::MasterWeights<Space, Scalar> weights;
  const auto set = [&]<class Number>(kernels::Vector<Number, Space>& array, const parallel::Span& span) {
    array = kernels::Vector<Number, Space>(static_cast<Number*>(span.data), static_cast<std::size_t>(span.count));
  };
  set(weights.working, piece.numbers);
  set(weights.master, weights.kIsOneArray ? piece.numbers : piece.master);
  return weights;
}

template <class Work>
auto with_scalar(Dtype dtype, const Work& work) {
  return with_types(dtype, false, [&]<class Scalar, class Grad>() { return work.template operator()<Scalar>(); });
}

std::size_t bytes_with_padding(const Piece& piece) {
  return static_cast<std::size_t>(kernels::round_up(piece.numbers.bytes(), kPartBytes) +
                                  kernels::round_up(piece.master.bytes(), kPartBytes));
}

/// A piece of this size in `room`, on the host.
Piece placed(Piece piece, std::byte* room) {
  piece.numbers.data = room;
  if (piece.master.data != nullptr) piece.master.data = room + kernels::round_up(piece.numbers.bytes(), kPartBytes);
  return piece;
}

/// Copies a piece with copy(from, to, bytes).
template <class Copy>
void copy_piece(const Piece& from, const Piece& to, const Copy& copy) {
  copy(from.numbers.data, to.numbers.data, static_cast<std::size_t>(from.numbers.bytes()));
  if (from.master.data != nullptr) {
    copy(from.master.data, to.master.data, static_cast<std::size_t>(from.master.bytes()));
  }
}

/// A piece of the device on the host: where it is, or copied to `room`.
Piece on_host(const Piece& piece, std::vector<std::byte>& room) {
  if (kernels::kIsHost<Exec>) return piece;
  room.resize(bytes_with_padding(piece));
  const Piece copy = placed(piece, room.data());
  copy_piece(piece, copy, kernels::download_bytes);
  return copy;
}

/// A piece on the host as floats: where it is, or converted in `room`.
std::span<const float> as_floats(const Piece& piece, std::vector<float>& room) {
  const auto count = static_cast<std::size_t>(piece.numbers.count);
  if (piece.numbers.dtype == Dtype::fp32) return {static_cast<const float*>(piece.numbers.data), count};
  room.resize(count);
  with_scalar(piece.numbers.dtype, [&]<class Scalar>() {
    const auto weights = weights_in<Host, Scalar>(piece);
    for (std::size_t i = 0; i < count; ++i) room[i] = static_cast<float>(weights(i));
  });
  return room;
}

}  // namespace

State::State(const Basis& basis, int shard, const memory::Arena& arena)
    : spans_(owned_spans(basis.table, basis.sharing, shard)), copy_(span_of(arena, basis.arrays.copy, "copy")) {
  const ArrayTensors& t = basis.arrays;
  groups_.push_back({"params", {span_of(arena, t.params, "params"), span_of(arena, t.master, "optimizer.master")}});
  for (const MomentTensor& moment : t.moments) {
    groups_.push_back({moment.group, {span_of(arena, moment.tensor, moment.group)}});
  }
}

void State::clear(const Exec& exec) const {
  for (const Group& group : groups_) {
    for (const parallel::Span& array : {group.arrays.numbers, group.arrays.master}) {
      kernels::clear_bytes(exec, array.data, static_cast<std::size_t>(array.bytes()));
    }
  }
  exec.fence();
}

/// Of the weights, in place. Moments and a master lie at the same index.
Piece State::part_of(const Group& group, const OwnedSpan& span) const {
  const auto part = [&](const parallel::Span& array, std::int64_t first) {
    return array.data == nullptr ? parallel::Span{} : array.part(first, span.count);
  };
  const bool is_weights = &group == &groups_.front();
  return {part(group.arrays.numbers, is_weights ? span.weights : span.state), part(group.arrays.master, span.state)};
}

void State::initialize(const Exec& exec, std::uint64_t seed) const {
  clear(exec);
  for (const OwnedSpan& span : spans_) {
    const Piece piece = part_of(groups_.front(), span);
    with_scalar(piece.numbers.dtype, [&]<class Scalar>() {
      model::InitializeParam<Scalar>{weights_in<Exec, Scalar>(piece), span.from,
                                     model::InitialValues(seed, *span.param)}
          .launch(exec);
    });
  }
  exec.fence();
}

std::vector<parallel::Span> State::weights() const {
  const auto& [working, master] = groups_.front().arrays;
  if (master.data == nullptr) return {working};
  return {working, master};
}

std::vector<SavedTensor> State::saved(const Exec& exec, const std::function<bool(std::size_t)>& is_wanted) const {
  struct Rooms {
    std::vector<std::byte> fetched;
    std::vector<float> floats;
  };
  const auto rooms = std::make_shared<Rooms>();  // of the tensor that is being saved
  std::byte* place = static_cast<std::byte*>(copy_.data);
  std::byte* const end = place + copy_.bytes();
  std::vector<SavedTensor> state;
  std::size_t number = 0;
  for (const Group& group : groups_) {
    for (const OwnedSpan& span : spans_) {
      if (!is_wanted(number++)) continue;
      Piece piece = part_of(group, span);
      SavedTensor& tensor = state.emplace_back(group.name, span.param, span.from, span.count);
      if (copy_.data == nullptr) {
        tensor.data = [piece, rooms] { return as_floats(on_host(piece, rooms->fetched), rooms->floats); };
        continue;
      }
      if (bytes_with_padding(piece) > static_cast<std::size_t>(end - place)) {
        throw std::logic_error("state: no room for the copy");
      }
      const Piece copy = placed(piece, place);
      copy_piece(piece, copy,
                 [&](const void* from, void* to, std::size_t bytes) { kernels::fetch_bytes(exec, from, to, bytes); });
      place += bytes_with_padding(piece);
      tensor.data = [copy, rooms] { return as_floats(copy, rooms->floats); };
    }
  }
  exec.fence();
  return state;
}

void State::load(const Exec& exec, const std::function<void(const StateTensor&)>& visit) const {
  clear(exec);
  std::vector<float> values;
  std::vector<std::byte> room;
  for (const Group& group : groups_) {
    for (const OwnedSpan& span : spans_) {
      values.resize(static_cast<std::size_t>(span.count));
      visit({group.name, span.param, span.from, values});
      const Piece there = part_of(group, span);
      room.resize(bytes_with_padding(there));
      const Piece here = placed(there, room.data());
      with_scalar(there.numbers.dtype, [&]<class Scalar>() {
        const auto weights = weights_in<Host, Scalar>(here);
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (&group == &groups_.front()) {
            weights.set(i, static_cast<Accum<Scalar>>(values[i]));
          } else {
            weights.working(i) = static_cast<Scalar>(values[i]);
          }
        }
      });
      copy_piece(here, there, kernels::upload_bytes);
    }
  }
}

std::uint64_t State::fingerprint() const {
  std::uint64_t sum = 0;
  std::vector<std::byte> room;
  for (const OwnedSpan& span : spans_) {
    const Piece piece = on_host(part_of(groups_.front(), span), room);
    with_scalar(piece.numbers.dtype, [&]<class Scalar>() {
      using Bits = std::conditional_t<sizeof(Accum<Scalar>) == 8, std::uint64_t, std::uint32_t>;
      const auto weights = weights_in<Host, Scalar>(piece);
      for (std::int64_t i = 0; i < span.count; ++i) {
        sum += mix(static_cast<std::uint64_t>(span.param->first + span.from + i), std::bit_cast<Bits>(weights(i)));
      }
    });
  }
  return sum;
}

}  // namespace tessera::train
