#include "kernels/core/profiler.hpp"  // the contract is there; here is how on CUDA: ranges of NVTX's domain "tessera"

#include <nvtx3/nvToolsExt.h>

#include <Kokkos_Core.hpp>

namespace tessera::kernels {
namespace {

class Nvtx final : public ranges::Sink {
 public:
  explicit Nvtx(nvtxDomainHandle_t domain) : domain_(domain) {}

  void push(const char* label) override {
    nvtxEventAttributes_t range{};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = label;
    nvtxDomainRangePushEx(domain_, &range);
  }
  void pop() override { nvtxDomainRangePop(domain_); }

 private:
  nvtxDomainHandle_t domain_;
};

}  // namespace

/// The first call of NVTX loads the tool that NVTX_INJECTION64_PATH names, as profilers set it; without a tool every
/// call is empty, and there is no domain.
ranges::Sink* listening_profiler() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("tessera");
  static Nvtx sink(domain);
  return domain ? &sink : nullptr;
}

}  // namespace tessera::kernels
