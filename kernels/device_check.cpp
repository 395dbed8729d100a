#include "kernels/device_check.hpp"  // the contract is there; here is how

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <sstream>
#include <type_traits>

#include "kernels/core/byte_copies.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/stream_timer.hpp"
#include "kernels/cuda/target.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/head_product.hpp"

namespace tessera::kernels {
namespace {

constexpr bool kOnHost = kIsHost<Device>;
constexpr int kPeriod = 61;  // p; a prime, so that no two tiles are alike
constexpr int kRows = kOnHost ? 64 : 2048, kColumns = kOnHost ? 128 : 4096;
constexpr int kInner = (kOnHost ? 2 : 8) * kPeriod;
constexpr int kRepeats = kOnHost ? 2 : 4;
constexpr std::size_t kCopiedBytes = kOnHost ? 0 : std::size_t{256} << 20;  // larger than any L2 cache so far
constexpr int kCopies = 6;

using Table = std::array<float, kPeriod>;

/// out[i,j] = values[(row_step i + j) mod p]
template <class Exec, class Scalar>
struct Circulant {
  Vector<const float, Exec> values;  // [p]     in
  int row_step;                      // p - 1 is -1
  Matrix<Scalar, Exec> out;          // [M,N]   out

  using Policy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;
  void launch(const Exec& exec) const {
    Kokkos::parallel_for("tessera::device_check::circulant", Policy(exec, 0, out.size()), *this);
  }
  KOKKOS_FUNCTION void operator()(std::int64_t entry) const {
    const std::int64_t columns = out.extent(1), i = entry / columns, j = entry % columns;
    out(i, j) = static_cast<Scalar>(values((row_step * i + j) % kPeriod));
  }
};

KOKKOS_FUNCTION bool differs(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) != std::bit_cast<std::uint32_t>(b);
}

struct CountDifferent {
  Matrix<const float, Device> made, expected;  // [M,N]  in

  KOKKOS_FUNCTION void operator()(std::int64_t entry, std::int64_t& count) const {
    count += differs(made.data()[entry], expected.data()[entry]);
  }
};

struct FirstDifferent {
  Matrix<const float, Device> made, expected;  // [M,N]  in

  KOKKOS_FUNCTION void operator()(std::int64_t entry, std::int64_t& first) const {
    if (entry < first && differs(made.data()[entry], expected.data()[entry])) first = entry;
  }
};

/// Slices of one allocation.
class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : bytes_(Kokkos::view_alloc("tessera::device_check", Kokkos::WithoutInitializing), bytes) {}

  template <class Scalar>
  Vector<Scalar, Device> take(std::size_t count) {
    constexpr std::size_t kAlignment = 256;
    const std::size_t begin = taken_;
    taken_ = round_up(begin + count * sizeof(Scalar), kAlignment);
    TESSERA_REQUIRE(taken_ <= bytes_.extent(0), "device check: its memory is too small", taken_, bytes_.extent(0));
    return Vector<Scalar, Device>(reinterpret_cast<Scalar*>(bytes_.data() + begin), count);
  }
  template <class Scalar>
  Matrix<Scalar, Device> take(std::size_t rows, std::size_t columns) {
    return Matrix<Scalar, Device>(take<Scalar>(rows * columns).data(), rows, columns);
  }
  void clear() { taken_ = 0; }

 private:
  Kokkos::View<unsigned char*, Device> bytes_;
  std::size_t taken_ = 0;
};

std::size_t bytes_needed() {
  const std::size_t operands = std::size_t{kInner} * (kRows + kColumns), results = std::size_t{2} * kRows * kColumns;
  const std::size_t workspace = gemm_workspace<bfloat16, float>(kHere, kRows, kColumns, kInner);
  constexpr std::size_t kTables = 4096, kPadding = 4096;
  return std::max(2 * kCopiedBytes, sizeof(float) * (operands + results + workspace) + kTables + kPadding);
}

/// f and g: integers from -15 to 15, or fractions of them, with as many bits as a bf16 holds.
struct Pair {
  Table f, g;
};
Pair pair_of(bool is_exact) {
  Pair pair;
  for (int s = 0; s < kPeriod; ++s) {
    pair.f[s] = static_cast<float>((7 * s * s + 3 * s) % 31 - 15);
    pair.g[s] = static_cast<float>((11 * s * s + 5 * s + 1) % 31 - 15);
    if (is_exact) continue;
    pair.f[s] = static_cast<float>(bfloat16(pair.f[s] / 19));
    pair.g[s] = static_cast<float>(bfloat16(pair.g[s] / 23));
  }
  return pair;
}

Table exact_sums(const Pair& pair) {
  Table sums{};
  for (int difference = 0; difference < kPeriod; ++difference) {
    double sum = 0;
    for (int s = 0; s < kPeriod; ++s) sum += double{pair.f[s]} * pair.g[(s + difference) % kPeriod];
    sums[difference] = static_cast<float>(kInner / kPeriod * sum);
  }
  return sums;
}

template <class Scalar>
void fill(const Device& exec, Memory& memory, const Table& values, int row_step, Matrix<Scalar, Device> out) {
  const Vector<float, Device> table = memory.take<float>(kPeriod);
  upload_bytes(values.data(), table.data(), sizeof values);
  Circulant<Device, Scalar>{table, row_step, out}.launch(exec);
}

