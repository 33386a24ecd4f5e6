// Products of few rows, as text is generated with: a weight is read once, and what its codes stand for is made in registers.
#include "stored.cuh"

// A warp has rows of the weight, which are columns of the result, to itself: no block waits for its slowest warp.
#define WARPS 4

// Eight elements of a weight in few bits, as they are loaded.
template <typename F, typename S, typename T> struct Loaded {
    typename F::Codes codes;
    typename S::Loaded scale;

    __device__ __forceinline__ void load(const void* weight, const void* scales, const float2* nested, u64 element, u32 row) {
        codes = F::load(static_cast<const u8*>(weight) + F::bytes(element));
        scale = S::load(scales, nested, F::block(element, row));
    }

    // Rounded to the type of the factors, as where they are decoded to memory first.
    __device__ __forceinline__ void numbers(const float* table, float (&out)[PACK]) const {
        const float factor = S::scale(scale);
#pragma unroll
        for (int i = 0; i < PACK; i++) out[i] = to_float(from_float<T>(__fmul_rn(F::number(codes, i, table), factor)));
    }
};

// The same of a weight in sixteen bits.
struct Whole {};

template <typename T> struct Loaded<Whole, Whole, T> {
    Pack<T> pack;

    __device__ __forceinline__ void load(const void* weight, const void*, const float2*, u64 element, u32) {
        *reinterpret_cast<uint4*>(&pack) = read_once(reinterpret_cast<const uint4*>(static_cast<const T*>(weight) + element));
    }

    __device__ __forceinline__ void numbers(const float*, float (&out)[PACK]) const {
#pragma unroll
        for (int i = 0; i < PACK; i++) out[i] = to_float(pack.v[i]);
    }
};

// Adds N numbers up over the lanes. Lane `l` is left with the sum of number `l / (WARP / N)`.
template <int N> __device__ __forceinline__ float sum_over_lanes(float (&x)[N]) {
    const u32 lane = threadIdx.x % WARP;
    u32 bit = WARP / 2;
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2) {
        const bool upper = lane & bit;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float given = upper ? x[i] : x[i + half], kept = upper ? x[i + half] : x[i];
            x[i] = kept + __shfl_xor_sync(FULL_MASK, given, bit);
        }
        bit /= 2;
    }
#pragma unroll
    for (; bit > 0; bit /= 2) x[0] += __shfl_xor_sync(FULL_MASK, x[0], bit);
    return x[0];
}

// TURNS packs of each of COLS rows of the weight, 32 packs apart, times ROWS of `left`: all loads are under way before the
// first is used.
template <int ROWS, int COLS, int TURNS, typename F, typename S, typename T>
__device__ __forceinline__ void add_products(float (&sums)[ROWS * COLS], const T* left, const void* weight, const void* scales,
                                             const float2* nested, const float* table, const u32 (&from)[ROWS],
                                             const u32 (&of)[COLS], u32 pack, u32 depth) {
    Loaded<F, S, T> loaded[TURNS][COLS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (int col = 0; col < COLS; col++) {
            const u64 element = u64(of[col]) * depth + (pack + turn * WARP) * PACK;
            loaded[turn][col].load(weight, scales, nested, element, of[col]);
        }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        float w[COLS][PACK];
#pragma unroll
        for (int col = 0; col < COLS; col++) loaded[turn][col].numbers(table, w[col]);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float x[PACK];
            load_floats(left + u64(from[row]) * depth + (pack + turn * WARP) * PACK, x);
#pragma unroll
            for (int col = 0; col < COLS; col++)
#pragma unroll
                for (int i = 0; i < PACK; i++) sums[row * COLS + col] = fmaf(x[i], w[col][i], sums[row * COLS + col]);
        }
    }
}

