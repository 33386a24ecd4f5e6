// Attention for storage types and head dims that the tensor cores do not take: float, and any head dim up
// to 256. A block keeps 16 rows of one side, four to a warp, and walks over 32 rows of the other side at a
// time, all as floats in shared memory. For scores a lane stands for one of the 32 rows, for results for
// every 32nd column.
#include "attention_places.cuh"

constexpr int OWN_ROWS = 16, OTHER_ROWS = 32, THREADS = 128;
constexpr int WARP_ROWS = 4;
constexpr int SLICES = 8;  // of 32 columns

extern __shared__ float memory[];

// Rows are one float longer than the head dim, so that lanes that stand for rows read different banks.
struct Rows {
    float* at;
    int head_dim;

    __device__ __forceinline__ float* row(int index) const { return at + index * (head_dim + 1); }
    __device__ __forceinline__ float* end(int rows) const { return row(rows); }

    // Reads `count` rows; those from `rows` on become zeros.
    template <typename T> __device__ __forceinline__ void fetch(int count, const T* from, u64 stride, int rows) const {
        for (int index = threadIdx.x; index < count * head_dim; index += THREADS) {
            const int r = index / head_dim, c = index % head_dim;
            row(r)[c] = r < rows ? to_float(from[r * stride + c]) : 0.0f;
        }
    }
};

// The products of a warp's four rows with the lane's row.
__device__ __forceinline__ void dots(float (&result)[WARP_ROWS], Rows own, int own_row, Rows other, int other_row) {
    const float* theirs = other.row(other_row);
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) result[r] = 0.0f;
    for (int c = 0; c < own.head_dim; c++) {
        const float factor = theirs[c];
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) result[r] = fmaf(own.row(own_row + r)[c], factor, result[r]);
    }
}

// acc[r] += Σ weights[r] of lane l · row l, over 32 lanes.
__device__ __forceinline__ void add_rows(float (&acc)[WARP_ROWS][SLICES], const float (&weights)[WARP_ROWS],
                                         Rows other) {
    const int lane = threadIdx.x % WARP;
    for (int l = 0; l < OTHER_ROWS; l++) {
        float weight[WARP_ROWS];
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) weight[r] = __shfl_sync(FULL_MASK, weights[r], l);
        const float* theirs = other.row(l);
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const int c = slice * WARP + lane;
            const float x = c < other.head_dim ? theirs[c] : 0.0f;
#pragma unroll
            for (int r = 0; r < WARP_ROWS; r++) acc[r][slice] = fmaf(weight[r], x, acc[r][slice]);
        }
    }
}

__device__ __forceinline__ void clear(float (&acc)[WARP_ROWS][SLICES]) {
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) acc[r][slice] = 0.0f;
    }
}

// Writes one of a warp's rows, times a factor.
template <typename T>
__device__ __forceinline__ void store(const float (&acc)[SLICES], float factor, T* to, int head_dim) {
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
        const int c = slice * WARP + threadIdx.x % WARP;
        if (c < head_dim) to[c] = from_float<T>(acc[slice] * factor);
    }
}

template <typename T> __device__ __forceinline__ void store_zeros(T* to, u64 stride, int rows, int head_dim) {
    for (int index = threadIdx.x; index < rows * head_dim; index += THREADS) {
        to[index / head_dim * stride + index % head_dim] = from_float<T>(0.0f);
    }
}

template <typename T>
__device__ __forceinline__ void forward(const T* qkv, const int* bounds, T* out, float* lse, int sequences, int tokens,
                                        int query_heads, int kv_heads, int head_dim, float scale, int window) {
    const Place place = locate(bounds, sequences, tokens, OWN_ROWS, blockIdx.y, false);
    if (!place.found) return;
    const int head = blockIdx.x, kv_head = head / (query_heads / kv_heads);
    const u64 stride = (u64)(query_heads + 2 * kv_heads) * head_dim, out_stride = (u64)query_heads * head_dim;
    const int first_query = place.tile * OWN_ROWS, rows = min(OWN_ROWS, place.length - first_query);
    const u64 first_row = place.start + first_query;
    T* const to = out + first_row * out_stride + head * head_dim;
    if (place.outside) {
        store_zeros(to, out_stride, rows, head_dim);
        if (threadIdx.x < rows) lse[(first_row + threadIdx.x) * query_heads + head] = 0.0f;
        return;
    }
    const Rows q = {memory, head_dim}, k = {q.end(OWN_ROWS), head_dim}, v = {k.end(OTHER_ROWS), head_dim};
    const T* const k_from = qkv + place.start * stride + (query_heads + kv_head) * head_dim;
    const T* const v_from = k_from + kv_heads * head_dim;
    const int begin = max(first_query - window + 1, 0) / OTHER_ROWS, end = (first_query + rows - 1) / OTHER_ROWS + 1;
    const int lane = threadIdx.x % WARP, own_row = threadIdx.x / WARP * WARP_ROWS;

    q.fetch(OWN_ROWS, qkv + first_row * stride + head * head_dim, stride, rows);
    float acc[WARP_ROWS][SLICES], s[WARP_ROWS], peak[WARP_ROWS], total[WARP_ROWS];
    clear(acc);
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) peak[r] = MINUS_INFINITY, total[r] = 0.0f;
    for (int tile = begin; tile < end; tile++) {
        const int first_key = tile * OTHER_ROWS, left = place.length - first_key;
        __syncthreads();
        k.fetch(OTHER_ROWS, k_from + first_key * stride, stride, left);
        v.fetch(OTHER_ROWS, v_from + first_key * stride, stride, left);
        __syncthreads();
        dots(s, q, own_row, k, lane);
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) {
            const bool seen = sees(first_query + own_row + r, first_key + lane, window);
            const float x = seen ? s[r] * scale : MINUS_INFINITY;
            const float best = fmaxf(peak[r], warp_max(x));
            // A query that has seen nothing yet must not subtract infinity from infinity.
            const float base = best == MINUS_INFINITY ? 0.0f : best, shrink = expf(peak[r] - base);
            s[r] = expf(x - base);
            total[r] = fmaf(total[r], shrink, warp_sum(s[r]));
            peak[r] = best;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) acc[r][slice] *= shrink;
        }
        add_rows(acc, s, v);
    }
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        if (own_row + r >= rows) break;
        store(acc[r], 1.0f / total[r], to + (own_row + r) * out_stride, head_dim);
        if (lane == 0) lse[(first_row + own_row + r) * query_heads + head] = peak[r] + logf(total[r]);
    }
}

