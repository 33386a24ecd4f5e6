// Attention by its whole definition, as the host describes it to kernels: operands in any layout, keys of their own,
// masks, soft caps, a bias by distance.
#pragma once

#include "attention_places.cuh"

// Queries that have sums over distances of their own, of which the bias' gradient is made.
constexpr int DISTANCE_TILE = 16;

// The operands, as the host lays them out.
template <typename T> struct Operands {
    T *q, *k, *v;            // head zero of row zero
    u64 q_stride, kv_stride; // from row to row

    __device__ __forceinline__ T* query(u64 row, int head, int head_dim) const {
        return q + row * q_stride + u64(head) * head_dim;
    }
    __device__ __forceinline__ T* key(u64 row, int head, int head_dim) const {
        return k + row * kv_stride + u64(head) * head_dim;
    }
    __device__ __forceinline__ T* value(u64 row, int head, int head_dim) const {
        return v + row * kv_stride + u64(head) * head_dim;
    }
};

// Which tokens there are, and what makes a score of a product.
struct Shape {
    const int *q_bounds, *k_bounds;
    const float* bias;  // null: none
    int sequences, q_tokens, k_tokens;
    int query_heads, kv_heads, head_dim;
    int causal, window;
    int max_length, distances;  // of the bias
    float scale, softcap;       // zero: no cap

    __device__ __forceinline__ bool visible(int query, int key) const {
        return !causal || sees(query, key, window);
    }
    // Keys that any of these queries sees, and queries that see any of these keys: from the first to behind the last.
    __device__ __forceinline__ int first_key(int query) const { return causal ? max(query - window + 1, 0) : 0; }
    __device__ __forceinline__ int keys_end(int last_query, int keys) const {
        return causal ? min(last_query + 1, keys) : keys;
    }
    __device__ __forceinline__ int first_query(int key) const { return causal ? key : 0; }
    __device__ __forceinline__ int queries_end(int last_key, int queries) const {
        return causal ? last_key + 1 + min(max(queries - last_key - 1, 0), window - 1) : queries;
    }
    __device__ __forceinline__ u64 q_row_heads(u64 row, int head) const { return row * query_heads + head; }
};

// Where the sums over distances of a block of queries begin; the host plans them by the same rule.
__device__ __forceinline__ u64 sums_at(int q_start, int k_start, int sequence, int max_keys) {
    return u64(q_start) * max_keys / DISTANCE_TILE + q_start + k_start + DISTANCE_TILE * u64(sequence);
}

// All that every kernel takes; the host fills it in word by word.
template <typename T> struct Problem {
    Shape shape;
    Operands<const T> in;
    Operands<T> grads;
};
static_assert(sizeof(Problem<float>) == 19 * sizeof(u64), "as the host counts it");
