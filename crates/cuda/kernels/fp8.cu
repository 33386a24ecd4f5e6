// Products in e4m3: rows rounded to codes with a scale each, a weight's codes transposed, and a product of codes of any
// sizes for what the library does not multiply.
#include "codes.cuh"

#define E4M3_MAX 448.0f

// A row's share of a thread: packs that stay in registers from the search for the largest to the rounding.
#define HELD 4
#define THREADS_MAX 512
#define SCALED_THREADS_MAX 1024

// A divisor of a whole row. Quotients are rounded as division rounds them: where nothing leaves the range of floats, which
// is `plain`, by one step of Newton's from the product with the reciprocal.
struct Divisor {
    float scale, reciprocal;
    bool plain;

    __device__ __forceinline__ explicit Divisor(float scale)
        : scale(scale), reciprocal(__frcp_rn(scale)), plain(scale > 0x1p-60f && scale < 0x1p60f) {}

    __device__ __forceinline__ float divide_plainly(float x) const {
        const float near = __fmul_rn(x, reciprocal);
        return __fmaf_rn(__fmaf_rn(-near, scale, x), reciprocal, near);
    }

    // Of a row of zeros, zero; of one in which nothing is a number, none.
    __device__ __forceinline__ float divide(float x) const {
        if (plain) return divide_plainly(x);
        return scale > 0.0f ? __fdiv_rn(x, scale) : x - x;
    }
};

template <int N> __device__ __forceinline__ void store_codes(u8* to, const float (&shares)[N]) {
    u32 words[N / 4];
#pragma unroll
    for (int w = 0; w < N / 4; w++) {
        words[w] = e4m3_codes(shares[4 * w], shares[4 * w + 1]) | e4m3_codes(shares[4 * w + 2], shares[4 * w + 3]) << 16;
    }
    if constexpr (N == 8) *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    else *reinterpret_cast<u32*>(to) = words[0];
}

template <int N> __device__ __forceinline__ float largest_of(float largest, const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) largest = fmaxf(largest, fabsf(x[i]));
    return largest;
}

// The block's largest, for rows one after another: with two places for what warps say, one barrier a row is enough.
__device__ __forceinline__ float largest_of_block(float x, u32 turn) {
    __shared__ float places[2][WARP];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    x = warp_max(x);
    if (lane == 0) places[turn][warp] = x;
    __syncthreads();
    return warp_max(lane < warps ? places[turn][lane] : 0.0f);
}

// A pack as the four words it is loaded as. The compiler may not hold anything else it made of it, which takes twice the
// registers.
__device__ __forceinline__ uint4 load_words(const void* from) { return *reinterpret_cast<const uint4*>(from); }
template <typename T> __device__ __forceinline__ Pack<T> pack_of(uint4& words) {
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
    return *reinterpret_cast<const Pack<T>*>(&words);
}

// What columns are multiplied by before they are rounded, if SCALED. The scales lie in shared memory if there is room for as
// many as `shared_cols`: a multiprocessor may have little left for its cache, and what every row reads again from behind it
// takes longer than the rows.
template <bool SCALED, int N> struct ColScales {
    const float* from;

    __device__ __forceinline__ ColScales(const float* col_scales, float* shared, u32 cols, u32 shared_cols) : from(col_scales) {
        if constexpr (SCALED) {
            if (from == nullptr || cols > shared_cols) return;
            for (u32 col = 4 * threadIdx.x; col < cols; col += 4 * blockDim.x) {
                *reinterpret_cast<float4*>(shared + col) = *reinterpret_cast<const float4*>(from + col);
            }
            __syncthreads();
            from = shared;
        }
    }

    // A pack that begins at the column `col`.
    template <typename T> __device__ __forceinline__ void scale(const Pack<T>& pack, u32 col, float (&out)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = to_float(pack.v[i]);
        if constexpr (SCALED) {
            if (from == nullptr) return;
            float scales[N];
            load_some(from + col, N, true, scales);
#pragma unroll
            for (int i = 0; i < N; i++) out[i] = __fmul_rn(out[i], scales[i]);
        }
    }
};

