#include "model/initial_values.hpp"

namespace tessera::model {

InitialValues::InitialValues(std::uint64_t seed, const Param& param) : key_(mix(seed)), std_(param.initial_std) {
  for (const char letter : param.label) key_ = mix(key_ ^ static_cast<unsigned char>(letter));
}

}  // namespace tessera::model
