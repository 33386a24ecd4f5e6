// Keys and values kept for sequences that grow a few tokens at a time, and attention over them. The token at position p
// of the sequence at place s lies in row s * capacity + p % capacity of the cache.
#include "plimsoll.cuh"

#define MINUS_INFINITY __int_as_float(0xff800000)

typedef unsigned short u16;

// A thread for each sixteen bytes of a row's keys and values, which lie behind its queries, if it has any.
template <typename T>
__device__ __forceinline__ void cache_write(const T* rows_from, T* cache, const int* places, const int* positions,
                                            u32 rows, u32 query_cols, u32 cols, u32 capacity, u32 count) {
    constexpr u32 N = Pack<T>::N;
    const u32 chunks = (cols + N - 1) / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = index / chunks, at = index % chunks * N;
    if (row >= rows) return;
    const int place = places[row], position = positions[row];
    if (place < 0 || u32(place) >= count || position < 0) return;
    const T* from = rows_from + u64(row) * (query_cols + cols) + query_cols + at;
    T* to = cache + (u64(place) * capacity + u32(position) % capacity) * cols + at;
    if (cols % N == 0 && query_cols % N == 0) {
        store_pack(to, load_pack(from));
    } else {
        for (u32 i = 0; i < min(N, cols - at); i++) to[i] = from[i];
    }
}

constexpr int WARPS = 16;  // one sequence has few heads: their keys are divided among many warps
constexpr int SLICES = 8;  // of 32 columns: a lane holds every 32nd column of a head
constexpr int KEYS = 4;    // that a warp reads at a time

// A block is one head of one row. Its warps take runs of keys in turn, each with a softmax of its own; in the end the
// warps' results are added up in their order. `bias` is that of distance zero and the first head; null if there is none.
template <typename T>
__device__ __forceinline__ void cached_attention(const T* queries, const T* cache, const int* places,
                                                 const int* positions, const float* bias, T* out, int row_cols,
                                                 int distances, int query_heads, int kv_heads, int head_dim,
                                                 int capacity, int count, int window, float scale, float softcap) {
    __shared__ float results[WARPS][SLICES * WARP], peaks[WARPS], totals[WARPS];
    const int head = blockIdx.x, row = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int kv_head = head / (query_heads / kv_heads), place = places[row], position = positions[row];
    T* const to = out + (u64(row) * query_heads + head) * head_dim;
    if (place < 0 || place >= count || position < 0) {
        for (int c = threadIdx.x; c < head_dim; c += WARPS * WARP) to[c] = from_float<T>(0.0f);
        return;
    }
    const int stride = 2 * kv_heads * head_dim, first = max(position - window + 1, 0);
    const T* const keys = cache + u64(place) * capacity * stride + kv_head * head_dim;
    const T* const q_from = queries + u64(row) * row_cols + head * head_dim;
    const float* const head_bias = bias ? bias + i64(head) * distances - position : nullptr;
    float q[SLICES], acc[SLICES];
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
        const int c = slice * WARP + lane;
        q[slice] = c < head_dim ? to_float(q_from[c]) : 0.0f;
        acc[slice] = 0.0f;
    }
    float peak = MINUS_INFINITY, total = 0.0f;
    for (int begin = first + warp * KEYS; begin <= position; begin += WARPS * KEYS) {
        const T* key[KEYS];
        float s[KEYS];
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            key[k] = keys + u64(min(begin + k, position) % capacity) * stride;
            s[k] = 0.0f;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const int c = slice * WARP + lane;
                if (c < head_dim) s[k] = fmaf(q[slice], to_float(key[k][c]), s[k]);
            }
        }
        float best = peak;
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            s[k] = warp_sum(s[k]) * scale;
            if (softcap > 0.0f) s[k] = softcap * tanhf(s[k] / softcap);
            if (head_bias) s[k] += head_bias[min(begin + k, position)];
            if (begin + k > position) s[k] = MINUS_INFINITY;
            best = fmaxf(best, s[k]);
        }
        // The first key of a run is there, so `best` is a number.
        const float shrink = expf(peak - best);
        total *= shrink;
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) acc[slice] *= shrink;
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            const float weight = expf(s[k] - best);
            total += weight;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const int c = slice * WARP + lane;
                if (c < head_dim) acc[slice] = fmaf(weight, to_float(key[k][kv_heads * head_dim + c]), acc[slice]);
            }
        }
        peak = best;
    }
    if (lane == 0) peaks[warp] = peak, totals[warp] = total;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) results[warp][slice * WARP + lane] = acc[slice];
    __syncthreads();
    float best = peaks[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) best = fmaxf(best, peaks[w]);
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum = fmaf(totals[w], expf(peaks[w] - best), sum);
    for (int c = threadIdx.x; c < head_dim; c += WARPS * WARP) {
        float x = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) x = fmaf(results[w][c], expf(peaks[w] - best), x);
        to[c] = from_float<T>(x / sum);
    }
}

#define WRITE(bits, T)                                                                                                 \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        cache_write_##bits(const T* from, T* cache, const int* places, const int* positions, u32 rows, u32 query_cols, \
                           u32 cols, u32 capacity, u32 count) {                                                        \
        cache_write<T>(from, cache, places, positions, rows, query_cols, cols, capacity, count);                       \
    }

WRITE(16, u16)
WRITE(32, u32)

#define ATTENTION(suffix, T)                                                                                           \
    PLIMSOLL_EXPORT __launch_bounds__(WARPS* WARP)                                                                     \
        cached_attention_##suffix(const T* queries, const T* cache, const int* places, const int* positions,           \
                                  const float* bias, T* out, int row_cols, int distances, int query_heads,             \
                                  int kv_heads, int head_dim, int capacity, int count, int window, float scale,        \
                                  float softcap) {                                                                     \
        cached_attention<T>(queries, cache, places, positions, bias, out, row_cols, distances, query_heads, kv_heads,  \
                            head_dim, capacity, count, window, scale, softcap);                                        \
    }

PLIMSOLL_FOR_EACH_TYPE(ATTENTION)