// Also writes Σ d_out·out of each query to `delta`, for the keys' gradients.
template <typename T>
__device__ __forceinline__ void grad_queries(const T* qkv, const T* out, const float* lse, const T* d_out,
                                             const int* bounds, T* d_qkv, float* delta, int sequences, int tokens,
                                             int query_heads, int kv_heads, int head_dim, float scale, int window) {
    const Place place = locate(bounds, sequences, tokens, OWN_ROWS, blockIdx.y, false);
    if (!place.found) return;
    const int head = blockIdx.x, kv_head = head / (query_heads / kv_heads);
    const u64 stride = (u64)(query_heads + 2 * kv_heads) * head_dim, out_stride = (u64)query_heads * head_dim;
    const int first_query = place.tile * OWN_ROWS, rows = min(OWN_ROWS, place.length - first_query);
    const u64 first_row = place.start + first_query;
    T* const to = d_qkv + first_row * stride + head * head_dim;
    if (place.outside) {
        store_zeros(to, stride, rows, head_dim);
        return;
    }
    const Rows q = {memory, head_dim}, d = {q.end(OWN_ROWS), head_dim}, k = {d.end(OWN_ROWS), head_dim};
    const Rows v = {k.end(OTHER_ROWS), head_dim};
    const T* const k_from = qkv + place.start * stride + (query_heads + kv_head) * head_dim;
    const T* const v_from = k_from + kv_heads * head_dim;
    const T* const out_from = out + first_row * out_stride + head * head_dim;
    const int begin = max(first_query - window + 1, 0) / OTHER_ROWS, end = (first_query + rows - 1) / OTHER_ROWS + 1;
    const int lane = threadIdx.x % WARP, own_row = threadIdx.x / WARP * WARP_ROWS;

    q.fetch(OWN_ROWS, qkv + first_row * stride + head * head_dim, stride, rows);
    d.fetch(OWN_ROWS, d_out + first_row * out_stride + head * head_dim, out_stride, rows);
    __syncthreads();
    float own_delta[WARP_ROWS], own_lse[WARP_ROWS];
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        const int row = own_row + r;
        const u64 stat = (first_row + row) * query_heads + head;
        float sum = 0.0f;
        if (row < rows) {
            const T* const result = out_from + row * out_stride;
            for (int c = lane; c < head_dim; c += WARP) sum = fmaf(to_float(result[c]), d.row(row)[c], sum);
        }
        own_delta[r] = warp_sum(sum);
        // Rows that do not exist get chances of zero.
        own_lse[r] = row < rows ? lse[stat] : -MINUS_INFINITY;
        if (lane == 0 && row < rows) delta[stat] = own_delta[r];
    }
    float acc[WARP_ROWS][SLICES], s[WARP_ROWS], d_p[WARP_ROWS];
    clear(acc);
    for (int tile = begin; tile < end; tile++) {
        const int first_key = tile * OTHER_ROWS, left = place.length - first_key;
        __syncthreads();
        k.fetch(OTHER_ROWS, k_from + first_key * stride, stride, left);
        v.fetch(OTHER_ROWS, v_from + first_key * stride, stride, left);
        __syncthreads();
        dots(s, q, own_row, k, lane);
        dots(d_p, d, own_row, v, lane);
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) {
            const bool seen = sees(first_query + own_row + r, first_key + lane, window);
            s[r] = seen ? expf(fmaf(s[r], scale, -own_lse[r])) * (d_p[r] - own_delta[r]) : 0.0f;
        }
        add_rows(acc, s, k);
    }
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        if (own_row + r < rows) store(acc[r], scale, to + (own_row + r) * stride, head_dim);
    }
}

