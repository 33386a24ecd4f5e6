// Products of few rows with a weight in few bits, as text is generated with: codes are read once, at the memory's speed, and
// what they stand for, rounded as where it is decoded to memory first, is multiplied on tensor cores. Sums are float32.
#include "stored.cuh"
#include "tensor_cores.cuh"

// Rows of the weight, which are columns of the result, of a block. Its warps have parts of the depth, so that few rows keep
// many loads under way.
#define COLS 16
#define WARPS 8
// Rows of the left factor that are multiplied at a time.
#define ROWS 8

// Elements of a row that a lane reads at a time. Four lanes have a row, and eight rows at a distance of eight.
template <typename F> constexpr u32 SHARE = sizeof(uint4) / sizeof(typename F::Codes) * PACK;

// Sixteen bytes of two rows each, as they are loaded.
template <typename F, typename S> struct Share {
    uint4 codes[2];
    typename S::Loaded scales[2];
};

template <typename T> __device__ __forceinline__ u32 rounded(float first, float second);
template <> __device__ __forceinline__ u32 rounded<bf16>(float first, float second) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const u32*>(&both);
}
template <> __device__ __forceinline__ u32 rounded<f16>(float first, float second) {
    const __half2 both = __floats2half2_rn(first, second);
    return *reinterpret_cast<const u32*>(&both);
}

// A lane's place in the depth of its two rows of the weight, and what it reads there.
template <typename F, typename S> struct Weight {
    const void* scales;
    const float2* nested;
    const u8* codes[2];
    u64 first[2];
    float factors[2];
    u32 rows[2];

    __device__ __forceinline__ Weight(const u8* weight, const void* scales, const float2* nested, u32 row, u32 rows_there,
                                      u32 depth)
        : scales(scales), nested(nested) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // What is not there is read where something is.
            rows[half] = min(row + half * COLS / 2, rows_there - 1);
            first[half] = u64(rows[half]) * depth;
            codes[half] = weight + F::bytes(first[half]);
            if (F::ROW_SCALES) factors[half] = S::scale(S::load(scales, nested, F::block(0, rows[half])));
        }
    }

    __device__ __forceinline__ void load(Share<F, S>& share, u32 at) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            share.codes[half] = read_once(reinterpret_cast<const uint4*>(codes[half] + F::bytes(at)));
            if (!F::ROW_SCALES) share.scales[half] = S::load(scales, nested, F::block(first[half] + at, rows[half]));
        }
    }

    __device__ __forceinline__ float factor(const Share<F, S>& share, int half) const {
        return F::ROW_SCALES ? factors[half] : S::scale(share.scales[half]);
    }
};

// What is multiplied beyond the depth.
__device__ const uint4 NOTHING[SHARE<Nf4> / PACK] = {};

// A share's part of the rows of the left factor, as products of sixteen of the depth take it: the order within is the same
// in both factors, and no other.
template <int TILES, u32 N> struct Left {
    uint4 packs[TILES][N / PACK];

    // Of rows that are not there, what is here already stays: no other row's sums have it.
    template <typename T>
    __device__ __forceinline__ void load(const T* const (&rows)[TILES], const bool (&row_there)[TILES], u32 at, bool there) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const uint4* from = there ? reinterpret_cast<const uint4*>(rows[tile] + at) : NOTHING;
#pragma unroll
            for (u32 pack = 0; pack < N / PACK; pack++) {
                if (row_there[tile]) packs[tile][pack] = from[pack];
            }
        }
    }

    __device__ __forceinline__ u32 pair(int tile, int i) const { return reinterpret_cast<const u32*>(packs[tile])[i]; }
};

template <int TILES, typename F, typename S, typename T>
__device__ __forceinline__ void add_products(float (&sums)[TILES][4], const Weight<F, S>& weight, const Share<F, S>& share,
                                             const Left<TILES, SHARE<F>>& left, float held, bool there) {
    const float factors[2] = {there ? weight.factor(share, 0) : 0.0f, there ? weight.factor(share, 1) : 0.0f};
#pragma unroll
    for (int four = 0; four < SHARE<F> / 4; four++) {
        u32 fragment[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int half = i % 2, pair = four * 2 + i / 2;
            const u32 word = reinterpret_cast<const u32*>(&share.codes[half])[pair / F::WORD_PAIRS];
            const float2 numbers = F::pair(word, pair % F::WORD_PAIRS, held);
            fragment[i] = rounded<T>(__fmul_rn(numbers.x, factors[half]), __fmul_rn(numbers.y, factors[half]));
        }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            mma<T>(sums[tile], fragment, left.pair(tile, four * 2), left.pair(tile, four * 2 + 1));
        }
    }
}

