// Attention by its whole definition on tensor cores, for one storage type (ATTENTION_TYPE) and one head dim (HEAD_DIM). A
// block keeps 64 rows of one side, 16 to a warp, and walks over tiles of the other side, of which the next is fetched
// meanwhile.
#pragma once

#define ATTENTION_WITHOUT_WGMMA
#include "attention_problem.cuh"
#include "attention_tiles.cuh"

constexpr int OWN = 64;
constexpr int WARPS = OWN / 16;
constexpr int GENERAL_THREADS = WARPS * WARP;
constexpr int FORWARD_OTHERS = 64;
constexpr int GRADIENT_OTHERS = 32;

// The bias that a tile of scores needs, of one head: an entry for each distance that occurs in it.
template <int OTHERS> struct BiasTile {
    static constexpr int COUNT = OWN + OTHERS - 1;
    static constexpr u32 BYTES = (OWN + OTHERS) * 4;
    static_assert(COUNT <= GENERAL_THREADS, "a thread has an entry");
    u32 at;

    // From that of the last query and the first key on.
    __device__ __forceinline__ void fetch(const Shape& shape, int head, int first_query, int queries, int first_key) const {
        const int index = first_key - (first_query + queries - 1) + (int)threadIdx.x + shape.max_length - 1;
        if (threadIdx.x >= COUNT) return;
        const u32 to = at + threadIdx.x * 4;
        if (index >= 0 && index < shape.distances) copy4(to, shape.bias + u64(head) * shape.distances + index);
        else store_shared(to, 0.0f);
    }

    // For rows of the tile, counted from its first query and its first key.
    __device__ __forceinline__ float entry(int key, int query, int queries) const {
        return load_shared(at + (key - query + queries - 1) * 4);
    }
};

// A score, and how much it grows with the scaled product.
struct Shaped {
    float value, slope;

    __device__ __forceinline__ Shaped(const Shape& shape, float product) : value(product * shape.scale), slope(1.0f) {
        if (shape.softcap > 0.0f) {
            const float t = tanhf(value / shape.softcap);
            value = shape.softcap * t;
            slope = 1.0f - t * t;
        }
    }
};

// Most tiles have no pair of rows that do not see each other: the question is asked of the tile first, and where its
// answer is known the loops over pairs are compiled without it.
//
// Whether all queries of a range see all keys of another, and all of them exist.
__device__ __forceinline__ bool is_whole(const Shape& shape, int first_query, int queries, int last_query, int first_key,
                                         int keys, int last_key) {
    const bool exist = first_query + queries <= last_query && first_key + keys <= last_key;
    return exist && (!shape.causal || all_seen(first_query, queries, first_key, keys, shape.window));
}

__device__ __forceinline__ u32 aligned_memory() { return (shared_address(memory) + 1023) & ~1023u; }