// Rows of `cols` elements, `stride` apart, every gridDim.x-th of them to a block, which fetches its next one while it rounds
// one. Columns are multiplied by `col_scales` first, if there are any. A row of zeros has the scale zero; what is no number
// stays none.
template <typename T, bool SCALED>
__device__ __forceinline__ void round_rows_packed(const T* x, const float* col_scales, u8* codes, float* scales, u64 stride,
                                                  u32 rows, u32 cols, u32 shared_cols) {
    constexpr int N = Pack<T>::N;
    extern __shared__ __align__(16) float shared[];
    const u32 step = blockDim.x * N, begin = threadIdx.x * N;
    const ColScales<SCALED, N> by_column(col_scales, shared, cols, shared_cols);
    uint4 next[HELD];
    const auto fetch = [&](u32 row) {
#pragma unroll
        for (int p = 0; p < HELD; p++) {
            const bool there = row < rows && begin + p * step < cols;
            if (there) next[p] = load_words(x + row * stride + begin + p * step);
        }
    };
    fetch(blockIdx.x);
    u32 turn = 0;
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
        uint4 held[HELD];
#pragma unroll
        for (int p = 0; p < HELD; p++) held[p] = next[p];
        fetch(row + gridDim.x);
        float largest = 0.0f, some[N];
#pragma unroll
        for (int p = 0; p < HELD; p++) {
            const u32 col = begin + p * step;
            if (col >= cols) continue;
            by_column.scale(pack_of<T>(held[p]), col, some);
            largest = largest_of(largest, some);
        }
        // What is longer than a block can hold is read twice.
        const T* from = x + row * stride;
        for (u32 col = begin + HELD * step; SCALED && col < cols; col += step) {
            by_column.scale(load_pack(from + col), col, some);
            largest = largest_of(largest, some);
        }
        const Divisor divisor(__fdiv_rn(largest_of_block(largest, turn), E4M3_MAX));
        if (threadIdx.x == 0) scales[row] = divisor.scale;
        u8* to = codes + u64(row) * cols;
        u32 read_from = begin;
        if (divisor.plain) {
#pragma unroll
            for (int p = 0; p < HELD; p++) {
                const u32 col = begin + p * step;
                if (col >= cols) continue;
                by_column.scale(pack_of<T>(held[p]), col, some);
#pragma unroll
                for (int i = 0; i < N; i++) some[i] = divisor.divide_plainly(some[i]);
                store_codes(to + col, some);
            }
            read_from += HELD * step;
        }
        for (u32 col = read_from; col < cols; col += step) {
            by_column.scale(load_pack(from + col), col, some);
#pragma unroll
            for (int i = 0; i < N; i++) some[i] = divisor.divide(some[i]);
            store_codes(to + col, some);
        }
    }
}

// The same for rows that are no packs.
template <typename T>
__device__ __forceinline__ void round_rows_singly(const T* x, const float* col_scales, u8* codes, float* scales, u64 stride,
                                                  u32 rows, u32 cols, u32) {
    u32 turn = 0;
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
        const T* from = x + row * stride;
        u8* to = codes + u64(row) * cols;
        auto element = [&](u32 col) {
            const float value = to_float(from[col]);
            return col_scales == nullptr ? value : __fmul_rn(value, col_scales[col]);
        };
        float largest = 0.0f;
        for (u32 col = threadIdx.x; col < cols; col += blockDim.x) largest = fmaxf(largest, fabsf(element(col)));
        const Divisor divisor(__fdiv_rn(largest_of_block(largest, turn), E4M3_MAX));
        if (threadIdx.x == 0) scales[row] = divisor.scale;
        for (u32 col = threadIdx.x; col < cols; col += blockDim.x) {
            to[col] = u8(e4m3_codes(divisor.divide(element(col)), 0.0f) & 255u);
        }
    }
}

#define EXPORT_ROUND_WAY(way, suffix, T, bounds, body)                                                                 \
    PLIMSOLL_EXPORT __launch_bounds__ bounds                                                                           \
        round_rows_##way##_##suffix(const T* x, const float* col_scales, u8* codes, float* scales, u64 stride, u32 rows, \
                                    u32 cols, u32 shared_cols) {                                                       \
        wait_for_previous_kernel();                                                                                    \
        body(x, col_scales, codes, scales, stride, rows, cols, shared_cols);                                           \
    }
