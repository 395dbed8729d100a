/// The rules of weight_update.hpp, and the enumerators by which the program names them: X(enumerator, rule).
#pragma once

#include "kernels/adamw.hpp"
#include "kernels/lion.hpp"

#define TESSERA_FOR_EACH_OPTIMIZER(X) X(adamw, Adamw) X(lion, Lion)
