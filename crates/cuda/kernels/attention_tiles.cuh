// What attention on tensor cores is made of: rows of a head in shared memory, products of these, the running softmax. For
// one storage type (ATTENTION_TYPE) and one head dim (HEAD_DIM).
//
// A block multiplies with two warpgroups, or one; each warp owns 16 of the block's rows, in all products. Products have
// their results in registers in one layout, whether four warps compute them together (Hopper) or each warp alone, so
// scores become the left factor of the next product without leaving the registers.
#pragma once

#include "attention_places.cuh"
#include "attention_ptx.cuh"

typedef ATTENTION_TYPE T;

constexpr int D = HEAD_DIM;
constexpr int ROWS = 128;     // of a block
constexpr int THREADS = 256;  // of a block
constexpr int GROUP_ROWS = 64;
constexpr int PIECES = D / 8;  // of sixteen bytes, in a head's row
constexpr int PANELS = (D + 63) / 64;
constexpr float LOG2_E = 1.44269504f;

// The host computes shared memory from the same numbers.
#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
constexpr int STEP = 64;  // rows of the other side that the gradients take at a time
#else
constexpr int STEP = 32;  // cards with 100 KiB of shared memory
#endif

extern __shared__ u8 memory[];

// Rows of one head in shared memory, in panels of 64 columns. Pieces of a row are swapped so that
// neither eight rows of one piece nor eight pieces of one row meet in a bank.
template <int COUNT> struct Tile {
    static constexpr u32 PANEL_BYTES = COUNT * 128;
    static constexpr u32 BYTES = PANELS * PANEL_BYTES;
    u32 at;

    __device__ __forceinline__ u32 piece(int row, int piece) const {
        return at + piece / 8 * PANEL_BYTES + row * 128 + ((piece % 8 ^ row % 8) << 4);
    }

    // Starts copying rows that lie `stride` elements apart, with so many threads, of which this is number `thread`; rows
    // from `rows` on become zeros.
    template <int THREADS = ::THREADS>
    __device__ __forceinline__ void fetch(const T* from, u64 stride, int rows, int thread = threadIdx.x) const {
        constexpr int AT_ONCE = THREADS / PIECES;  // rows
        if constexpr (THREADS % PIECES == 0 && AT_ONCE % 8 == 0) {
            const int row = thread / PIECES, column = thread % PIECES;
            const u32 to = piece(row, column);
            from += row * stride + column * 8;
#pragma unroll
            for (int i = 0; i < COUNT / AT_ONCE; i++) {
                copy16(to + i * AT_ONCE * 128, from + i * AT_ONCE * stride, row + i * AT_ONCE < rows);
            }
        } else {
#pragma unroll
            for (int i = 0; i < (COUNT * PIECES + THREADS - 1) / THREADS; i++) {
                const int index = i * THREADS + thread;
                const int row = index / PIECES, column = index % PIECES;
                if (COUNT * PIECES % THREADS != 0 && row >= COUNT) break;
                copy16(piece(row, column), from + row * stride + column * 8, row < rows);
            }
        }
    }
};

// acc = a·bᵀ over the head dim: the warp's 16 rows of `a` (the warpgroup's 64 begin at `a_row`) by N rows of `b`.
template <int N, int A_COUNT>
__device__ __forceinline__ void score(float (&acc)[N / 8][4], Tile<A_COUNT> a, int a_row, Tile<N> b) {
#if ATTENTION_WGMMA
    const u64 left = describe(a.at + a_row * 128, 16), right = describe(b.at, 16);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const u32 a_step = k / 4 * Tile<A_COUNT>::PANEL_BYTES + k % 4 * 32;
        const u32 b_step = k / 4 * Tile<N>::PANEL_BYTES + k % 4 * 32;
        Warpgroup<T>::shared(acc, left + (a_step >> 4), right + (b_step >> 4), k != 0);
    }
#else
    const int lane = threadIdx.x % WARP, row = a_row + threadIdx.x / WARP % 4 * 16;