#define EXPORT_ROUND(suffix, T)                                                                                        \
    EXPORT_ROUND_WAY(plain, suffix, T, (THREADS_MAX, 2), (round_rows_packed<T, false>))                                \
    EXPORT_ROUND_WAY(scaled, suffix, T, (SCALED_THREADS_MAX, 1), (round_rows_packed<T, true>))                         \
    EXPORT_ROUND_WAY(singly, suffix, T, (THREADS_MAX), round_rows_singly)
PLIMSOLL_FOR_EACH_TYPE(EXPORT_ROUND)

// Tiles of codes are so wide and so high; a thread turns sixteen rows of four columns around.
#define TILE 128
#define TILE_THREADS 256
#define VECTORS (TILE / 16)

// The bytes of four rows' words as four columns' words.
__device__ __forceinline__ void transpose_words(u32 a, u32 b, u32 c, u32 d, u32 (&out)[4]) {
    const u32 low_ab = __byte_perm(a, b, 0x5140), high_ab = __byte_perm(a, b, 0x7362);
    const u32 low_cd = __byte_perm(c, d, 0x5140), high_cd = __byte_perm(c, d, 0x7362);
    out[0] = __byte_perm(low_ab, low_cd, 0x5410);
    out[1] = __byte_perm(low_ab, low_cd, 0x7632);
    out[2] = __byte_perm(high_ab, high_cd, 0x5410);
    out[3] = __byte_perm(high_ab, high_cd, 0x7632);
}

// `width` columns of `rows` rows that are `stride` apart, to rows of `rows` codes one behind another. All are multiples of
// sixteen, as are the addresses. The scale of what is now a row is one.
PLIMSOLL_EXPORT __launch_bounds__(TILE_THREADS)
    transpose_codes(const u8* from, u8* to, float* ones, u32 rows, u32 width, u64 stride) {
    wait_for_previous_kernel();
    // Vectors of a row are turned on by one for every sixteen rows: a column of words then lies in all banks.
    __shared__ uint4 tile[TILE][VECTORS];
    const u32 first_row = blockIdx.x * TILE, first_col = blockIdx.y * TILE;
#pragma unroll
    for (u32 part = 0; part < TILE * VECTORS / TILE_THREADS; part++) {
        const u32 index = part * TILE_THREADS + threadIdx.x, row = index / VECTORS, vector = index % VECTORS;
        const bool there = first_row + row < rows && first_col + vector * 16 < width;
        const u8* at = from + (first_row + row) * stride + first_col + vector * 16;
        tile[row][(vector + row / 16) % VECTORS] = there ? *reinterpret_cast<const uint4*>(at) : make_uint4(0, 0, 0, 0);
    }
    if (blockIdx.x == 0 && threadIdx.x < TILE && first_col + threadIdx.x < width) ones[first_col + threadIdx.x] = 1.0f;
    __syncthreads();
    const u32 group = threadIdx.x % (TILE / 16), word = threadIdx.x / (TILE / 16);
    if (first_row + group * 16 >= rows || first_col + word * 4 >= width) return;
    u32 columns[4][4];
#pragma unroll
    for (u32 four = 0; four < 4; four++) {
        u32 words[4], out[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const uint4* vector = &tile[group * 16 + four * 4 + i][(word / 4 + group) % VECTORS];
            words[i] = reinterpret_cast<const u32*>(vector)[word % 4];
        }
        transpose_words(words[0], words[1], words[2], words[3], out);
#pragma unroll
        for (u32 col = 0; col < 4; col++) columns[col][four] = out[col];
    }
#pragma unroll
    for (u32 col = 0; col < 4; col++) {
        const u32* c = columns[col];
        u8* at = to + u64(first_col + word * 4 + col) * rows + first_row + group * 16;
        *reinterpret_cast<uint4*>(at) = make_uint4(c[0], c[1], c[2], c[3]);
    }
}

