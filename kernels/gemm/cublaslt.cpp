#include "kernels/gemm/cublaslt.hpp"  // the contract is there; here is how

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kernels/cuda/event.hpp"
#include "kernels/gemm/tool_kernel.hpp"

namespace tessera::kernels::cublaslt {
namespace {

void check(cublasStatus_t status, std::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error("gemm: " + std::string(call.substr(0, call.find('('))) + ": " +
                           cublasLtGetStatusString(status));
}
#define CUBLAS_CHECK(call) check(call, #call)

constexpr int kProposals = 16;              // requested from the library; version 13.1 returns at most 8
constexpr std::size_t kCounterBytes = 256;  // more workspace than the library uses for a counter, which is 4 bytes
constexpr double kSmallTile = 22600;        // elements: 176 x 128, plus what edges waste
constexpr int kRounds = 9;                  // of timing; odd, for the median
constexpr double kWorthLeaving = 0.98;      // share of the heuristic's time that another must undercut to replace it

// --- the kinds of product ------------------------------------------------------------------------------------------

cudaDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp64: return CUDA_R_64F;
    case Dtype::fp32: return CUDA_R_32F;
    case Dtype::bf16: return CUDA_R_16BF;
    case Dtype::fp16: return CUDA_R_16F;
    case Dtype::int32: break;
  }
  throw std::invalid_argument("gemm: integer products are not supported");
}

cublasComputeType_t compute_type(const Kind& kind) {
  if (kind.in == Dtype::fp64) return CUBLAS_COMPUTE_64F;
  return kind.math == GemmMath::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

constexpr std::array<Dtype, 4> kTypes = {Dtype::fp64, Dtype::fp32, Dtype::bf16, Dtype::fp16};
constexpr const char* kMathNames[] = {"full", "tf32"};
constexpr const char* kPlusNames[] = {"nothing", "itself"};
constexpr const char* kLetters[] = {"nn", "nt", "tn", "tt"};

/// "bf16 fp32 full tn 2304 768 2048 + itself aligned 16"; a batch adds "batch 16 rows 64 64 128 steps 8192 8192 16384"
std::string text_of(const Kind& kind) {
  std::ostringstream text;
  text << name_of(kind.in) << ' ' << name_of(kind.out) << ' ' << kMathNames[static_cast<int>(kind.math)] << ' '
       << detail::letters_of(kind.op_a, kind.op_b) << ' ' << kind.m << ' ' << kind.n << ' ' << kind.k << " + "
       << kPlusNames[kind.accumulate ? 1 : 0] << " aligned " << kind.alignment;
  if (kind.batch.count > 0) {
    text << " batch " << kind.batch.count << " rows";
    for (const std::int64_t row : kind.batch.row) text << ' ' << row;
    text << " steps";
    for (const std::int64_t step : kind.batch.step) text << ' ' << step;
  }
  return text.str();
}

template <class Names>
int position(const Names& names, const std::string& word) {
  const auto found = std::find(std::begin(names), std::end(names), word);
  if (found == std::end(names)) throw std::invalid_argument("'" + word + "'");
  return static_cast<int>(found - std::begin(names));
}

/// The inverse of text_of, from the beginning of a line.
Kind kind_of(std::istream& text) {
  std::array<std::string_view, kTypes.size()> types;
  std::transform(kTypes.begin(), kTypes.end(), types.begin(), name_of);
  std::string in, out, math, letters, plus, sign, aligned;
  Kind kind{};
  text >> in >> out >> math >> letters >> kind.m >> kind.n >> kind.k >> sign >> plus >> aligned >> kind.alignment;
  if (!text || sign != "+" || aligned != "aligned") throw std::invalid_argument("not the words of a product");
  kind.in = kTypes[position(types, in)];
  kind.out = kTypes[position(types, out)];
  kind.math = static_cast<GemmMath>(position(kMathNames, math));
  const int ops = position(kLetters, letters);
  kind.op_a = static_cast<Op>(ops / 2);
  kind.op_b = static_cast<Op>(ops % 2);
  kind.accumulate = position(kPlusNames, plus) == 1;
  if ((text >> std::ws).peek() == 'b') {
    std::string batch, rows, steps;
    text >> batch >> kind.batch.count >> rows;
    for (std::int64_t& row : kind.batch.row) text >> row;
    text >> steps;
    for (std::int64_t& step : kind.batch.step) text >> step;
    if (!text || batch != "batch" || rows != "rows" || steps != "steps") throw std::invalid_argument("not a batch");
  }
  return kind;
}

// --- algorithms ----------------------------------------------------------------------------------------------------

struct Algorithm {
  cublasLtMatmulAlgo_t words;  // opaque; may be stored and reused with the same version of the library
  bool has_workspace;          // whether it gets the operands' workspace
};

constexpr std::string_view kNoWorkspace = " without workspace";  // in a stored line; else with one

/// A product without its operands, in the library's terms: its first operand is our b, its second our a.
struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t first, second, result;
  Algorithm algorithm;
};