PLIMSOLL_EXPORT __launch_bounds__(GENERAL_THREADS)
    attention_forward(const __grid_constant__ Problem<T> problem, T* out, float* lse) {
    wait_for_previous_kernel();
    constexpr int KEYS = FORWARD_OTHERS;
    const Shape& shape = problem.shape;
    const Place place = locate(shape.q_bounds, shape.sequences, shape.q_tokens, OWN, blockIdx.y, false);
    if (!place.found) return;
    const int head = blockIdx.x, kv_head = head / (shape.query_heads / shape.kv_heads);
    const u64 out_stride = u64(shape.query_heads) * D;
    const int first_query = place.tile * OWN, rows = min(OWN, place.length - first_query);
    const u64 first_row = place.start + first_query;
    T* const to = out + first_row * out_stride + head * D;
    if (place.outside) {
        store_zeros(to, out_stride, rows);
        if (threadIdx.x < rows) lse[shape.q_row_heads(first_row + threadIdx.x, head)] = 0.0f;
        return;
    }
    const Segment keys = segment(shape.k_bounds, shape.sequences, shape.k_tokens, place.sequence);
    const Tile<OWN> q = {aligned_memory()};
    const u32 stages = q.at + Tile<OWN>::BYTES, biases = stages + 4 * Tile<KEYS>::BYTES;
    const int begin = shape.first_key(first_query) / KEYS;
    const int end = (shape.keys_end(first_query + rows - 1, keys.length) + KEYS - 1) / KEYS;
    auto k_tile = [&](int tile) { return Tile<KEYS>{stages + (tile - begin) % 2 * 2 * Tile<KEYS>::BYTES}; };
    auto v_tile = [&](int tile) { return Tile<KEYS>{k_tile(tile).at + Tile<KEYS>::BYTES}; };
    auto bias_tile = [&](int tile) { return BiasTile<KEYS>{biases + (tile - begin) % 2 * BiasTile<KEYS>::BYTES}; };
    auto fetch = [&](int tile) {
        const int first_key = tile * KEYS, left = keys.length - first_key;
        const u64 row = keys.start + first_key, stride = problem.in.kv_stride;
        k_tile(tile).template fetch<GENERAL_THREADS>(problem.in.key(row, kv_head, D), stride, left);
        v_tile(tile).template fetch<GENERAL_THREADS>(problem.in.value(row, kv_head, D), stride, left);
        if (shape.bias != nullptr) bias_tile(tile).fetch(shape, head, first_query, OWN, first_key);
    };

    q.template fetch<GENERAL_THREADS>(problem.in.query(first_row, head, D), problem.in.q_stride, rows);
    if (begin < end) fetch(begin);
    copies_commit();
    const Lane own;
    float s[KEYS / 8][4], acc[D / 8][4];
    u32 p[KEYS / 16][4];
    // Scores come scaled.
    Softmax softmax(1.0f);
    clear(acc);
    for (int tile = begin; tile < end; tile++) {
        copies_wait<0>();
        __syncthreads();
        // All warps are done with the tile before this one.
        if (tile + 1 < end) fetch(tile + 1);
        copies_commit();
        score<KEYS>(s, q, 0, k_tile(tile));
        const BiasTile<KEYS> bias = bias_tile(tile);
        const auto shape_scores = [&](bool masked) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = own.row + i / 2 * 8, column = n * 8 + own.column + i % 2;
                    const int query = first_query + row, key = tile * KEYS + column;
                    float value = Shaped(shape, s[n][i]).value;
                    if (shape.bias != nullptr) value += bias.entry(column, row, OWN);
                    const bool seen = !masked || (key < keys.length && shape.visible(query, key));
                    s[n][i] = seen ? value : MINUS_INFINITY;
                }
            }
        };
        // Queries that do not exist are not stored.
        if (is_whole(shape, first_query, OWN, first_query + OWN, tile * KEYS, KEYS, keys.length)) shape_scores(false);
        else shape_scores(true);
        softmax.absorb<KEYS>(s);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) acc[n][i] *= softmax.shrink[i / 2];
        }
        as_left<KEYS>(p, s);
        blend<KEYS>(acc, p, v_tile(tile));
    }
    copies_wait<0>();
    __syncthreads();
    softmax.finish();
    // A query that sees no key has zeros.
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) factor[r] = softmax.total[r] > 0.0f ? 1.0f / softmax.total[r] : 0.0f;
    store(acc, factor[0], factor[1], q, to, out_stride, rows);
    if (own.column != 0) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = own.row + 8 * r;
        const float result = softmax.total[r] > 0.0f ? softmax.peak[r] + logf(softmax.total[r]) : 0.0f;
        if (row < rows) lse[shape.q_row_heads(first_row + row, head)] = result;
    }
}

// A warp's scores' gradients for 16 queries, from which their sums over distances are made.
struct DistanceTile {
    // Pairs of neighbours in one access, the rows of a quarter of a warp in different banks.
    static constexpr int STRIDE = 40;
    static constexpr u32 BYTES = DISTANCE_TILE * STRIDE * 4;
    u32 at;

    __device__ __forceinline__ void put(int row, int column, float first, float second) const {
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + (row * STRIDE + column) * 4), "f"(first), "f"(second)
                     : "memory");
    }

    // Each sum has one lane, which takes the queries in order; those of the next tile of keys may be other lanes'.
    __device__ __forceinline__ void add(float* sums, int first_key, int count) const {
        __syncwarp();
        for (int index = threadIdx.x % WARP; index < DISTANCE_TILE + GRADIENT_OTHERS - 1; index += WARP) {
            float sum = 0.0f;
#pragma unroll
            for (int row = 0; row < DISTANCE_TILE; row++) {
                const int key = index - (DISTANCE_TILE - 1) + row;
                if (key >= 0 && key < GRADIENT_OTHERS) sum += load_shared(at + (row * STRIDE + key) * 4);
            }
            if (first_key + index < count) sums[first_key + index] += sum;
        }
        __syncwarp();
    }
};

