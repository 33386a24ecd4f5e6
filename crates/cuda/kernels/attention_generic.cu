// Attention by its whole definition: operands in any layout, keys of their own, masks, soft caps, a bias by distance; in any
// storage type, with head dims up to 256. A block keeps 16 rows of one side, four to a warp, and walks over 32 rows of
// the other side at a time, all as floats in shared memory. For scores a lane stands for one of the 32 rows, for results
// for every 32nd column.
#include "attention_problem.cuh"

constexpr int OWN_ROWS = 16, OTHER_ROWS = 32, THREADS = 128;
constexpr int WARP_ROWS = 4;
constexpr int SLICES = 8;  // of 32 columns

static_assert(OWN_ROWS == DISTANCE_TILE, "each block of queries has its sums over distances");

extern __shared__ float memory[];

// A score, and how much it grows with the scaled product.
struct Score {
    float value, slope;
};

__device__ __forceinline__ Score score(const Shape& shape, float product, int head, int query, int key) {
    Score result = {product * shape.scale, 1.0f};
    if (shape.softcap > 0.0f) {
        const float t = tanhf(result.value / shape.softcap);
        result = {shape.softcap * t, 1.0f - t * t};
    }
    if (shape.bias != nullptr) {
        result.value += shape.bias[u64(head) * shape.distances + (key - query + shape.max_length - 1)];
    }
    return result;
}

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
__device__ __forceinline__ void forward(const Shape& shape, const Operands<const T>& in, T* out, float* lse) {
    const Place place = locate(shape.q_bounds, shape.sequences, shape.q_tokens, OWN_ROWS, blockIdx.y, false);
    if (!place.found) return;
    const int head_dim = shape.head_dim, head = blockIdx.x, kv_head = head / (shape.query_heads / shape.kv_heads);
    const u64 out_stride = u64(shape.query_heads) * head_dim;
    const int first_query = place.tile * OWN_ROWS, rows = min(OWN_ROWS, place.length - first_query);
    const u64 first_row = place.start + first_query;
    T* const to = out + first_row * out_stride + head * head_dim;
    if (place.outside) {
        store_zeros(to, out_stride, rows, head_dim);
        if (threadIdx.x < rows) lse[shape.q_row_heads(first_row + threadIdx.x, head)] = 0.0f;
        return;
    }
    const Segment keys = segment(shape.k_bounds, shape.sequences, shape.k_tokens, place.sequence);
    const Rows q = {memory, head_dim}, k = {q.end(OWN_ROWS), head_dim}, v = {k.end(OTHER_ROWS), head_dim};
    const int begin = shape.first_key(first_query), end = shape.keys_end(first_query + rows - 1, keys.length);
    const int lane = threadIdx.x % WARP, own_row = threadIdx.x / WARP * WARP_ROWS;

    q.fetch(OWN_ROWS, in.query(first_row, head, head_dim), in.q_stride, rows);
    float acc[WARP_ROWS][SLICES], s[WARP_ROWS], peak[WARP_ROWS], total[WARP_ROWS];
    clear(acc);
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) peak[r] = MINUS_INFINITY, total[r] = 0.0f;
    for (int first_key = begin / OTHER_ROWS * OTHER_ROWS; first_key < end; first_key += OTHER_ROWS) {
        const int left = keys.length - first_key;
        __syncthreads();
        k.fetch(OTHER_ROWS, in.key(keys.start + first_key, kv_head, head_dim), in.kv_stride, left);
        v.fetch(OTHER_ROWS, in.value(keys.start + first_key, kv_head, head_dim), in.kv_stride, left);
        __syncthreads();
        dots(s, q, own_row, k, lane);
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) {
            const int query = first_query + own_row + r, key = first_key + lane;
            const bool seen = own_row + r < rows && lane < left && shape.visible(query, key);
            const float x = seen ? score(shape, s[r], head, query, key).value : MINUS_INFINITY;
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
        // A query that sees no key has zeros.
        const bool any = total[r] > 0.0f;
        store(acc[r], any ? 1.0f / total[r] : 0.0f, to + (own_row + r) * out_stride, head_dim);
        if (lane == 0) lse[shape.q_row_heads(first_row + own_row + r, head)] = any ? peak[r] + logf(total[r]) : 0.0f;
    }
}