cublasLtMatrixLayoutOpaque_t layout_of(Dtype dtype, Op op, std::int64_t rows, std::int64_t columns) {
  if (op == Op::transpose) std::swap(rows, columns);
  cublasLtMatrixLayoutOpaque_t layout;  // of op(x) [rows,columns] row-major, seen column-major
  CUBLAS_CHECK(cublasLtMatrixLayoutInit(&layout, data_type(dtype), columns, rows, columns));
  return layout;
}

Plan describe(const Kind& kind) {
  Plan plan{};
  const cudaDataType_t scale_type = kind.in == Dtype::fp64 ? CUDA_R_64F : CUDA_R_32F;
  CUBLAS_CHECK(cublasLtMatmulDescInit(&plan.operation, compute_type(kind), scale_type));
  const auto set_op = [&](cublasLtMatmulDescAttributes_t which, Op op) {
    const cublasOperation_t value = op == Op::transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&plan.operation, which, &value, sizeof(value)));
  };
  set_op(CUBLASLT_MATMUL_DESC_TRANSA, kind.op_b);
  set_op(CUBLASLT_MATMUL_DESC_TRANSB, kind.op_a);
  plan.first = layout_of(kind.in, kind.op_b, kind.k, kind.n);
  plan.second = layout_of(kind.in, kind.op_a, kind.m, kind.k);
  plan.result = layout_of(kind.out, Op::none, kind.m, kind.n);
  if (kind.batch.count > 0) {
    cublasLtMatrixLayoutOpaque_t* const layouts[] = {&plan.second, &plan.first, &plan.result};
    for (int i = 0; i < 3; ++i) {
      const auto set = [&](cublasLtMatrixLayoutAttribute_t which, auto value) {
        CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layouts[i], which, &value, sizeof(value)));
      };
      set(CUBLASLT_MATRIX_LAYOUT_LD, kind.batch.row[i]);
      set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{kind.batch.count});
      set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, kind.batch.step[i]);
    }
  }
  return plan;
}

/// The handle and the table, for the GPU that is current at the first product.
struct Library {
  cublasLtHandle_t handle = nullptr;
  std::string stamp;  // library and GPU: what algorithms depend on
  int multiprocessors = 0;
  int capability = 0;  // 90 for 9.0
  std::map<Kind, Plan> plans;
};
std::unique_ptr<Library> open_library;
GemmSelection selection = GemmSelection::heuristic;

Library& library() {
  if (!open_library) {
    Library fresh;
    CUBLAS_CHECK(cublasLtCreate(&fresh.handle));
    int device = 0;
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    fresh.multiprocessors = properties.multiProcessorCount;
    fresh.capability = 10 * properties.major + properties.minor;
    fresh.stamp = versions() + " on " + properties.name + " with " + std::to_string(properties.multiProcessorCount) +
                  " multiprocessors";
    open_library = std::make_unique<Library>(std::move(fresh));
    Kokkos::push_finalize_hook([] {
      cublasLtDestroy(open_library->handle);
      open_library.reset();
    });
  }
  return *open_library;
}