#pragma unroll
    for (int n = 0; n < N / 8; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        u32 left[4];
        load_matrices(left, a.piece(row + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            u32 right[4];
            load_matrices(right, b.piece(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            mma<T>(acc[2 * n], left, right[0], right[1]);
            mma<T>(acc[2 * n + 1], left, right[2], right[3]);
        }
    }
#endif
}

// acc += a·b: the warp's 16 rows of `a`, in registers, by K rows of `b`.
template <int K> __device__ __forceinline__ void blend(float (&acc)[D / 8][4], u32 (&a)[K / 16][4], Tile<K> b) {
#if ATTENTION_WGMMA
    const u64 right = describe(b.at, Tile<K>::PANEL_BYTES);
#pragma unroll
    for (int k = 0; k < K / 16; k++) Warpgroup<T>::registers(acc, a[k], right + (k * 2048 >> 4));
#else
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            u32 right[4];
            load_matrices_transposed(right, b.piece(16 * k + lane % 16, 2 * n + lane / 16));
            mma<T>(acc[2 * n], a[k], right[0], right[1]);
            mma<T>(acc[2 * n + 1], a[k], right[2], right[3]);
        }
    }
#endif
}

// Where the warpgroup's rows begin; the same in all lanes, which the compiler would not see by itself.
__device__ __forceinline__ int first_group_row() {
    return __shfl_sync(FULL_MASK, (int)threadIdx.x / 128, 0) * GROUP_ROWS;
}

// Results of a product become the left factor of the next.
template <int N> __device__ __forceinline__ void as_left(u32 (&a)[N / 16][4], const float (&acc)[N / 8][4]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        a[k][0] = pack2<T>(acc[2 * k][0], acc[2 * k][1]);
        a[k][1] = pack2<T>(acc[2 * k][2], acc[2 * k][3]);
        a[k][2] = pack2<T>(acc[2 * k + 1][0], acc[2 * k + 1][1]);
        a[k][3] = pack2<T>(acc[2 * k + 1][2], acc[2 * k + 1][3]);
    }
}

template <int N> __device__ __forceinline__ void clear(float (&acc)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
}

// The thread's share of a product's results: rows `row` and `row + 8` of the block, columns `8n + column` and the next.
struct Lane {
    int row, column;
    __device__ __forceinline__ Lane()
        : row(threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4), column(threadIdx.x % 4 * 2) {}
};

// Writes the first `rows` of the block's results, each row times its factor. Goes through shared memory
// that nobody reads any more, so that whole pieces reach the device memory.
template <int COUNT>
__device__ __forceinline__ void store(const float (&acc)[D / 8][4], float factor0, float factor1, Tile<COUNT> through,
                                      T* to, u64 stride, int rows) {
    const Lane own;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        const u32 first = pack2<T>(acc[n][0] * factor0, acc[n][1] * factor0);
        const u32 second = pack2<T>(acc[n][2] * factor1, acc[n][3] * factor1);
        store_shared(through.piece(own.row, n) + own.column * 2, first);
        store_shared(through.piece(own.row + 8, n) + own.column * 2, second);
    }
    __syncwarp();
    const int lane = threadIdx.x % WARP, first_row = threadIdx.x / WARP * 16;
#pragma unroll
    for (int i = 0; i < 16 * PIECES / WARP; i++) {
        const int row = first_row + (i * WARP + lane) / PIECES, column = (i * WARP + lane) % PIECES;
        const uint4 piece = load_shared16(through.piece(row, column));
        if (row < rows) *reinterpret_cast<uint4*>(to + row * stride + column * 8) = piece;
    }
}

__device__ __forceinline__ void store_zeros(T* to, u64 stride, int rows, int threads = blockDim.x) {
    for (int index = threadIdx.x; index < rows * PIECES; index += threads) {
        const uint4 zero = make_uint4(0, 0, 0, 0);
        *reinterpret_cast<uint4*>(to + index / PIECES * stride + index % PIECES * 8) = zero;
    }
}

// Hides scores of the block's queries (rows) for keys (columns).
template <int N>
__device__ __forceinline__ void hide_keys(float (&s)[N / 8][4], int first_query, int first_key, int window) {
    const Lane own;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int query = first_query + own.row + i / 2 * 8, key = first_key + n * 8 + own.column + i % 2;
            if (!sees(query, key, window)) s[n][i] = MINUS_INFINITY;
        }
    }
}