// Adds the gradients of a tile of scores to the sums over their distances. Each sum has one thread, which takes the
// queries in order; those of the next tile of keys are other threads' behind the barrier.
__device__ __forceinline__ void add_distances(const float (&d_score)[WARP_ROWS], float* tile, float* sums, int first_key,
                                              int count) {
    const int lane = threadIdx.x % WARP, own_row = threadIdx.x / WARP * WARP_ROWS;
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) tile[(own_row + r) * (OTHER_ROWS + 1) + lane] = d_score[r];
    __syncthreads();
    for (int at = threadIdx.x; at < OWN_ROWS + OTHER_ROWS - 1; at += THREADS) {
        float sum = 0.0f;
        for (int row = 0; row < OWN_ROWS; row++) {
            const int key = at - (OWN_ROWS - 1) + row;
            if (key >= 0 && key < OTHER_ROWS) sum += tile[row * (OTHER_ROWS + 1) + key];
        }
        if (first_key + at < count) sums[first_key + at] += sum;
    }
}

// Also writes Σ d_out·out of each query to `delta`, for the keys' gradients, and with a bias its gradient's sums.
template <typename T>
__device__ __forceinline__ void grad_queries(const Shape& shape, const Operands<const T>& in, const Operands<T>& grads,
                                             const T* out, const float* lse, const T* d_out, float* delta,
                                             float* all_sums, u64 sums_per_head, int max_keys) {
    const Place place = locate(shape.q_bounds, shape.sequences, shape.q_tokens, OWN_ROWS, blockIdx.y, false);
    if (!place.found) return;
    const int head_dim = shape.head_dim, head = blockIdx.x, kv_head = head / (shape.query_heads / shape.kv_heads);
    const u64 out_stride = u64(shape.query_heads) * head_dim;
    const int first_query = place.tile * OWN_ROWS, rows = min(OWN_ROWS, place.length - first_query);
    const u64 first_row = place.start + first_query;
    T* const to = grads.query(first_row, head, head_dim);
    if (place.outside) {
        store_zeros(to, grads.q_stride, rows, head_dim);
        return;
    }
    const Segment keys = segment(shape.k_bounds, shape.sequences, shape.k_tokens, place.sequence);
    const Rows q = {memory, head_dim}, d = {q.end(OWN_ROWS), head_dim}, k = {d.end(OWN_ROWS), head_dim};
    const Rows v = {k.end(OTHER_ROWS), head_dim};
    float* const tile = v.end(OTHER_ROWS);
    const T* const out_from = out + first_row * out_stride + head * head_dim;
    const int begin = shape.first_key(first_query), end = shape.keys_end(first_query + rows - 1, keys.length);
    const int lane = threadIdx.x % WARP, own_row = threadIdx.x / WARP * WARP_ROWS;
    const int distances = keys.length + OWN_ROWS - 1;
    float* const sums = all_sums + head * sums_per_head + u64(place.tile) * distances +
                        sums_at(place.start, keys.start, place.sequence, max_keys);

    if (shape.bias != nullptr) {
        for (int at = threadIdx.x; at < distances; at += THREADS) sums[at] = 0.0f;
    }
    q.fetch(OWN_ROWS, in.query(first_row, head, head_dim), in.q_stride, rows);
    d.fetch(OWN_ROWS, d_out + first_row * out_stride + head * head_dim, out_stride, rows);
    __syncthreads();
    float own_delta[WARP_ROWS], own_lse[WARP_ROWS];
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        const int row = own_row + r;
        const u64 stat = shape.q_row_heads(first_row + row, head);
        float sum = 0.0f;
        if (row < rows) {
            const T* const result = out_from + row * out_stride;
            for (int c = lane; c < head_dim; c += WARP) sum = fmaf(to_float(result[c]), d.row(row)[c], sum);
        }
        own_delta[r] = warp_sum(sum);
        own_lse[r] = row < rows ? lse[stat] : 0.0f;
        if (lane == 0 && row < rows) delta[stat] = own_delta[r];
    }
    float acc[WARP_ROWS][SLICES], s[WARP_ROWS], d_p[WARP_ROWS];
    clear(acc);
    for (int first_key = begin / OTHER_ROWS * OTHER_ROWS; first_key < end; first_key += OTHER_ROWS) {
        const int left = keys.length - first_key;
        __syncthreads();
        k.fetch(OTHER_ROWS, in.key(keys.start + first_key, kv_head, head_dim), in.kv_stride, left);
        v.fetch(OTHER_ROWS, in.value(keys.start + first_key, kv_head, head_dim), in.kv_stride, left);
        __syncthreads();
        dots(s, q, own_row, k, lane);
        dots(d_p, d, own_row, v, lane);
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) {
            const int query = first_query + own_row + r, key = first_key + lane;
            const bool seen = own_row + r < rows && lane < left && shape.visible(query, key);
            Score of = {0.0f, 0.0f};
            if (seen) of = score(shape, s[r], head, query, key);
            // Of the score, then of the scaled product.
            d_p[r] = seen ? expf(of.value - own_lse[r]) * (d_p[r] - own_delta[r]) : 0.0f;
            s[r] = d_p[r] * of.slope;
        }
        add_rows(acc, s, k);
        if (shape.bias != nullptr) add_distances(d_p, tile, sums, first_key, distances);
    }
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        if (own_row + r < rows) store(acc[r], shape.scale, to + (own_row + r) * grads.q_stride, head_dim);
    }
}

