// The weight type that a kernel is compiled for: define WEIGHT_TYPE as one of the names of weights.cuh and weights_k.cuh.

#include "weights_k.cuh"

using Weight = WEIGHT_TYPE;
