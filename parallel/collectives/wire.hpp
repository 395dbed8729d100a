/// Gradients that cross the network in fewer bits than they are stored in.
#pragma once

#include <stdexcept>

#include "kernels/core/cast_copy.hpp"
#include "parallel/collectives/collective.hpp"

namespace tessera::parallel {

/// A span of gradients and its form on the network: the span itself, or a copy of it, fp32 as bf16.
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
    kernels::CastCopy<kernels::Device, float, bfloat16>{.from = numbers<const float>(span_),
                                                        .to = numbers<bfloat16>(wire_)}
        .launch(exec);
  }

  /// Widens the message back into the gradients, or its elements from `first` on into `to`, enqueued on `exec`.
  void widen(const kernels::Device& exec) const { widen(exec, 0, span_); }
  void widen(const kernels::Device& exec, std::int64_t first, const Span& to) const {
    if (!is_narrow()) return;
    kernels::CastCopy<kernels::Device, bfloat16, float>{.from = numbers<const bfloat16>(wire_.part(first, to.count)),
                                                        .to = numbers<float>(to)}
        .launch(exec);
  }

 private:
  template <class Number>
  static kernels::Vector<Number, kernels::Device> numbers(const Span& span) {
    return kernels::Vector<Number, kernels::Device>(static_cast<Number*>(span.data), span.count);
  }

  Span span_, wire_;
};

}  // namespace tessera::parallel
