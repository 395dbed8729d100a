/// Where the model finds the weights of a unit and leaves its gradients. Units may take turns in one place: what lies
/// there is a unit's own only while it is open (model/hooks.hpp). Pure C++.
#pragma once

#include <vector>

#include "model/params.hpp"

namespace tessera::model {

/// Addresses of each unit's first element, on the device; its tensors lie behind it as in ParamTable.
template <class Scalar, class Grad>
struct UnitPlaces {
  std::vector<const Scalar*> weights;  // [units]
  std::vector<Grad*> grads;            // [units]; empty: for forward passes only
};

/// All units at their place in flat arrays of `table`; `grads` null: for forward passes only.
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