std::size_t workspace_bytes(const Kind& kind) {
  const bool is_served = kind.batch.count == 0 && (bytes_of(kind.in) == 2 || kind.math == GemmMath::tf32);
  return is_served ? kWorkspaceBytes : 0;
}

/// The value of an attribute of an algorithm.
std::uint32_t attribute(const Algorithm& algorithm, cublasLtMatmulAlgoConfigAttributes_t which, std::size_t bytes = 4) {
  std::uint32_t value = 0;  // little-endian, like the values of 2 and 4 bytes that are read into it
  std::size_t written = 0;
  CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algorithm.words, which, &value, bytes, &written));
  return value;
}

struct Proposal {
  Algorithm algorithm;
  std::size_t workspace;  // what it takes of one [bytes]
  double tiles;           // of the result
};

bool is_split(const Proposal& proposal) { return attribute(proposal.algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1; }

/// Whether a proposal takes at most a counter of the workspace. A product of several waves of tiles takes its tiles
/// from a counter wherever there is a workspace, and the library clears it before the product: as a node of a graph
/// that takes 5 us, 9 us if the graph has several streams.
bool is_lean(const Proposal& proposal) { return proposal.workspace <= kCounterBytes && !is_split(proposal); }

/// What the library proposes for a product with at most `workspace` bytes, best first by its own estimate.
std::vector<Proposal> proposed(const Kind& kind, Plan& plan, std::size_t workspace) {
  cublasLtMatmulPreferenceOpaque_t preference;
  CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(&preference, which, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace});
  for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(operand, static_cast<std::uint32_t>(kind.alignment));
  }
  // Partial sums of a split over k must not be rounded to 16 bits.
  const bool has_narrow_result = bytes_of(kind.out) == 2;
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(has_narrow_result ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                      : CUBLASLT_REDUCTION_SCHEME_MASK));
  std::array<cublasLtMatmulHeuristicResult_t, kProposals> results;
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library().handle, &plan.operation, &plan.first, &plan.second, &plan.result,
                                     &plan.result, &preference, kProposals, results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  CUBLAS_CHECK(status);
  std::vector<Proposal> proposals;
  for (int i = 0; i < found; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    const double tiles = results[i].wavesCount * library().multiprocessors;  // one a multiprocessor is a wave
    proposals.push_back({{results[i].algo, results[i].workspaceSize > 0}, results[i].workspaceSize, tiles});
  }
  return proposals;
}

/// The library's proposals, best first by its own estimate, with two exceptions.
///
/// Those that take at most a counter of the workspace are replaced by what the library proposes when it is offered
/// none. They go first if one of them was the first, else last.
///
/// On Hopper the library prefers tiles of 256x128 and 320x128 elements, which seem not to overlap the write of their
/// results with products; tiles up to 176x128 do. So the first proposal with such a smaller tile is moved to the front,
/// unless the library's first splits the sum over k. Over the 140 products of seven models' layers on an H200, with
/// counters, this took 0.8 % longer than the fastest proposals, the library's own first proposals 5 %.
std::vector<Algorithm> proposals(const Kind& kind, Plan& plan) {
  std::vector<Proposal> found = proposed(kind, plan, workspace_bytes(kind));
  if (found.empty()) throw std::runtime_error("gemm: the library proposes no algorithm for " + text_of(kind));
  const bool splits = is_split(found.front());
  if (workspace_bytes(kind) > 0) {
    if (const std::vector<Proposal> lean = proposed(kind, plan, 0); !lean.empty()) {
      const bool is_first_lean = is_lean(found.front());
      std::erase_if(found, is_lean);
      found.insert(is_first_lean ? found.begin() : found.end(), lean.begin(), lean.end());
    }
  }
  if (library().capability == 90 && bytes_of(kind.in) == 2 && !splits) {
    const auto has_small_tile = [&](const Proposal& proposal) {
      const double results = static_cast<double>(kind.m) * static_cast<double>(kind.n) * std::max(kind.batch.count, 1);
      return results <= kSmallTile * proposal.tiles;
    };
    const auto small =
        std::find_if(found.begin(), found.end(), [&](const Proposal& p) { return has_small_tile(p) && !is_split(p); });
    if (small != found.end()) std::rotate(found.begin(), small, small + 1);
  }
  std::vector<Algorithm> algorithms;
  for (const Proposal& proposal : found) algorithms.push_back(proposal.algorithm);
  return algorithms;
}