// The query heads that share a key head follow one after another.
template <typename T>
__device__ __forceinline__ void grad_keys(const T* qkv, const float* lse, const T* d_out, const int* bounds, T* d_qkv,
                                          const float* delta, int sequences, int tokens, int query_heads, int kv_heads,
                                          int head_dim, float scale, int window) {
    const Place place = locate(bounds, sequences, tokens, OWN_ROWS, blockIdx.y, true);
    if (!place.found) return;
    const int kv_head = blockIdx.x, sharing = query_heads / kv_heads;
    const u64 stride = (u64)(query_heads + 2 * kv_heads) * head_dim, out_stride = (u64)query_heads * head_dim;
    const int first_key = place.tile * OWN_ROWS, rows = min(OWN_ROWS, place.length - first_key);
    const u64 first_row = place.start + first_key;
    const u64 k_column = (u64)(query_heads + kv_head) * head_dim, v_column = k_column + kv_heads * head_dim;
    T* const to = d_qkv + first_row * stride;
    if (place.outside) {
        store_zeros(to + k_column, stride, rows, head_dim);
        store_zeros(to + v_column, stride, rows, head_dim);
        return;
    }
    const Rows k = {memory, head_dim}, v = {k.end(OWN_ROWS), head_dim}, q = {v.end(OWN_ROWS), head_dim};
    const Rows d = {q.end(OTHER_ROWS), head_dim};
    const int last_key = first_key + rows - 1;
    const int last_query = last_key + min(place.length - 1 - last_key, window - 1);
    const int begin = first_key / OTHER_ROWS, end = last_query / OTHER_ROWS + 1;
    const int lane = threadIdx.x % WARP, own_row = threadIdx.x / WARP * WARP_ROWS;

    k.fetch(OWN_ROWS, qkv + first_row * stride + k_column, stride, rows);
    v.fetch(OWN_ROWS, qkv + first_row * stride + v_column, stride, rows);
    float d_k[WARP_ROWS][SLICES], d_v[WARP_ROWS][SLICES], p[WARP_ROWS], d_p[WARP_ROWS];
    clear(d_k);
    clear(d_v);
    for (int head = kv_head * sharing; head < (kv_head + 1) * sharing; head++) {
        for (int tile = begin; tile < end; tile++) {
            const int first_query = tile * OTHER_ROWS, left = place.length - first_query;
            const u64 row = place.start + first_query, stat = (row + lane) * query_heads + head;
            __syncthreads();
            q.fetch(OTHER_ROWS, qkv + row * stride + head * head_dim, stride, left);
            d.fetch(OTHER_ROWS, d_out + row * out_stride + head * head_dim, out_stride, left);
            __syncthreads();
            const float query_lse = lane < left ? lse[stat] : -MINUS_INFINITY;
            const float query_delta = lane < left ? delta[stat] : 0.0f;
            dots(p, k, own_row, q, lane);
            dots(d_p, v, own_row, d, lane);
#pragma unroll
            for (int r = 0; r < WARP_ROWS; r++) {
                const bool seen = sees(first_query + lane, first_key + own_row + r, window);
                p[r] = seen ? expf(fmaf(p[r], scale, -query_lse)) : 0.0f;
                d_p[r] = p[r] * (d_p[r] - query_delta);
            }
            add_rows(d_v, p, d);
            add_rows(d_k, d_p, q);
        }
    }
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        if (own_row + r >= rows) break;
        store(d_k[r], scale, to + (own_row + r) * stride + k_column, head_dim);
        store(d_v[r], 1.0f, to + (own_row + r) * stride + v_column, head_dim);
    }
}

#define ATTENTION_GENERIC(SUFFIX, TYPE)                                                                             \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS) attention_forward_##SUFFIX(                                          \
        const TYPE* qkv, const int* bounds, TYPE* out, float* lse, int sequences, int tokens, int query_heads,      \
        int kv_heads, int head_dim, float scale, int window) {                                                      \
        forward(qkv, bounds, out, lse, sequences, tokens, query_heads, kv_heads, head_dim, scale, window);          \
    }                                                                                                               \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS) attention_grad_queries_##SUFFIX(                                     \
        const TYPE* qkv, const TYPE* out, const float* lse, const TYPE* d_out, const int* bounds, TYPE* d_qkv,      \
        float* delta, int sequences, int tokens, int query_heads, int kv_heads, int head_dim, float scale,          \
        int window) {                                                                                               \
        grad_queries(qkv, out, lse, d_out, bounds, d_qkv, delta, sequences, tokens, query_heads, kv_heads,          \
                     head_dim, scale, window);                                                                      \
    }                                                                                                               \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS) attention_grad_keys_##SUFFIX(                                        \
        const TYPE* qkv, const float* lse, const TYPE* d_out, const int* bounds, TYPE* d_qkv, const float* delta,   \
        int sequences, int tokens, int query_heads, int kv_heads, int head_dim, float scale, int window) {          \
        grad_keys(qkv, lse, d_out, bounds, d_qkv, delta, sequences, tokens, query_heads, kv_heads, head_dim, scale, \
                  window);                                                                                          \
    }
PLIMSOLL_FOR_EACH_TYPE(ATTENTION_GENERIC)
