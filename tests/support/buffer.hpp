/// Device memory for one tensor of a test, filled from the host and read back.
#pragma once

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "kernels/core/byte_copies.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::test {

using kernels::Device;
using kernels::download_bytes;
using kernels::upload_bytes;

/// Without the type of the elements, so that Kokkos' code for it is compiled once, and not initialised: constructing
/// and destroying elements would launch kernels, and tests count launches.
using DeviceBytes = Kokkos::View<unsigned char*, Device::memory_space>;
DeviceBytes allocate_bytes(std::size_t bytes);

template <class Element>
class Buffer {
 public:
  /// n elements that read as NaN (numbers) or -1 (integers) until a kernel writes them: missing writes show.
  static Buffer unwritten(std::size_t n) {
    if constexpr (std::is_integral_v<Element>) return Buffer(std::vector<Element>(n, Element(-1)));
    return Buffer(std::vector<double>(n, std::nan("")));
  }
  static Buffer zeros(std::size_t n) { return Buffer(std::vector<Element>(n)); }

  explicit Buffer(const std::vector<Element>& values)
      : size_(values.size()), bytes_(allocate_bytes(size_ * sizeof(Element))) {
    upload(values);
  }

  /// From double, rounded to Element.
  template <class From = double, class = std::enable_if_t<!std::is_same_v<From, Element>>>
  explicit Buffer(const std::vector<From>& values)
      : size_(values.size()), bytes_(allocate_bytes(size_ * sizeof(Element))) {
    std::vector<Element> rounded(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), [](From v) { return static_cast<Element>(v); });
    upload(rounded);
  }

  /// As many as it has.
  void upload(const std::vector<Element>& values) const {
    if (values.size() != size_) throw std::logic_error("buffer: an upload of another length");
    upload_bytes(values.data(), bytes_.data(), values.size() * sizeof(Element));
  }

  Element* data() const { return reinterpret_cast<Element*>(bytes_.data()); }
  std::size_t size() const { return size_; }
  using Value = kernels::Value<Element, Device>;
  using Vector = kernels::Vector<Element, Device>;
  using Matrix = kernels::Matrix<Element, Device>;
  using HeadRows = kernels::HeadRows<Element, Device>;

  Value value() const { return Value(data()); }
  Vector vector() const { return Vector(data(), size_); }
  Vector first(int n) const { return Vector(data(), n); }
  Matrix matrix(int rows, int columns) const { return Matrix(data(), rows, columns); }
  HeadRows head_rows(int B, int H, int T) const { return HeadRows(data(), B, H, T); }
  kernels::HeadTensor<Element, Device> heads(int B, int H, int T, int D) const {
    return kernels::contiguous_heads<Device>(data(), B, H, T, D);
  }

  std::vector<Element> elements() const {
    std::vector<Element> host(size_);
    download_bytes(bytes_.data(), host.data(), size_ * sizeof(Element));
    return host;
  }
  std::vector<double> values() const {
    const std::vector<Element> stored = elements();
    std::vector<double> result(stored.size());
    std::transform(stored.begin(), stored.end(), result.begin(), [](Element e) { return static_cast<double>(e); });
    return result;
  }

 private:
  std::size_t size_;
  DeviceBytes bytes_;
};

/// Whether two results are the same bit for bit (so -0 differs from 0, and a NaN equals itself).
template <class Element>
bool same_bits(const std::vector<Element>& a, const std::vector<Element>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0);
}

}  // namespace tessera::test
