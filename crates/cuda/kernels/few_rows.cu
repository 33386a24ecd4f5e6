// Products of few rows with a weight in few bits: its codes are read once and decoded in registers.
#include "stored.cuh"

// Rows of the weight, which are columns of the result, that a block has; its warps divide the sum among them.
#define COLS 4
#define WARPS 8
#define STEP (WARPS * WARP * PACK)

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

// result (+)= α·left·Wᵀ + bias, ROWS of `left` at a time. A row of the weight has `depth` elements, whole packs.
template <int ROWS, typename F, typename S, typename T>
__device__ __forceinline__ void few_rows(const T* left, const u8* codes, const void* scales, const float2* nested,
                                         T* result, const T* bias, u64 result_stride, u32 rows, u32 cols, u32 depth,
                                         float alpha, u32 accumulate) {
    __shared__ float numbers[NF4_CODES], parts[WARPS][ROWS * COLS];
    fill(numbers);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 first_col = blockIdx.x * COLS, first_row = blockIdx.y * ROWS;
    float sums[ROWS * COLS] = {};
    for (u32 at = threadIdx.x * PACK; at < depth; at += STEP) {
        typename F::Codes read[COLS];
        typename S::Loaded loaded[COLS];
#pragma unroll
        for (int col = 0; col < COLS; col++) {
            // What is not there is read where something is.
            const u32 row = min(first_col + col, cols - 1);
            const u64 element = u64(row) * depth + at;
            read[col] = F::load(codes, element);
            loaded[col] = S::load(scales, nested, F::block(element, row));
        }
        float weight[COLS][PACK];
#pragma unroll
        for (int col = 0; col < COLS; col++) {
            const float scale = S::scale(loaded[col]);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                weight[col][i] = to_float(from_float<T>(__fmul_rn(F::number(read[col], i, numbers), scale)));
            }
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float x[PACK];
            load_floats(left + u64(min(first_row + row, rows - 1)) * depth + at, x);
#pragma unroll
            for (int col = 0; col < COLS; col++)
#pragma unroll
                for (int i = 0; i < PACK; i++) sums[row * COLS + col] = fmaf(x[i], weight[col][i], sums[row * COLS + col]);
        }
    }
    constexpr u32 LANES = WARP / (ROWS * COLS);
    const float own = sum_over_lanes(sums);
    if (lane % LANES == 0) parts[warp][lane / LANES] = own;
    __syncthreads();
    const u32 row = first_row + threadIdx.x / COLS, col = first_col + threadIdx.x % COLS;
    if (threadIdx.x >= ROWS * COLS || row >= rows || col >= cols) return;
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < WARPS; part++) sum += parts[part][threadIdx.x];
    T* to = result + row * result_stride + col;
    sum *= alpha;
    if (accumulate) sum += to_float(*to);
    if (bias != nullptr) sum += to_float(bias[col]);
    *to = from_float<T>(sum);
}

#define EXPORT_ROWS(rows_at_a_time, name, F, S, suffix, T)                                                             \
    PLIMSOLL_EXPORT __launch_bounds__(WARP* WARPS) few_rows_##rows_at_a_time##_##name##_##suffix(                      \
        const T* left, const u8* codes, const void* scales, const float2* nested, T* result, const T* bias,            \
        u64 result_stride, u32 rows, u32 cols, u32 depth, float alpha, u32 accumulate) {                               \
        few_rows<rows_at_a_time, F, S>(left, codes, scales, nested, result, bias, result_stride, rows, cols, depth,    \
                                       alpha, accumulate);                                                             \
    }
#define EXPORT_FORMATS(rows_at_a_time, suffix, T)                                                                      \
    EXPORT_ROWS(rows_at_a_time, nf4, Nf4, PlainScales, suffix, T)                                                      \
    EXPORT_ROWS(rows_at_a_time, nf4_nested, Nf4, NestedScales, suffix, T)                                              \
    EXPORT_ROWS(rows_at_a_time, int8, Int8, PlainScales, suffix, T)                                                    \
    EXPORT_ROWS(rows_at_a_time, e4m3, E4m3, PlainScales, suffix, T)
#define EXPORT_SIXTEEN(suffix, T) EXPORT_FORMATS(1, suffix, T) EXPORT_FORMATS(8, suffix, T)
EXPORT_SIXTEEN(bf16, bf16)
EXPORT_SIXTEEN(f16, f16)
