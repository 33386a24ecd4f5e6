// The gated activation with adapters of small rank, on tensor cores.
#include "gated_adapters.cuh"
GATED_CURVES(f16, f16)