// result (+)= α·left·Wᵀ + bias, ROWS of `left` by COLS rows of the weight, of `depth` elements, whole packs. A lane has
// every 32nd pack, in order, whatever ROWS, COLS and TURNS are.
template <int ROWS, int COLS, int TURNS, typename F, typename S, typename T>
__device__ __forceinline__ void few_rows(const T* left, const void* weight, const void* scales, const float2* nested,
                                         T* result, const T* bias, u64 result_stride, u32 rows, u32 cols, u32 depth,
                                         float alpha, u32 accumulate) {
    __shared__ float table[NF4_CODES];
    fill(table);
    const u32 lane = threadIdx.x % WARP, first_col = (blockIdx.x * WARPS + threadIdx.x / WARP) * COLS;
    const u32 first_row = blockIdx.y * ROWS, packs = depth / PACK;
    if (first_col >= cols) return;
    // What is not there is read where something is.
    u32 from[ROWS], of[COLS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) from[row] = min(first_row + row, rows - 1);
#pragma unroll
    for (int col = 0; col < COLS; col++) of[col] = min(first_col + col, cols - 1);
    float sums[ROWS * COLS] = {};
    u32 pack = lane;
    for (; pack + (TURNS - 1) * WARP < packs; pack += TURNS * WARP) {
        add_products<ROWS, COLS, TURNS, F, S>(sums, left, weight, scales, nested, table, from, of, pack, depth);
    }
    for (; pack < packs; pack += WARP) {
        add_products<ROWS, COLS, 1, F, S>(sums, left, weight, scales, nested, table, from, of, pack, depth);
    }
    constexpr u32 LANES = WARP / (ROWS * COLS);
    float sum = sum_over_lanes(sums);
    const u32 row = first_row + lane / LANES / COLS, col = first_col + lane / LANES % COLS;
    if (lane % LANES != 0 || row >= rows || col >= cols) return;
    T* to = result + row * result_stride + col;
    sum *= alpha;
    if (accumulate) sum += to_float(*to);
    if (bias != nullptr) sum += to_float(bias[col]);
    *to = from_float<T>(sum);
}

// Blocks on a multiprocessor: what is known of them lets loads go ahead of what is done with them. All warps together
// must have some tens of KiB under way.
#define BLOCKS_1 8
#define BLOCKS_8 4

#define EXPORT_ROWS(rows_at_a_time, cols_at_a_time, turns, name, F, S, suffix, T)                                      \
    PLIMSOLL_EXPORT __launch_bounds__(WARP* WARPS, BLOCKS_##rows_at_a_time)                                            \
        few_rows_##rows_at_a_time##_##name##_##suffix(                                                                 \
            const T* left, const void* weight, const void* scales, const float2* nested, T* result, const T* bias,     \
            u64 result_stride, u32 rows, u32 cols, u32 depth, float alpha, u32 accumulate) {                           \
        wait_for_previous_kernel();                                                                                    \
        few_rows<rows_at_a_time, cols_at_a_time, turns, F, S>(left, weight, scales, nested, result, bias,              \
                                                              result_stride, rows, cols, depth, alpha, accumulate);    \
    }
#define EXPORT_FORMATS(rows_at_a_time, cols_at_a_time, turns, suffix, T)                                               \
    EXPORT_ROWS(rows_at_a_time, cols_at_a_time, turns, whole, Whole, Whole, suffix, T)                                 \
    EXPORT_ROWS(rows_at_a_time, cols_at_a_time, turns, nf4, Nf4, PlainScales, suffix, T)                               \
    EXPORT_ROWS(rows_at_a_time, cols_at_a_time, turns, nf4_nested, Nf4, NestedScales, suffix, T)                       \
    EXPORT_ROWS(rows_at_a_time, cols_at_a_time, turns, int8, Int8, PlainScales, suffix, T)                             \
    EXPORT_ROWS(rows_at_a_time, cols_at_a_time, turns, e4m3, E4m3, PlainScales, suffix, T)
#define EXPORT_SIXTEEN(suffix, T) EXPORT_FORMATS(1, 1, 8, suffix, T) EXPORT_FORMATS(8, 2, 2, suffix, T)
EXPORT_SIXTEEN(bf16, bf16)
EXPORT_SIXTEEN(f16, f16)