// Also writes Σ d_out·out of each query to `delta`, for the keys' gradients, and with a bias its gradient's sums.
PLIMSOLL_EXPORT __launch_bounds__(GENERAL_THREADS)
    attention_grad_queries(const __grid_constant__ Problem<T> problem, const T* out, const float* lse, const T* d_out,
                           float* delta, float* all_sums, u64 sums_per_head, int max_keys) {
    wait_for_previous_kernel();
    constexpr int KEYS = GRADIENT_OTHERS;
    const Shape& shape = problem.shape;
    const Place place = locate(shape.q_bounds, shape.sequences, shape.q_tokens, OWN, blockIdx.y, false);
    if (!place.found) return;
    const int head = blockIdx.x, kv_head = head / (shape.query_heads / shape.kv_heads);
    const u64 out_stride = u64(shape.query_heads) * D;
    const int first_query = place.tile * OWN, rows = min(OWN, place.length - first_query);
    const u64 first_row = place.start + first_query;
    T* const to = problem.grads.query(first_row, head, D);
    if (place.outside) {
        store_zeros(to, problem.grads.q_stride, rows);
        return;
    }
    const Segment keys = segment(shape.k_bounds, shape.sequences, shape.k_tokens, place.sequence);
    const Tile<OWN> q = {aligned_memory()}, d = {q.at + Tile<OWN>::BYTES};
    const u32 stages = q.at + 2 * Tile<OWN>::BYTES, biases = stages + 4 * Tile<KEYS>::BYTES;
    const int warp = threadIdx.x / WARP;
    const DistanceTile distance_tile = {biases + 2 * BiasTile<KEYS>::BYTES + warp * DistanceTile::BYTES};
    const int begin = shape.first_key(first_query) / KEYS;
    const int end = (shape.keys_end(first_query + rows - 1, keys.length) + KEYS - 1) / KEYS;
    auto k_tile = [&](int tile) { return Tile<KEYS>{stages + (tile - begin) % 2 * 2 * Tile<KEYS>::BYTES}; };
    auto v_tile = [&](int tile) { return Tile<KEYS>{k_tile(tile).at + Tile<KEYS>::BYTES}; };
    auto bias_tile = [&](int tile) { return BiasTile<KEYS>{biases + (tile - begin) % 2 * BiasTile<KEYS>::BYTES}; };
    auto fetch = [&](int tile) {
        const int first_key = tile * KEYS, left = keys.length - first_key;
        const u64 row = keys.start + first_key, stride = problem.in.kv_stride;
        k_tile(tile).template fetch<GENERAL_THREADS>(problem.in.key(row, kv_head, D), stride, left);
        v_tile(tile).template fetch<GENERAL_THREADS>(problem.in.value(row, kv_head, D), stride, left);
        if (shape.bias != nullptr) bias_tile(tile).fetch(shape, head, first_query, OWN, first_key);
    };

    const T* const d_from = d_out + first_row * out_stride + head * D;
    q.template fetch<GENERAL_THREADS>(problem.in.query(first_row, head, D), problem.in.q_stride, rows);
    d.template fetch<GENERAL_THREADS>(d_from, out_stride, rows);
    if (begin < end) fetch(begin);
    copies_commit();
    // The warp's queries are one tile of those that have sums of their own.
    const int distances = keys.length + DISTANCE_TILE - 1;
    const u64 first_sum = sums_at(place.start, keys.start, place.sequence, max_keys);
    float* const sums = all_sums + head * sums_per_head + first_sum + u64(place.tile * WARPS + warp) * distances;
    const bool has_sums = shape.bias != nullptr && warp * DISTANCE_TILE < rows;
    for (int at = threadIdx.x % WARP; has_sums && at < distances; at += WARP) sums[at] = 0.0f;
    const u64 first_stat = shape.q_row_heads(first_row, head);
    float own_delta[2], own_lse[2];
    row_deltas(own_delta, out + first_row * out_stride + head * D, d_from, out_stride, rows, delta + first_stat,
               shape.query_heads);
    const Lane own;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = own.row + 8 * r;
        own_lse[r] = row < rows ? lse[first_stat + u64(row) * shape.query_heads] : 0.0f;
    }

    float s[KEYS / 8][4], d_p[KEYS / 8][4], acc[D / 8][4];
    u32 left[KEYS / 16][4];
    clear(acc);
    for (int tile = begin; tile < end; tile++) {
        copies_wait<0>();
        __syncthreads();
        if (tile + 1 < end) fetch(tile + 1);
        copies_commit();
        score<KEYS>(s, q, 0, k_tile(tile));
        score<KEYS>(d_p, d, 0, v_tile(tile));
        const BiasTile<KEYS> bias = bias_tile(tile);
        const auto differentiate = [&](bool masked) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = own.row + i / 2 * 8, column = n * 8 + own.column + i % 2;
                    const int query = first_query + row, key = tile * KEYS + column;
                    Shaped shaped(shape, s[n][i]);
                    if (shape.bias != nullptr) shaped.value += bias.entry(column, row, OWN);
                    const bool seen = !masked || (row < rows && key < keys.length && shape.visible(query, key));
                    const float chance = seen ? exp2_fast((shaped.value - own_lse[i / 2]) * LOG2_E) : 0.0f;
                    // Of the score, then of the scaled product.
                    d_p[n][i] = chance * (d_p[n][i] - own_delta[i / 2]);
                    s[n][i] = d_p[n][i] * shaped.slope;
                }
            }
        };
        if (is_whole(shape, first_query, OWN, place.length, tile * KEYS, KEYS, keys.length)) differentiate(false);
        else differentiate(true);
        if (has_sums) {
            const int row = own.row % DISTANCE_TILE;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                distance_tile.put(row, n * 8 + own.column, d_p[n][0], d_p[n][1]);
                distance_tile.put(row + 8, n * 8 + own.column, d_p[n][2], d_p[n][3]);
            }
            distance_tile.add(sums, tile * KEYS, distances);
        }
        as_left<KEYS>(left, s);
        blend<KEYS>(acc, left, k_tile(tile));
    }
    copies_wait<0>();
    __syncthreads();
    store(acc, shape.scale, shape.scale, q, to, problem.grads.q_stride, rows);
}