// The query heads that share a key head follow one after another.
template <typename T>
__device__ __forceinline__ void grad_keys(const Shape& shape, const Operands<const T>& in, const Operands<T>& grads,
                                          const float* lse, const T* d_out, const float* delta) {
    const Place place = locate(shape.k_bounds, shape.sequences, shape.k_tokens, OWN_ROWS, blockIdx.y, true);
    if (!place.found) return;
    const int head_dim = shape.head_dim, kv_head = blockIdx.x, sharing = shape.query_heads / shape.kv_heads;
    const u64 out_stride = u64(shape.query_heads) * head_dim;
    const int first_key = place.tile * OWN_ROWS, rows = min(OWN_ROWS, place.length - first_key);
    const u64 first_row = place.start + first_key;
    T* const to_k = grads.key(first_row, kv_head, head_dim);
    T* const to_v = grads.value(first_row, kv_head, head_dim);
    if (place.outside) {
        store_zeros(to_k, grads.kv_stride, rows, head_dim);
        store_zeros(to_v, grads.kv_stride, rows, head_dim);
        return;
    }
    const Segment queries = segment(shape.q_bounds, shape.sequences, shape.q_tokens, place.sequence);
    const Rows k = {memory, head_dim}, v = {k.end(OWN_ROWS), head_dim}, q = {v.end(OWN_ROWS), head_dim};
    const Rows d = {q.end(OTHER_ROWS), head_dim};
    const int begin = shape.first_query(first_key), end = shape.queries_end(first_key + rows - 1, queries.length);
    const int lane = threadIdx.x % WARP, own_row = threadIdx.x / WARP * WARP_ROWS;

    k.fetch(OWN_ROWS, in.key(first_row, kv_head, head_dim), in.kv_stride, rows);
    v.fetch(OWN_ROWS, in.value(first_row, kv_head, head_dim), in.kv_stride, rows);
    float d_k[WARP_ROWS][SLICES], d_v[WARP_ROWS][SLICES], p[WARP_ROWS], d_p[WARP_ROWS];
    clear(d_k);
    clear(d_v);
    for (int head = kv_head * sharing; head < (kv_head + 1) * sharing; head++) {
        for (int first_query = begin / OTHER_ROWS * OTHER_ROWS; first_query < end; first_query += OTHER_ROWS) {
            const int left = queries.length - first_query;
            if (left <= 0) break;
            const u64 row = queries.start + first_query, stat = shape.q_row_heads(row + lane, head);
            __syncthreads();
            q.fetch(OTHER_ROWS, in.query(row, head, head_dim), in.q_stride, left);
            d.fetch(OTHER_ROWS, d_out + row * out_stride + head * head_dim, out_stride, left);
            __syncthreads();
            const float query_lse = lane < left ? lse[stat] : 0.0f;
            const float query_delta = lane < left ? delta[stat] : 0.0f;
            dots(p, k, own_row, q, lane);
            dots(d_p, v, own_row, d, lane);
#pragma unroll
            for (int r = 0; r < WARP_ROWS; r++) {
                const int query = first_query + lane, key = first_key + own_row + r;
                const bool seen = own_row + r < rows && lane < left && shape.visible(query, key);
                Score of = {0.0f, 0.0f};
                if (seen) of = score(shape, p[r], head, query, key);
                p[r] = seen ? expf(of.value - query_lse) : 0.0f;
                d_p[r] = p[r] * (d_p[r] - query_delta) * of.slope;
            }
            add_rows(d_v, p, d);
            add_rows(d_k, d_p, q);
        }
    }
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        if (own_row + r >= rows) break;
        store(d_k[r], shape.scale, to_k + (own_row + r) * grads.kv_stride, head_dim);
        store(d_v[r], 1.0f, to_v + (own_row + r) * grads.kv_stride, head_dim);
    }
}

