/// The scalar types of kernels/core/scalar.hpp at run time, for tables, layouts and collectives. Pure C++.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class Dtype : std::uint8_t { fp64, fp32, bf16, fp16, int32 };

constexpr std::int64_t bytes_of(Dtype dtype) {
  return dtype == Dtype::fp64 ? 8 : dtype == Dtype::bf16 || dtype == Dtype::fp16 ? 2 : 4;
}
constexpr std::string_view name_of(Dtype dtype) {
  constexpr std::string_view names[] = {"fp64", "fp32", "bf16", "fp16", "int32"};
  return names[static_cast<int>(dtype)];
}

}  // namespace tessera
