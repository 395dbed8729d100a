#include "kernels/attention/attention.hpp"

#include "kernels/attention/flash2/backward.hpp"
#include "kernels/attention/flash2/forward.hpp"
#include "kernels/attention/standard/standard.hpp"
#include "kernels/core/instantiate.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void Attention<Exec, Scalar>::forward(const Exec& exec) const {
  switch (kind) {
    case AttentionKind::standard:
      return StandardForward<Exec, Scalar>{q, k, v, out, lse, probabilities, scale, causal}.launch(exec);
    case AttentionKind::flash2: return Flash2Forward<Exec, Scalar>{q, k, v, out, lse, scale, causal}.launch(exec);
  }
}

template <class Exec, class Scalar>
void Attention<Exec, Scalar>::backward(const Exec& exec, const Gradients& g) const {
  switch (kind) {
    case AttentionKind::standard:
      return StandardBackward<Exec, Scalar>{q, k, v, g.d_out, probabilities, g.d_scores, g.d_q, g.d_k, g.d_v, scale}
          .launch(exec);
    case AttentionKind::flash2:
      return Flash2Backward<Exec, Scalar>{q, k, v, out, lse, g.d_out, g.d_q, g.d_k, g.d_v, scale, causal}.launch(exec);
  }
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct Attention<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