// The bias' gradient: for each head and distance the sums of all blocks of queries, in order.
PLIMSOLL_EXPORT __launch_bounds__(256) attention_grad_bias(const float* sums, const int* q_bounds, const int* k_bounds,
                                                           float* d_bias, int sequences, int max_length, int distances,
                                                           int max_keys, u64 sums_per_head) {
    wait_for_previous_kernel();
    const int at = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;
    if (at >= distances) return;
    const float* const of_head = sums + head * sums_per_head;
    const int distance = at - (max_length - 1);
    float total = 0.0f;
    for (int sequence = 0; sequence < sequences; sequence++) {
        const int q_start = q_bounds[sequence], k_start = k_bounds[sequence];
        const int queries = max(q_bounds[sequence + 1] - q_start, 0), keys = max(k_bounds[sequence + 1] - k_start, 0);
        const int count = keys + OWN_ROWS - 1;
        const float* from = of_head + sums_at(q_start, k_start, sequence, max_keys);
        for (int first_query = 0; first_query < queries; first_query += OWN_ROWS, from += count) {
            const int index = distance + first_query + OWN_ROWS - 1;
            if (index >= 0 && index < count) total += from[index];
        }
    }
    d_bias[u64(head) * distances + at] = total;
}

#define ATTENTION_GENERIC(SUFFIX, TYPE)                                                                                \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS) attention_forward_##SUFFIX(Problem<TYPE> problem, TYPE* out,            \
                                                                          float* lse) {                                \
        wait_for_previous_kernel();                                                                                    \
        forward(problem.shape, problem.in, out, lse);                                                                  \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS) attention_grad_queries_##SUFFIX(                                        \
        Problem<TYPE> problem, const TYPE* out, const float* lse, const TYPE* d_out, float* delta, float* sums,        \
        u64 sums_per_head, int max_keys) {                                                                             \
        wait_for_previous_kernel();                                                                                    \
        grad_queries(problem.shape, problem.in, problem.grads, out, lse, d_out, delta, sums, sums_per_head, max_keys); \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS) attention_grad_keys_##SUFFIX(                                           \
        Problem<TYPE> problem, const float* lse, const TYPE* d_out, const float* delta) {                              \
        wait_for_previous_kernel();                                                                                    \
        grad_keys(problem.shape, problem.in, problem.grads, lse, d_out, delta);                                        \
    }
PLIMSOLL_FOR_EACH_TYPE(ATTENTION_GENERIC)