// The query heads that share a key head follow one after another.
PLIMSOLL_EXPORT __launch_bounds__(GENERAL_THREADS)
    attention_grad_keys(const __grid_constant__ Problem<T> problem, const float* lse, const T* d_out,
                        const float* delta) {
    wait_for_previous_kernel();
    constexpr int QUERIES = GRADIENT_OTHERS;
    const Shape& shape = problem.shape;
    const Place place = locate(shape.k_bounds, shape.sequences, shape.k_tokens, OWN, blockIdx.y, true);
    if (!place.found) return;
    const int kv_head = blockIdx.x, sharing = shape.query_heads / shape.kv_heads;
    const u64 out_stride = u64(shape.query_heads) * D;
    const int first_key = place.tile * OWN, rows = min(OWN, place.length - first_key);
    const u64 first_row = place.start + first_key;
    T* const to_k = problem.grads.key(first_row, kv_head, D);
    T* const to_v = problem.grads.value(first_row, kv_head, D);
    if (place.outside) {
        store_zeros(to_k, problem.grads.kv_stride, rows);
        store_zeros(to_v, problem.grads.kv_stride, rows);
        return;
    }
    const Segment queries = segment(shape.q_bounds, shape.sequences, shape.q_tokens, place.sequence);
    const Tile<OWN> k = {aligned_memory()}, v = {k.at + Tile<OWN>::BYTES};
    const u32 stages = k.at + 2 * Tile<OWN>::BYTES, biases = stages + 4 * Tile<QUERIES>::BYTES;
    const u32 stats = biases + 2 * BiasTile<QUERIES>::BYTES;
    const int begin = shape.first_query(first_key) / QUERIES;
    const int last_query = min(shape.queries_end(first_key + rows - 1, queries.length), queries.length);
    const int tiles = max((last_query + QUERIES - 1) / QUERIES - begin, 0), items = tiles * sharing;
    auto q_tile = [&](int item) { return Tile<QUERIES>{stages + item % 2 * 2 * Tile<QUERIES>::BYTES}; };
    auto d_tile = [&](int item) { return Tile<QUERIES>{q_tile(item).at + Tile<QUERIES>::BYTES}; };
    auto bias_tile = [&](int item) { return BiasTile<QUERIES>{biases + item % 2 * BiasTile<QUERIES>::BYTES}; };
    auto lse_at = [&](int item, int query) { return stats + (item % 2 * 2 * QUERIES + query) * 4; };
    auto delta_at = [&](int item, int query) { return lse_at(item, query) + QUERIES * 4; };
    auto head_of = [&](int item) { return kv_head * sharing + item / tiles; };
    auto query_of = [&](int item) { return (begin + item % tiles) * QUERIES; };
    auto fetch = [&](int item) {
        const int head = head_of(item), first_query = query_of(item), left = queries.length - first_query;
        const u64 row = queries.start + first_query;
        q_tile(item).template fetch<GENERAL_THREADS>(problem.in.query(row, head, D), problem.in.q_stride, left);
        d_tile(item).template fetch<GENERAL_THREADS>(d_out + row * out_stride + head * D, out_stride, left);
        if (shape.bias != nullptr) bias_tile(item).fetch(shape, head, first_query, QUERIES, first_key);
        if (threadIdx.x < QUERIES) {
            const u64 stat = shape.q_row_heads(row + threadIdx.x, head);
            if ((int)threadIdx.x < left) {
                copy4(lse_at(item, threadIdx.x), lse + stat);
                copy4(delta_at(item, threadIdx.x), delta + stat);
            } else {
                store_shared(lse_at(item, threadIdx.x), 0.0f);
                store_shared(delta_at(item, threadIdx.x), 0.0f);
            }
        }
    };

    k.template fetch<GENERAL_THREADS>(problem.in.key(first_row, kv_head, D), problem.in.kv_stride, rows);
    v.template fetch<GENERAL_THREADS>(problem.in.value(first_row, kv_head, D), problem.in.kv_stride, rows);
    if (items > 0) fetch(0);
    copies_commit();
    const Lane own;
    float d_k[D / 8][4], d_v[D / 8][4], s[QUERIES / 8][4], d_p[QUERIES / 8][4];
    u32 left[QUERIES / 16][4];
    clear(d_k);
    clear(d_v);
    for (int item = 0; item < items; item++) {
        copies_wait<0>();
        __syncthreads();
        if (item + 1 < items) fetch(item + 1);
        copies_commit();
        score<QUERIES>(s, k, 0, q_tile(item));
        score<QUERIES>(d_p, v, 0, d_tile(item));
        const BiasTile<QUERIES> bias = bias_tile(item);
        const int first_query = query_of(item);
        const auto differentiate = [&](bool masked) {
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++) {
                const float2 column_lse = load_shared_pair(lse_at(item, n * 8 + own.column));
                const float2 column_delta = load_shared_pair(delta_at(item, n * 8 + own.column));
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = own.row + i / 2 * 8, column = n * 8 + own.column + i % 2;
                    const int query = first_query + column, key = first_key + row;
                    Shaped shaped(shape, s[n][i]);
                    if (shape.bias != nullptr) shaped.value += bias.entry(row, column, QUERIES);
                    const bool seen = !masked || (row < rows && query < queries.length && shape.visible(query, key));
                    const float query_lse = i % 2 ? column_lse.y : column_lse.x;
                    const float query_delta = i % 2 ? column_delta.y : column_delta.x;
                    s[n][i] = seen ? exp2_fast((shaped.value - query_lse) * LOG2_E) : 0.0f;
                    d_p[n][i] = s[n][i] * (d_p[n][i] - query_delta) * shaped.slope;
                }
            }
        };
        if (is_whole(shape, first_query, QUERIES, queries.length, first_key, OWN, place.length)) differentiate(false);
        else differentiate(true);
        as_left<QUERIES>(left, s);
        blend<QUERIES>(d_v, left, d_tile(item));
        as_left<QUERIES>(left, d_p);
        blend<QUERIES>(d_k, left, q_tile(item));
    }
    copies_wait<0>();
    __syncthreads();
    store(d_k, shape.scale, shape.scale, k, to_k, problem.grads.kv_stride, rows);
    store(d_v, 1.0f, 1.0f, v, to_v, problem.grads.kv_stride, rows);
}
