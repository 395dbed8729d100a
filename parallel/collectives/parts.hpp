/// Common to the libraries' transfers: spans of equal parts, one for each rank, sums of them, and spans in fewer bits.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "kernels/core/cast_copy.hpp"
#include "kernels/core/sum_parts.hpp"
#include "parallel/collectives/collective.hpp"

namespace tessera::parallel {

/// Elements of each part of `whole`. `what` names the transfer in the message.
/// Throws  std::invalid_argument if the parts cannot be equal.
inline std::int64_t part_count(const std::string& what, const Span& whole, int ranks) {
  if (whole.count % ranks == 0) return whole.count / ranks;
  throw std::invalid_argument(what + ": its " + std::to_string(whole.count) +
                              " elements cannot be divided into parts for " + std::to_string(ranks) + " ranks");
}

/// Throws  std::invalid_argument if `part` has not the dtype and the length of a part of `whole`.
inline void require_part(const std::string& what, const Span& part, const Span& whole, int ranks) {
  if (part.dtype == whole.dtype && part.count * ranks == whole.count) return;
  throw std::invalid_argument(what + ": its part must be one of " + std::to_string(ranks) + " equal ones of the whole");
}

inline bool overlap(const Span& one, const Span& other) {
  const auto first = reinterpret_cast<std::uintptr_t>(one.data), second = reinterpret_cast<std::uintptr_t>(other.data);
  return first + one.bytes() > second && second + other.bytes() > first;
}

/// Where a reduce-scatter of `whole` leaves this rank's sum: `part`, or if that is empty its own place in `whole`.
/// Throws  std::invalid_argument if `part` is not like a part of `whole`, or overlaps it.
inline Span sum_place(const std::string& what, const Span& part, const Span& whole, int rank, int ranks) {
  const std::int64_t count = part_count(what, whole, ranks);
  if (part.count == 0) return whole.part(rank * count, count);
  require_part(what, part, whole, ranks);
  if (overlap(part, whole)) throw std::invalid_argument(what + ": its sum must lie outside the whole");
  return part;
}

/// Enqueues the sum of at most kernels::SumParts::kMaxParts arrays, in this order; `out` may be one of them. `squares`:
/// null, or room for the squares of `out` (squares.hpp). `copies`: further places for the sum, each as long as `out`;
/// they may be among the parts.
/// Throws  std::invalid_argument if its dtype cannot be summed.
inline void sum_parts(const kernels::Device& exec, std::span<const void* const> parts, const Span& out,
                      double* squares = nullptr, std::span<void* const> copies = {}) {
  const auto sum_as = [&](auto zero) {
    using Number = decltype(zero);
    kernels::SumParts<kernels::Device, Number> sum;
    for (std::size_t i = 0; i < parts.size(); ++i) sum.part[i] = static_cast<const Number*>(parts[i]);
    sum.parts = static_cast<int>(parts.size());
    for (void* copy : copies) sum.copies[sum.copy_count++] = static_cast<Number*>(copy);
    sum.out = out.as<Number>();
    if (squares) {
      const std::int64_t blocks = kernels::ceil_div(out.count, sum.kSquaresBlock);
      sum.squares = kernels::Vector<double, kernels::Device>(squares, static_cast<std::size_t>(blocks));
    }
    sum.launch(exec);
  };
  switch (out.dtype) {
    case Dtype::fp64: return sum_as(double{});
    case Dtype::fp32: return sum_as(float{});
    case Dtype::bf16: return sum_as(bfloat16{});
    case Dtype::fp16: return sum_as(float16{});
    case Dtype::int32: break;
  }
  throw std::invalid_argument("sum of " + out.label + ": " + std::string(name_of(out.dtype)) + " cannot be summed");
}

/// A span of gradients and its form on the network: the span itself or, in fewer bits, a copy of it, fp32 as bf16.
class Wire {
 public:
  /// `wire`: empty, or as many elements as the span. `what` names the transfer in the message.
  /// Throws  std::invalid_argument for other dtypes or lengths.
  Wire(const std::string& what, const Span& span, const Span& wire) : span_(span), wire_(wire) {
    if (!is_narrow()) return;
    if (span.dtype != Dtype::fp32 || wire.dtype != Dtype::bf16 || wire.count != span.count) {
      throw std::invalid_argument(what + ": crosses the network as fp32 in bf16 of the same length only");
    }
  }

  bool is_narrow() const { return wire_.count != 0; }
  const Span& message() const { return is_narrow() ? wire_ : span_; }  // what crosses the network

  /// Rounds the gradients into the message, enqueued on `exec`.
  void narrow(const kernels::Device& exec) const {
    if (!is_narrow()) return;
    kernels::CastCopy<kernels::Device, float, bfloat16>{.from = span_.as<const float>(), .to = wire_.as<bfloat16>()}
        .launch(exec);
  }

  /// Widens the message back into the gradients, or its elements from `first` on into `to`, enqueued on `exec`.
  void widen(const kernels::Device& exec) const { widen(exec, 0, span_); }
  void widen(const kernels::Device& exec, std::int64_t first, const Span& to) const {
    if (!is_narrow()) return;
    kernels::CastCopy<kernels::Device, bfloat16, float>{.from = wire_.part(first, to.count).as<const bfloat16>(),
                                                        .to = to.as<float>()}
        .launch(exec);
  }

 private:
  Span span_, wire_;
};

}  // namespace tessera::parallel
