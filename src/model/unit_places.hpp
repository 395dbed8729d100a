/// Where the model reads the weights of a unit and writes its gradients. Several units may share one place: its
/// contents belong to a unit only while that unit is open (model/hooks.hpp). Pure C++.
#pragma once

#include <vector>

#include "model/params.hpp"

namespace tessera::model {

/// Device addresses of each unit's first element; its tensors follow as in ParamTable.
template <class Scalar, class Grad>
struct UnitPlaces {
  std::vector<const Scalar*> weights;  // [units]
  std::vector<Grad*> grads;            // [units]; empty: forward passes only
};

/// All units at their offsets in flat arrays of `table`; `grads` null: forward passes only.
template <class Scalar, class Grad>
UnitPlaces<Scalar, Grad> places_in(const ParamTable& table, const Scalar* params, Grad* grads) {
  UnitPlaces<Scalar, Grad> places;
  for (const UnitSpan& unit : table.units()) {
    places.weights.push_back(params + unit.first);
    if (grads) places.grads.push_back(grads + unit.first);
  }
  return places;
}

}  // namespace tessera::model