// The same with keys as rows and queries as columns.
template <int N>
__device__ __forceinline__ void hide_queries(float (&s)[N / 8][4], int first_key, int first_query, int window) {
    const Lane own;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = first_key + own.row + i / 2 * 8, query = first_query + n * 8 + own.column + i % 2;
            if (!sees(query, key, window)) s[n][i] = MINUS_INFINITY;
        }
    }
}

// The running softmax of a thread's two rows, in powers of two.
struct Softmax {
    float peak[2], total[2], shrink[2];
    float log2_scale;

    __device__ __forceinline__ explicit Softmax(float scale) : log2_scale(scale * LOG2_E) {
        peak[0] = peak[1] = MINUS_INFINITY;
        total[0] = total[1] = 0.0f;
        shrink[0] = shrink[1] = 1.0f;
    }

    // Turns scores into exponentials; `shrink` is what earlier ones must be multiplied by.
    template <int N> __device__ __forceinline__ void absorb(float (&s)[N / 8][4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float best = peak[r];
#pragma unroll
            for (int n = 0; n < N / 8; n++) best = fmaxf(best, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
            best = fmaxf(best, __shfl_xor_sync(FULL_MASK, best, 1));
            best = fmaxf(best, __shfl_xor_sync(FULL_MASK, best, 2));
            // A query that has seen nothing yet must not subtract infinity from infinity.
            const float base = best == MINUS_INFINITY ? 0.0f : best * log2_scale;
            shrink[r] = exp2_fast(peak[r] * log2_scale - base);
            peak[r] = best;
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < N / 8; n++) {
                s[n][2 * r] = exp2_fast(fmaf(s[n][2 * r], log2_scale, -base));
                s[n][2 * r + 1] = exp2_fast(fmaf(s[n][2 * r + 1], log2_scale, -base));
                sum += s[n][2 * r] + s[n][2 * r + 1];
            }
            total[r] = fmaf(total[r], shrink[r], sum);
        }
    }

    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            total[r] += __shfl_xor_sync(FULL_MASK, total[r], 1);
            total[r] += __shfl_xor_sync(FULL_MASK, total[r], 2);
        }
    }
};

// Two products of two packed numbers each, added to `sum`.
__device__ __forceinline__ float dot2(u32 a, u32 b, float sum) {
    const float2 x = unpack2<T>(a), y = unpack2<T>(b);
    return fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
}

// Σ d_out·out of the warp's rows, for the thread's two; also written to `delta`, for the keys' gradients. A row is read by
// as many lanes as it has pieces, or a few more, so that several rows are under way at a time.
__device__ __forceinline__ void row_deltas(float (&own_delta)[2], const T* out, const T* d_out, u64 stride, int rows,
                                           float* delta, int delta_stride) {
    constexpr int LANES = PIECES <= 8 ? 8 : PIECES <= 16 ? 16 : 32, AT_ONCE = WARP / LANES;
    const int lane = threadIdx.x % WARP, first_row = threadIdx.x / WARP * 16;
    const int part = lane % LANES, own_row = lane / 4;
#pragma unroll
    for (int pass = 0; pass < 16 / AT_ONCE; pass++) {
        const int row = first_row + pass * AT_ONCE + lane / LANES;
        float sum = 0.0f;
        if (row < rows && part < PIECES) {
            const uint4 a = *reinterpret_cast<const uint4*>(out + row * stride + part * 8);
            const uint4 b = *reinterpret_cast<const uint4*>(d_out + row * stride + part * 8);
            sum = dot2(a.x, b.x, dot2(a.y, b.y, dot2(a.z, b.z, dot2(a.w, b.w, 0.0f))));
        }
#pragma unroll
        for (int apart = LANES / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(FULL_MASK, sum, apart);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float theirs = __shfl_sync(FULL_MASK, sum, (own_row + 8 * r) % AT_ONCE * LANES);
            if ((own_row + 8 * r) / AT_ONCE == pass) own_delta[r] = theirs;
        }
        if (part == 0 && row < rows) delta[(u64)row * delta_stride] = sum;
    }
}