template <class Scalar>
struct Product {
  static constexpr const char* kName = std::is_same_v<Scalar, float> ? "head product of fp32" : "gemm of bf16";
  Matrix<Scalar, Device> a, b;  // [M,K], [K,N]  in
  Matrix<float, Device> c;      // [M,N]  out
  Vector<float, Device> workspace;

  void launch(const Device& exec) const {
    if constexpr (std::is_same_v<Scalar, float>) {
      const auto one_head = [](const auto& x) {
        using Element = typename std::decay_t<decltype(x)>::value_type;
        return contiguous_heads<Device, Element>(x.data(), 1, 1, x.extent_int(0), x.extent_int(1));
      };
      HeadProduct<Device, float>{"tessera::device_check::head_product", one_head(a), one_head(b), one_head(c), 1}
          .launch(exec);
    } else {
      Gemm<Device, Scalar, float>{
          .a = a, .op_a = Op::none, .b = b, .op_b = Op::none, .c = c, .accumulate = false, .workspace = workspace}
          .launch(exec);
    }
  }
};

float entry_of(const Matrix<float, Device>& matrix, std::int64_t entry) {
  float value = 0;
  download_bytes(matrix.data() + entry, &value, sizeof value);
  return value;
}

/// What is wrong with the products of a kind; "" if nothing is.
template <class Scalar>
std::string fault_of_products(const Device& exec, Memory& memory, bool is_exact) {
  memory.clear();
  const Product<Scalar> product{
      .a = memory.take<Scalar>(kRows, kInner),
      .b = memory.take<Scalar>(kInner, kColumns),
      .c = memory.take<float>(kRows, kColumns),
      .workspace = memory.take<float>(gemm_workspace<bfloat16, float>(kHere, kRows, kColumns, kInner))};
  const Matrix<float, Device> expected = memory.take<float>(kRows, kColumns);
  const Pair pair = pair_of(is_exact);
  fill(exec, memory, pair.f, 1, product.a);
  fill(exec, memory, pair.g, 1, product.b);
  if (is_exact) {
    fill(exec, memory, exact_sums(pair), kPeriod - 1, expected);
  } else {
    product.launch(exec);
    copy_bytes(exec, product.c.data(), expected.data(), sizeof(float) * expected.size());
  }
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    clear_bytes(exec, product.c.data(), sizeof(float) * product.c.size());
    product.launch(exec);
    const auto [count, first] = different_bits(exec, product.c, expected);
    if (count == 0) continue;
    std::ostringstream text;
    text.precision(9);
    text << Product<Scalar>::kName << ": " << count << " of " << product.c.size() << " sums "
         << (is_exact ? "are wrong" : "changed from one product to the next") << ", the first at [" << first / kColumns
         << ',' << first % kColumns << "]: " << entry_of(product.c, first) << " instead of "
         << entry_of(expected, first);
    return text.str();
  }
  return "";
}

/// The fastest of some copies: what else runs on the GPU slows down the others.
double bandwidth(const Device& exec, Memory& memory) {
  memory.clear();
  const auto from = memory.take<unsigned char>(kCopiedBytes), to = memory.take<unsigned char>(kCopiedBytes);
  clear_bytes(exec, from.data(), kCopiedBytes);
  StreamTimer timer(kCopies + 1);
  timer.mark(exec, 0);
  for (int copy = 0; copy < kCopies; ++copy) {
    copy_bytes(exec, from.data(), to.data(), kCopiedBytes);
    timer.mark(exec, copy + 1);
  }
  double least_s = timer.seconds(0, 1);
  for (int copy = 1; copy < kCopies; ++copy) least_s = std::min(least_s, timer.seconds(copy, copy + 1));
  return 2e-9 * kCopiedBytes / least_s;
}

}  // namespace

DifferentBits different_bits(const Device& exec, Matrix<const float, Device> made,
                             Matrix<const float, Device> expected) {
  require_shape("different bits: the matrices must have one shape", made, expected.extent(0), expected.extent(1));
  const Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>> entries(exec, 0, made.size());
  DifferentBits found{};
  Kokkos::parallel_reduce("tessera::device_check::count", entries, CountDifferent{made, expected}, found.count);
  if (found.count > 0) {
    Kokkos::parallel_reduce("tessera::device_check::first", entries, FirstDifferent{made, expected},
                            Kokkos::Min<std::int64_t>(found.first));
  }
  return found;
}

DeviceCheck check_device() {
  const auto start = std::chrono::steady_clock::now();
  const Device exec;
  Memory memory(bytes_needed());
  DeviceCheck found;
  for (const bool is_exact : {true, false}) {
    if (found.wrong.empty()) found.wrong = fault_of_products<bfloat16>(exec, memory, is_exact);
    if (found.wrong.empty()) found.wrong = fault_of_products<float>(exec, memory, is_exact);
  }
  if constexpr (!kOnHost) found.gbyte_per_s = bandwidth(exec, memory);
  set_gemm_algorithms({});
  found.took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return found;
}

}  // namespace tessera::kernels
