// Flash attention on tensor cores for one storage type (ATTENTION_TYPE) and one head dim (HEAD_DIM), where scores are
// plain and causal and rows are fused.
//
// On Hopper, blocks stay and go from item to item, and a third warpgroup fetches (attention_pipeline.cuh). The gradients
// of queries and of keys are two kernels: each sums in a fixed order without atomics, at the price of computing the scores
// twice.
#pragma once

#include "attention_tiles.cuh"

#if ATTENTION_WGMMA
#include "attention_hopper_forward.cuh"
#include "attention_hopper_gradient.cuh"
#else
#include "attention_forward.cuh"
#include "attention_gradient_queries.cuh"
#endif
#include "attention_gradient_keys.cuh"
