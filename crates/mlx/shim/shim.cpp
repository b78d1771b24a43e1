// One translation unit: MLX's headers are parsed once.
#include "core.cpp"
#include "eval.cpp"
#include "math.cpp"
#include "neural.cpp"
#include "operations.cpp"
