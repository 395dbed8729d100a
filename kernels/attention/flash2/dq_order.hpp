/// The order of additions to d_q, common to the interfaces of the tensor-core backward kernels.
#pragma once

namespace tessera::kernels {

/// fixed: always the same order, so that repeats agree bit for bit; any: the order of arrival.
enum class DqOrder { fixed, any };

}  // namespace tessera::kernels