// result (+)= α·left·Wᵀ + bias, up to ROWS rows of `left` for each of TILES by COLS rows of the weight, of `depth`
// elements: whole shares. Sums go over the same elements in the same order, however many rows there are.
template <int TILES, int STAGES, typename F, typename S, typename T>
__device__ __forceinline__ void few_rows(const T* left, const u8* weight, const void* scales, const float2* nested,
                                         T* result, const T* bias, u64 result_stride, u32 rows, u32 cols, u32 depth,
                                         float alpha, u32 accumulate) {
    __shared__ float partial[WARPS][TILES * ROWS][COLS + 4];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first_col = blockIdx.x * COLS;
    const float held = F::held();
    const Weight<F, S> place(weight, scales, nested, first_col + lane / 4, cols, depth);
    const T* from[TILES];
    bool row_there[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const u32 row = tile * ROWS + lane / 4;
        row_there[tile] = row < rows;
        from[tile] = left + u64(row_there[tile] ? row : 0) * depth;
    }
    // Where a warp is in the depth. A stage is loaded again as soon as it was used.
    constexpr u32 SPAN = 4 * SHARE<F>, STEP = WARPS * SPAN;
    const u32 mine = lane % 4 * SHARE<F>, last = depth - SHARE<F>;
    Share<F, S> shares[STAGES];
    // Of few rows, the next step's are loaded ahead as well.
    constexpr int LEFTS = TILES == 1 ? 2 : 1;
    Left<TILES, SHARE<F>> lefts[LEFTS] = {};
    u32 at = warp * SPAN;
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        if (at + stage * STEP < depth) place.load(shares[stage], min(at + stage * STEP + mine, last));
    }
    if (LEFTS == 2 && at < depth) lefts[0].load(from, row_there, at + mine, at + mine < depth);
    float sums[TILES][4] = {};
    while (at < depth) {
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++, at += STEP) {
            if (at >= depth) break;
            const u32 next = at + (LEFTS - 1) * STEP;
            if (next < depth) lefts[(stage + 1) % LEFTS].load(from, row_there, next + mine, next + mine < depth);
            add_products<TILES, F, S, T>(sums, place, shares[stage], lefts[stage % LEFTS], held, at + mine < depth);
            if (at + STAGES * STEP < depth) place.load(shares[stage], min(at + STAGES * STEP + mine, last));
        }
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 row = tile * ROWS + lane % 4 * 2 + i % 2, col = lane / 4 + i / 2 * COLS / 2;
            partial[warp][row][col] = sums[tile][i];
        }
    __syncthreads();
    const u32 row = threadIdx.x / COLS, col = first_col + threadIdx.x % COLS;
    if (row >= min(rows, u32(TILES * ROWS)) || col >= cols) return;
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < WARPS; part++) sum += partial[part][row][threadIdx.x % COLS];
    T* to = result + row * result_stride + col;
    sum *= alpha;
    if (accumulate) sum += to_float(*to);
    if (bias != nullptr) sum += to_float(bias[col]);
    *to = from_float<T>(sum);
}

#define EXPORT_ROWS(rows_at_a_time, tiles, stages, name, F, S, suffix, T)                                              \
    PLIMSOLL_EXPORT __launch_bounds__(WARP* WARPS, 2)                                                                  \
        few_rows_##rows_at_a_time##_##name##_##suffix(                                                                 \
            const T* left, const u8* weight, const void* scales, const float2* nested, T* result, const T* bias,       \
            u64 result_stride, u32 rows, u32 cols, u32 depth, float alpha, u32 accumulate) {                           \
        wait_for_previous_kernel();                                                                                    \
        few_rows<tiles, stages, F, S>(left, weight, scales, nested, result, bias, result_stride, rows, cols, depth,    \
                                      alpha, accumulate);                                                              \
    }
#define EXPORT_FORMATS(rows_at_a_time, tiles, stages, suffix, T)                                                       \
    EXPORT_ROWS(rows_at_a_time, tiles, stages, nf4, Nf4, PlainScales, suffix, T)                                       \
    EXPORT_ROWS(rows_at_a_time, tiles, stages, nf4_nested, Nf4, NestedScales, suffix, T)                               \
    EXPORT_ROWS(rows_at_a_time, tiles, stages, int8, Int8, PlainScales, suffix, T)                                     \
    EXPORT_ROWS(rows_at_a_time, tiles, stages, e4m3, E4m3, PlainScales, suffix, T)
#define EXPORT_SIXTEEN(suffix, T) EXPORT_FORMATS(8, 1, 4, suffix, T) EXPORT_FORMATS(16, 2, 2, suffix, T)
EXPORT_SIXTEEN(bf16, bf16)
EXPORT_SIXTEEN(f16, f16)
