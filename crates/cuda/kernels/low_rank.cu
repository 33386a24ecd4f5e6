// Products with a low-rank matrix of at most 64 columns, as adapters have them: all of them bound by the one
// wide matrix of tokens that they read or write, with dropout drawn on the way.
#include "low_rank_down.cuh"
#include "low_rank_up.cuh"
#include "low_rank_gradient.cuh"
#include "low_rank_both.cuh"

// Names end in the low-rank columns there is room for.
#define EXPORT_DOWN(suffix, T, RANK)                                                                                   \
    extern "C" __global__ void __launch_bounds__(Down<RANK / 8>::THREADS) down_##suffix##_##RANK(                      \
        const T* wide, u64 stride, const T* weight, T* low_rank, float* partials, u32 rows, u32 depth, u32 rank,         \
        float alpha, const u32* row_ids, const u32* key, u32 site, u32 threshold) {                                    \
        wait_for_previous_kernel();                                                                                    \
        down<T, RANK / 8>(wide, stride, weight, low_rank, partials, rows, depth, rank, alpha,                            \
                          Dropping{row_ids, key, site, threshold});                                                    \
    }
#define EXPORT_UP(suffix, T, RANK)                                                                                     \
    extern "C" __global__ void __launch_bounds__(Up<RANK / 16>::THREADS) up_##suffix##_##RANK(                         \
        const T* low_rank, const T* weight, const T* from, T* to, u64 stride, u32 rows, u32 cols, u32 rank,              \
        u32 block_rows, float alpha, const u32* row_ids, const u32* key, u32 site, u32 threshold) {                    \
        wait_for_previous_kernel();                                                                                    \
        up<T, RANK / 16>(low_rank, rank, weight, true, from, to, stride, blockIdx.x, rows, cols, rank, block_rows,       \
                         alpha, Dropping{row_ids, key, site, threshold});                                              \
    }
#define EXPORT_SPREAD(suffix, T, RANK)                                                                                 \
    extern "C" __global__ void __launch_bounds__(Up<RANK / 16>::THREADS) spread_##suffix##_##RANK(                     \
        const Spans spans, const T* low_rank, u32 low_rank_stride, const T* weight, T* to, u64 stride, u32 rows, u32 rank, \
        u32 block_rows, float alpha) {                                                                                 \
        wait_for_previous_kernel();                                                                                    \
        u32 block = 0;                                                                                                 \
        const Span span = spans.of_block(blockIdx.x, block);                                                           \
        /* Without an adapter, nothing is read and zeros are written. */                                               \
        const bool adapted = span.low_rank != NO_ADAPTER;                                                                \
        const u32 own = adapted ? rank : 0;                                                                            \
        up<T, RANK / 16>(low_rank + (adapted ? span.low_rank : 0), low_rank_stride, weight + span.row * rank, false,         \
                         nullptr, to + span.start, stride, block, rows, span.len, own, block_rows, alpha,              \
                         Dropping{nullptr, nullptr, 0, 0});                                                            \
    }
#define EXPORT_GRADIENT(suffix, T, RANK)                                                                               \
    extern "C" __global__ void __launch_bounds__(Gradient<RANK / 16>::THREADS_MAX) gradient_##suffix##_##RANK(             \
        const T* low_rank, const T* wide, u64 stride, float* sums, u32 rows, u32 cols, u32 rank, u32 block_rows,         \
        const u32* row_ids, const u32* key, u32 site, u32 threshold) {                                                 \
        wait_for_previous_kernel();                                                                                    \
        gradient<T, RANK / 16>(low_rank, wide, stride, sums, rows, cols, rank, block_rows,                               \
                               Dropping{row_ids, key, site, threshold});                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(SUM_WARPS* WARP) gradient_sums_##suffix##_##RANK(                     \
        const float* sums, void* grad, u32 wide_grad, u32 cols, u32 splits, u32 rank, float alpha) {                   \
        wait_for_previous_kernel();                                                                                    \
        gradient_sums<T, RANK>(sums, grad, wide_grad != 0, cols, splits, rank, alpha);                                 \
    }
#define EXPORT_BOTH(suffix, T, RANK)                                                                                   \
    extern "C" __global__ void __launch_bounds__(Both<RANK / 16>::THREADS_MAX) both_##suffix##_##RANK(                 \
        const Spans spans, const T* wide, u64 stride, const T* low_rank, u32 low_rank_stride, const T* weight,             \
        float* low_rank_sums, float* weight_sums, u32 rows, u32 weight_rows, u32 rank, u32 block_rows) {                 \
        wait_for_previous_kernel();                                                                                      \
        both<T, RANK / 16>(spans, wide, stride, low_rank, low_rank_stride, weight, low_rank_sums, weight_sums, rows,         \
                           weight_rows, rank, block_rows);                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(SUM_WARPS* WARP) both_sums_##suffix##_##RANK(                         \
        const Spans spans, const float* low_rank_sums, const float* weight_sums, T* low_rank, u32 low_rank_stride,           \
        void* grad, u32 wide_grad, u32 rows, u32 weight_rows, u32 splits, u32 rank, float alpha) {                     \
        wait_for_previous_kernel();                                                                                    \
        both_sums<T, RANK>(spans, low_rank_sums, weight_sums, low_rank, low_rank_stride, grad, wide_grad != 0, rows,         \
                           weight_rows, splits, rank, alpha);                                                          \
    }
#define EXPORT_RANKS(suffix, T)                                                                                        \
    EXPORT_DOWN(suffix, T, 8)                                                                                          \
    EXPORT_DOWN(suffix, T, 16)                                                                                         \
    EXPORT_DOWN(suffix, T, 24)                                                                                         \
    EXPORT_DOWN(suffix, T, 32)                                                                                         \
    EXPORT_DOWN(suffix, T, 48)                                                                                         \
    EXPORT_DOWN(suffix, T, 64)                                                                                         \
    EXPORT_UP(suffix, T, 16)                                                                                           \
    EXPORT_UP(suffix, T, 32)                                                                                           \
    EXPORT_UP(suffix, T, 48)                                                                                           \
    EXPORT_UP(suffix, T, 64)                                                                                           \
    EXPORT_SPREAD(suffix, T, 16)                                                                                       \
    EXPORT_SPREAD(suffix, T, 32)                                                                                       \
    EXPORT_SPREAD(suffix, T, 64)                                                                                       \
    EXPORT_GRADIENT(suffix, T, 16)                                                                                     \
    EXPORT_GRADIENT(suffix, T, 32)                                                                                     \
    EXPORT_GRADIENT(suffix, T, 48)                                                                                     \
    EXPORT_GRADIENT(suffix, T, 64)                                                                                     \
    EXPORT_BOTH(suffix, T, 16)                                                                                         \
    EXPORT_BOTH(suffix, T, 32)                                                                                         \
    EXPORT_BOTH(suffix, T, 64)
EXPORT_RANKS(bf16, bf16)
EXPORT_RANKS(f16, f16)
