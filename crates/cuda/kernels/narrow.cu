// Products with a narrow matrix of at most 64 columns, as adapters have them: all of them bound by the one
// wide matrix of tokens that they read or write, with dropout drawn on the way.
#include "narrow_down.cuh"
#include "narrow_up.cuh"
#include "narrow_gradient.cuh"

// Names end in the narrow columns there is room for.
#define EXPORT_DOWN(suffix, T, RANK)                                                                                   \
    extern "C" __global__ void __launch_bounds__(Down<RANK / 8>::THREADS) down_##suffix##_##RANK(                      \
        const T* wide, u64 stride, const T* weight, u32 rank_first, T* narrow, float* partials, u32 rows, u32 depth,   \
        u32 rank, float alpha, const u32* row_ids, const u32* key, u32 site, u32 threshold) {                          \
        down<T, RANK / 8>(wide, stride, weight, rank_first != 0, narrow, partials, rows, depth, rank, alpha,           \
                          Dropping{row_ids, key, site, threshold});                                                    \
    }
#define EXPORT_UP(suffix, T, RANK)                                                                                     \
    extern "C" __global__ void __launch_bounds__(Up<RANK / 16>::THREADS) up_##suffix##_##RANK(                         \
        const T* narrow, const T* weight, u32 rank_first, const T* from, T* to, u64 stride, u32 rows, u32 cols,        \
        u32 rank, u32 block_rows, float alpha, const u32* row_ids, const u32* key, u32 site, u32 threshold) {          \
        up<T, RANK / 16>(narrow, weight, rank_first != 0, from, to, stride, rows, cols, rank, block_rows, alpha,       \
                         Dropping{row_ids, key, site, threshold});                                                     \
    }
#define EXPORT_GRADIENT(suffix, T, RANK)                                                                               \
    extern "C" __global__ void __launch_bounds__(Gradient<RANK / 16>::THREADS) gradient_##suffix##_##RANK(             \
        const T* narrow, const T* wide, u64 stride, void* grad, u32 rank_first, u32 wide_grad, float* partials,        \
        u32 rows, u32 cols, u32 rank, float alpha, const u32* row_ids, const u32* key, u32 site, u32 threshold) {      \
        gradient<T, RANK / 16>(narrow, wide, stride, grad, rank_first != 0, wide_grad != 0, partials, rows, cols,      \
                               rank, alpha, Dropping{row_ids, key, site, threshold});                                  \
    }
#define EXPORT_RANKS(suffix, T)                                                                                        \
    EXPORT_DOWN(suffix, T, 8)                                                                                          \
    EXPORT_DOWN(suffix, T, 16)                                                                                         \
    EXPORT_DOWN(suffix, T, 32)                                                                                         \
    EXPORT_DOWN(suffix, T, 64)                                                                                         \
    EXPORT_UP(suffix, T, 16)                                                                                           \
    EXPORT_UP(suffix, T, 32)                                                                                           \
    EXPORT_UP(suffix, T, 64)                                                                                           \
    EXPORT_GRADIENT(suffix, T, 16)                                                                                     \
    EXPORT_GRADIENT(suffix, T, 32)                                                                                     \
    EXPORT_GRADIENT(suffix, T, 64)
// Defined where tile shapes are compared, to compile many of them soon.
#ifdef NARROW_ONE_RANK
EXPORT_DOWN(bf16, bf16, 16)
EXPORT_UP(bf16, bf16, 16)
EXPORT_GRADIENT(bf16, bf16, 16)
#else
EXPORT_RANKS(bf16, bf16)
EXPORT_RANKS(f16, f16)
#endif