// Products of any sizes, by blocks of 64 × 64 sums, sixteen of which are a thread's.
#define SIDE 64
#define DEPTH 32
#define OWN 4
#define PRODUCT_THREADS 256

struct CodeFactor {
    const u8* codes;
    // From one row or column of the result to the next, and along the sum.
    u64 stride, step;
};

__device__ __forceinline__ void load_side(float (&side)[DEPTH][SIDE + 1], const CodeFactor& factor, u32 first, u32 count,
                                          u32 from, u32 depth) {
#pragma unroll
    for (u32 part = 0; part < DEPTH * SIDE / PRODUCT_THREADS; part++) {
        const u32 index = part * PRODUCT_THREADS + threadIdx.x;
        // Neighbouring threads read neighbouring bytes.
        const u32 k = factor.step == 1 ? index % DEPTH : index / SIDE, at = factor.step == 1 ? index / DEPTH : index % SIDE;
        const bool there = first + at < count && from + k < depth;
        side[k][at] = there ? e4m3_number(factor.codes[(first + at) * factor.stride + (from + k) * factor.step]) : 0.0f;
    }
}

// result (+)= α·row scale·column scale·(left·right) + bias. Without column scales they are one.
template <typename T>
__device__ __forceinline__ void multiply_codes(const CodeFactor& left, const float* row_scales, const CodeFactor& right,
                                               const float* col_scales, T* result, const T* bias, u64 result_stride, u32 rows,
                                               u32 cols, u32 depth, float alpha, u32 accumulate) {
    __shared__ float left_side[DEPTH][SIDE + 1], right_side[DEPTH][SIDE + 1];
    const u32 first_row = blockIdx.x * SIDE, first_col = blockIdx.y * SIDE;
    const u32 own_row = threadIdx.x / (SIDE / OWN), own_col = threadIdx.x % (SIDE / OWN);
    float sums[OWN][OWN] = {};
    for (u32 from = 0; from < depth; from += DEPTH) {
        load_side(left_side, left, first_row, rows, from, depth);
        load_side(right_side, right, first_col, cols, from, depth);
        __syncthreads();
#pragma unroll 8
        for (u32 k = 0; k < DEPTH; k++) {
            float l[OWN], r[OWN];
#pragma unroll
            for (u32 i = 0; i < OWN; i++) {
                l[i] = left_side[k][own_row + i * (SIDE / OWN)];
                r[i] = right_side[k][own_col + i * (SIDE / OWN)];
            }
#pragma unroll
            for (u32 i = 0; i < OWN; i++)
#pragma unroll
                for (u32 j = 0; j < OWN; j++) sums[i][j] = fmaf(l[i], r[j], sums[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < OWN; i++) {
        const u32 row = first_row + own_row + i * (SIDE / OWN);
        if (row >= rows) continue;
        const float row_scale = alpha * row_scales[row];
#pragma unroll
        for (u32 j = 0; j < OWN; j++) {
            const u32 col = first_col + own_col + j * (SIDE / OWN);
            if (col >= cols) continue;
            T* at = result + row * result_stride + col;
            float sum = sums[i][j] * row_scale * (col_scales == nullptr ? 1.0f : col_scales[col]);
            if (accumulate) sum += to_float(*at);
            if (bias != nullptr) sum += to_float(bias[col]);
            *at = from_float<T>(sum);
        }
    }
}

#define EXPORT_MULTIPLY(suffix, T)                                                                                     \
    PLIMSOLL_EXPORT __launch_bounds__(PRODUCT_THREADS)                                                                 \
        multiply_codes_##suffix(const u8* left, const float* row_scales, const u8* right, const float* col_scales,     \
                                T* result, const T* bias, u64 right_stride, u64 right_step, u64 result_stride,         \
                                u32 rows, u32 cols, u32 depth, float alpha, u32 accumulate) {                          \
        wait_for_previous_kernel();                                                                                    \
        multiply_codes(CodeFactor{left, depth, 1}, row_scales, CodeFactor{right, right_stride, right_step}, col_scales, \
                       result, bias, result_stride, rows, cols, depth, alpha, accumulate);                             \
    }
PLIMSOLL_FOR_EACH_TYPE(EXPORT_MULTIPLY)