/// "id 66 tile 20 stages 36 ...": the attributes of an algorithm in readable form.
std::string attributes_of(const Algorithm& algorithm) {
  std::ostringstream text;
  const auto add = [&](const char* name, cublasLtMatmulAlgoConfigAttributes_t which, std::size_t bytes = 4) {
    text << name << ' ' << attribute(algorithm, which, bytes) << ' ';
  };
  add("id", CUBLASLT_ALGO_CONFIG_ID);
  add("tile", CUBLASLT_ALGO_CONFIG_TILE_ID);
  add("stages", CUBLASLT_ALGO_CONFIG_STAGES_ID);
  add("cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2);
  add("split_k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  add("reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  add("swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
  add("custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
  std::string line = text.str();
  line.pop_back();
  return line;
}

void run(const Kokkos::Cuda& exec, const Kind& kind, Plan& plan, const Operands& x) {
  const double wide_factor = x.factor, wide_beta = kind.accumulate ? 1 : 0;
  const float factor = static_cast<float>(wide_factor), beta = static_cast<float>(wide_beta);
  const bool is_wide = kind.in == Dtype::fp64;
  CUBLAS_CHECK(cublasLtMatmul(library().handle, &plan.operation,
                              is_wide ? static_cast<const void*>(&wide_factor) : &factor,  //
                              x.b, &plan.first, x.a, &plan.second,
                              is_wide ? static_cast<const void*>(&wide_beta) : &beta, x.before, &plan.result, x.c,
                              &plan.result, &plan.algorithm.words, x.workspace,
                              plan.algorithm.has_workspace ? workspace_bytes(kind) : 0, exec.cuda_stream()));
}

// --- selection by time ---------------------------------------------------------------------------------------------

/// Device memory for the duration of a selection.
class Temporary {
 public:
  explicit Temporary(std::size_t bytes) { cuda::check(cudaMalloc(&data_, bytes), "gemm: memory to time products in"); }
  ~Temporary() { cudaFree(data_); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// The proposal with the smallest median time, caches flushed before each run. Results are written to separate memory,
/// so that the caller's c stays unchanged.
Algorithm fastest(const Kokkos::Cuda& exec, const Kind& kind, Plan plan, Operands operands) {
  cudaStream_t stream = exec.cuda_stream();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) {
    throw std::runtime_error(
        "gemm: " + text_of(kind) +
        " occurs first inside a graph capture and cannot be timed there: run the step once before capturing it");
  }
  const std::vector<Algorithm> rivals = proposals(kind, plan);
  if (rivals.size() == 1) return rivals.front();

  const Temporary result(static_cast<std::size_t>(kind.m * kind.n) * bytes_of(kind.out)), flush(kGemmFlushBytes);
  operands.c = result.data();
  const cuda::Event begin, end;
  std::vector<std::vector<float>> times(rivals.size());
  for (int round = -1; round < kRounds; ++round) {  // round -1 loads the kernels and is not counted
    for (std::size_t i = 0; i < rivals.size(); ++i) {
      plan.algorithm = rivals[i];
      CUDA_CHECK(cudaMemsetAsync(flush.data(), 0, kGemmFlushBytes, stream));
      CUDA_CHECK(cudaEventRecord(begin, stream));
      run(exec, kind, plan, operands);
      CUDA_CHECK(cudaEventRecord(end, stream));
      CUDA_CHECK(cudaEventSynchronize(end));
      const float milliseconds = end.milliseconds_since(begin);
      if (round >= 0) times[i].push_back(milliseconds);
    }
  }
  const auto median = [](std::vector<float>& list) {
    std::nth_element(list.begin(), list.begin() + kRounds / 2, list.end());
    return list[kRounds / 2];
  };
  std::vector<float> medians(rivals.size());
  std::transform(times.begin(), times.end(), medians.begin(), median);
  const std::size_t best = std::min_element(medians.begin(), medians.end()) - medians.begin();
  return rivals[medians[best] < kWorthLeaving * medians.front() ? best : 0];
}

/// The plan of a kind, made at its first product.
Plan& plan_of(const Kokkos::Cuda& exec, const Kind& kind, const Operands& operands) {
  std::map<Kind, Plan>& plans = library().plans;
  if (const auto found = plans.find(kind); found != plans.end()) return found->second;
  Plan plan = describe(kind);
  const bool is_timed = selection == GemmSelection::timed && kind.batch.count == 0;
  plan.algorithm = is_timed ? fastest(exec, kind, plan, operands) : proposals(kind, plan).front();
  return plans.emplace(kind, plan).first->second;
}

}  // namespace

template <class Exec>
void multiply(const Exec& exec, const Kind& kind, const Operands& operands) {
  Plan& plan = plan_of(exec, kind, operands);
  const detail::ToolKernel watched(exec, operands.label ? operands.label : detail::product_label(kind.op_a, kind.op_b),
                                   "cublaslt");
  run(exec, kind, plan, operands);
}
template void multiply(const Kokkos::Cuda& exec, const Kind& kind, const Operands& operands);

GemmSelection set_selection(GemmSelection wanted) { return std::exchange(selection, wanted); }

std::vector<std::string> algorithms() {
  if (!open_library || open_library->plans.empty()) return {};
  std::vector<std::string> lines = {open_library->stamp};
  for (const auto& [kind, plan] : open_library->plans) {
    std::string line = text_of(kind) + " :";
    for (const std::uint64_t word : plan.algorithm.words.data) {
      char digits[18];
      std::snprintf(digits, sizeof(digits), " %016" PRIx64, word);
      line += digits;
    }
    if (!plan.algorithm.has_workspace) line += kNoWorkspace;
    lines.push_back(line + " # " + attributes_of(plan.algorithm));
  }
  return lines;
}

void set_algorithms(const std::vector<std::string>& lines) {
  if (lines.empty() && !open_library) return;
  if (!lines.empty() && lines.front() != library().stamp) {
    throw std::runtime_error("gemm: the algorithms were chosen with " + lines.front() + ", and this is " +
                             library().stamp + ": leave them out, and let this one choose its own");
  }
  std::map<Kind, Plan> plans;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    std::istringstream text(lines[i]);
    Kind kind;
    Algorithm algorithm;
    try {
      kind = kind_of(text);
      std::string colon;
      text >> colon >> std::hex;
      for (std::uint64_t& word : algorithm.words.data) text >> word;
      const bool has_words = !text.fail();
      std::string rest;
      algorithm.has_workspace = !(std::getline(text, rest) && rest.starts_with(kNoWorkspace));
      if (colon != ":" || !has_words) throw std::invalid_argument("not the digits of an algorithm");
    } catch (const std::invalid_argument& fault) {
      throw std::invalid_argument("gemm: cannot read the algorithm '" + lines[i] + "': " + fault.what());
    }
    Plan plan = describe(kind);
    plan.algorithm = algorithm;
    cublasLtMatmulHeuristicResult_t result;
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(library().handle, &plan.operation, &plan.first, &plan.second,
                                                          &plan.result, &plan.result, &plan.algorithm.words, &result);
    // Of one that was proposed without a workspace the check still counts a counter, which it then does without.
    const std::size_t available = std::max(workspace_bytes(kind), kCounterBytes);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > available) {
      throw std::runtime_error("gemm: this library and GPU cannot run the algorithm '" + lines[i] +
                               "': " + cublasLtGetStatusString(status));
    }
    plans.emplace(kind, plan);
  }
  library().plans = std::move(plans);
}

std::string versions() {
  const std::size_t number = cublasLtGetVersion();  // 130100 for 13.1.0
  return "cuBLASLt " + std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

}  // namespace tessera::kernels::cublaslt
