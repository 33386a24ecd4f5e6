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
constexpr int KEYS = 4;    // that a warp, or a group of its lanes, reads at a time

// What attention over a cache is asked for.
template <typename T> struct Cached {
    const T *queries, *cache;
    const int *places, *positions;
    // That of distance zero and the first head; null if there is none.
    const float* bias;
    T* out;
    int row_cols, distances, query_heads, kv_heads, head_dim, capacity, count, window;
    float scale, softcap;
};

// One head of one row of it.
template <typename T> struct CachedHead {
    const T *query, *keys;
    T* to;
    const float* bias;
    // The first and the last key that it sees, and from one to the next.
    int first, position, stride, values;
    bool there;

    __device__ __forceinline__ explicit CachedHead(const Cached<T>& of) {
        const int head = blockIdx.x, row = blockIdx.y, kv_head = head / (of.query_heads / of.kv_heads);
        const int place = of.places[row];
        position = of.positions[row];
        there = place >= 0 && place < of.count && position >= 0;
        first = max(position - of.window + 1, 0);
        stride = 2 * of.kv_heads * of.head_dim;
        values = of.kv_heads * of.head_dim;
        keys = of.cache + u64(max(place, 0)) * of.capacity * stride + kv_head * of.head_dim;
        query = of.queries + u64(row) * of.row_cols + head * of.head_dim;
        to = of.out + (u64(row) * of.query_heads + head) * of.head_dim;
        bias = of.bias ? of.bias + i64(head) * of.distances - position : nullptr;
    }

    __device__ __forceinline__ const T* key(int index, const Cached<T>& of) const {
        return keys + u64(min(index, position) % of.capacity) * stride;
    }

    // Of a key's product with the query.
    __device__ __forceinline__ float score(float product, int index, const Cached<T>& of) const {
        float s = product * of.scale;
        if (of.softcap > 0.0f) s = of.softcap * tanhf(s / of.softcap);
        if (bias) s += bias[min(index, position)];
        return index > position ? MINUS_INFINITY : s;
    }
};

// A softmax over the keys seen so far: the largest score, the sum of weights, and of a lane's columns the weighted values.
template <int N> struct Softmax {
    float peak = MINUS_INFINITY, total = 0.0f, acc[N] = {};

    // How much what was found up to here weighs beside a new peak.
    __device__ __forceinline__ static float shrunk(float peak, float best) {
        return peak == MINUS_INFINITY ? 0.0f : expf(peak - best);
    }

    __device__ __forceinline__ void raise(float best) {
        const float shrink = shrunk(peak, best);
        total *= shrink;
#pragma unroll
        for (int i = 0; i < N; i++) acc[i] *= shrink;
        peak = best;
    }
};

// The softmaxes of PARTS parts of the keys, which lie in shared memory by then, added up in their order.
template <int PARTS, int COLS, typename T>
__device__ __forceinline__ void add_up(const float (&results)[PARTS][COLS], const float (&peaks)[PARTS],
                                       const float (&totals)[PARTS], T* to, int head_dim) {
    __syncthreads();
    float best = peaks[0];
#pragma unroll 8
    for (int p = 1; p < PARTS; p++) best = fmaxf(best, peaks[p]);
    float sum = 0.0f;
#pragma unroll 8
    for (int p = 0; p < PARTS; p++) sum = fmaf(totals[p], Softmax<1>::shrunk(peaks[p], best), sum);
    for (int c = threadIdx.x; c < head_dim; c += WARPS * WARP) {
        float x = 0.0f;
#pragma unroll 8
        for (int p = 0; p < PARTS; p++) x = fmaf(results[p][c], Softmax<1>::shrunk(peaks[p], best), x);
        to[c] = from_float<T>(x / sum);
    }
}

template <typename T> __device__ __forceinline__ void no_sequence(T* to, int head_dim) {
    for (int c = threadIdx.x; c < head_dim; c += WARPS * WARP) to[c] = from_float<T>(0.0f);
}

// Of heads of any kind. Warps take runs of keys in turn, each with a softmax of its own.
template <typename T> __device__ __forceinline__ void cached_attention(const Cached<T>& of) {
    __shared__ float results[WARPS][SLICES * WARP], peaks[WARPS], totals[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, head_dim = of.head_dim;
    const CachedHead<T> head(of);
    if (!head.there) return no_sequence(head.to, head_dim);
    float q[SLICES];
    Softmax<SLICES> softmax;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
        const int c = slice * WARP + lane;
        q[slice] = c < head_dim ? to_float(head.query[c]) : 0.0f;
    }
    for (int begin = head.first + warp * KEYS; begin <= head.position; begin += WARPS * KEYS) {
        const T* key[KEYS];
        float s[KEYS];
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            key[k] = head.key(begin + k, of);
            s[k] = 0.0f;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const int c = slice * WARP + lane;
                if (c < head_dim) s[k] = fmaf(q[slice], to_float(key[k][c]), s[k]);
            }
        }
        float best = softmax.peak;
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            s[k] = head.score(warp_sum(s[k]), begin + k, of);
            best = fmaxf(best, s[k]);
        }
        // The first key of a run is there, so `best` is a number.
        softmax.raise(best);
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            const float weight = expf(s[k] - best);
            softmax.total += weight;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const int c = slice * WARP + lane;
                if (c < head_dim) softmax.acc[slice] = fmaf(weight, to_float(key[k][head.values + c]), softmax.acc[slice]);
            }
        }
    }
    if (lane == 0) peaks[warp] = softmax.peak, totals[warp] = softmax.total;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) results[warp][slice * WARP + lane] = softmax.acc[slice];
    add_up(results, peaks, totals, head.to, head_dim);
}

