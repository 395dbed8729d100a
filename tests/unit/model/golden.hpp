/// tests/golden/model.h5: a small transformer, computed in float64 by an independent implementation.
#pragma once

#include <string>
#include <vector>

#include "io/h5.hpp"
#include "model/params.hpp"

namespace tessera::test {

struct Golden {
  io::h5::File file = io::h5::File::open(TESSERA_SOURCE_DIR "/tests/golden/model.h5");
  model::Shape shape{file.integer("vocab_size"), file.integer("context_length"), file.integer("d_model"),
                     file.integer("num_layers"), file.integer("num_heads"),      file.integer("d_ff"),
                     file.number("rope_theta"),  file.number("norm_eps")};
  model::ParamTable table{shape};
  std::vector<int> tokens = file.dataset("tokens").values<std::int32_t>();  // [B,T+1]
  int B = static_cast<int>(file.dataset("tokens").shape()[0]);
  int T = static_cast<int>(shape.T);

  std::vector<double> values(const std::string& path) const { return file.dataset(path).values<double>(); }

  /// The tensors "<group>/<label>" as one flat array, padding zero.
  std::vector<double> flat(const std::string& group) const {
    std::vector<double> all(table.flat_count(), 0.0);
    for (const model::Param& param : table.params()) {
      const std::vector<double> tensor = values(group + "/" + param.label);
      std::copy(tensor.begin(), tensor.end(), all.begin() + param.first);
    }
    return all;
  }
};

}  // namespace tessera::test
