/// The only list of optimizers: X(word of optimizer.kind, rule of weight_update.hpp).
#pragma once

#include "kernels/adamw.hpp"
#include "kernels/lion.hpp"

#define TESSERA_FOR_EACH_OPTIMIZER(X) X(adamw, Adamw) X(lion, Lion)