// Of heads of whole packs, LANES at most: so many lanes have a key, a pack each, and groups of them a softmax of their own.
template <int LANES, typename T> __device__ __forceinline__ void cached_attention_packed(const Cached<T>& of) {
    constexpr int N = Pack<T>::N, GROUPS = WARP / LANES, PARTS = WARPS * GROUPS;
    __shared__ float results[PARTS][LANES * N], peaks[PARTS], totals[PARTS];
    const int part = threadIdx.x / LANES, lane = threadIdx.x % LANES, col = lane * N;
    const CachedHead<T> head(of);
    if (!head.there) return no_sequence(head.to, of.head_dim);
    const bool mine = col < of.head_dim;
    float q[N] = {};
    if (mine) load_floats(head.query + col, q);
    Softmax<N> softmax;
    // All lanes of a warp go on together, with or without a key.
    for (int begin = head.first; begin <= head.position; begin += PARTS * KEYS) {
        Pack<T> keys[KEYS], values[KEYS];
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            const T* key = head.key(begin + k * PARTS + part, of) + (mine ? col : 0);
            keys[k] = load_pack(key);
            values[k] = load_pack(key + head.values);
        }
        float s[KEYS], best = softmax.peak;
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            float product = 0.0f;
#pragma unroll
            for (int i = 0; i < N; i++) product = fmaf(q[i], to_float(keys[k].v[i]), product);
            if (!mine) product = 0.0f;
#pragma unroll
            for (int lanes = LANES / 2; lanes > 0; lanes /= 2) product += __shfl_xor_sync(FULL_MASK, product, lanes);
            s[k] = head.score(product, begin + k * PARTS + part, of);
            best = fmaxf(best, s[k]);
        }
        if (best == MINUS_INFINITY) continue;
        softmax.raise(best);
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            const float weight = expf(s[k] - best);
            softmax.total += weight;
#pragma unroll
            for (int i = 0; i < N; i++) softmax.acc[i] = fmaf(weight, to_float(values[k].v[i]), softmax.acc[i]);
        }
    }
    if (lane == 0) peaks[part] = softmax.peak, totals[part] = softmax.total;
#pragma unroll
    for (int i = 0; i < N; i++) results[part][col + i] = softmax.acc[i];
    add_up(results, peaks, totals, head.to, of.head_dim);
}

#define WRITE(bits, T)                                                                                                 \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        cache_write_##bits(const T* from, T* cache, const int* places, const int* positions, u32 rows, u32 query_cols, \
                           u32 cols, u32 capacity, u32 count) {                                                        \
        wait_for_previous_kernel();                                                                                    \
        cache_write<T>(from, cache, places, positions, rows, query_cols, cols, capacity, count);                       \
    }

WRITE(16, u16)
WRITE(32, u32)

#define ATTENTION(name, function, T)                                                                                   \
    PLIMSOLL_EXPORT __launch_bounds__(WARPS* WARP)                                                                     \
        name(const T* queries, const T* cache, const int* places, const int* positions, const float* bias, T* out,     \
             int row_cols, int distances, int query_heads, int kv_heads, int head_dim, int capacity, int count,        \
             int window, float scale, float softcap) {                                                                 \
        wait_for_previous_kernel();                                                                                    \
        function(Cached<T>{queries, cache, places, positions, bias, out, row_cols, distances, query_heads, kv_heads,   \
                           head_dim, capacity, count, window, scale, softcap});                                        \
    }
#define ANY_HEADS(suffix, T) ATTENTION(cached_attention_##suffix, cached_attention, T)
PLIMSOLL_FOR_EACH_TYPE(ANY_HEADS)

#define PACKED_HEADS(lanes, suffix, T)                                                                                 \
    ATTENTION(cached_attention_##lanes##_##suffix, cached_attention_packed<lanes>, T)
#define PACKED_SIXTEEN(suffix, T)                                                                                      \
    PACKED_HEADS(4, suffix, T) PACKED_HEADS(8, suffix, T) PACKED_HEADS(16, suffix, T) PACKED_HEADS(32, suffix, T)
PACKED_SIXTEEN(bf16, bf16)
PACKED_SIXTEEN(f16, f16)
