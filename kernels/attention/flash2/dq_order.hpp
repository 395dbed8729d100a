/// What the tensor-core backward kernels have in common in their interfaces.
#pragma once

namespace tessera::kernels {

/// In which order the shares of d_q are added: the same every time, so that repeats agree bit for bit, or as they come.
enum class DqOrder { fixed, any };

}  // namespace tessera::kernels
