// Rotary positions, half-split: pairs are (i, i + rotated/2).
#include "plimsoll.cuh"

#define THREADS_MAX 512
// Heads that a thread turns at a time: `HEADS` in src/rope.rs.
#define ROPE_HEADS 2

// The first `rotated` columns of a head are turned. `tails` is the number of columns behind those, in all turned heads,
// that have to be copied, `values` that of the columns behind the heads: none if the rows stay in place. A position outside
// the table shows as NaN.
#define ROPE_PARAMETERS(T)                                                                                             \
    const T *qkv, const float *table, const int *positions, T *out, int heads, int head_dim, int rotated, int cols,    \
        int tails, int values, int table_rows, float sign
#define ROPE_ARGUMENTS qkv, table, positions, out, heads, head_dim, rotated, cols, tails, values, table_rows, sign

__device__ __forceinline__ float turned_low(float a, float b, float cosine, float s) { return fmaf(a, cosine, -b * s); }
__device__ __forceinline__ float turned_high(float a, float b, float cosine, float s) { return fmaf(b, cosine, a * s); }

// Where the i-th of the columns that are not turned lies in a row.
__device__ __forceinline__ int tail_column(int i, int head_dim, int rotated) {
    const int tail = head_dim - rotated;
    return i / tail * head_dim + rotated + i % tail;
}

// For heads and halves of whole packs. A block turns some heads of one row, a thread a run of pairs in ROPE_HEADS of
// them: those are on their way while their angles are looked up.
template <typename T> __device__ __forceinline__ void rope(ROPE_PARAMETERS(T)) {
    constexpr int N = Pack<T>::N;
    const int half = rotated / 2, chunks = half / N, stride = blockDim.x / chunks;
    const int at = threadIdx.x % chunks * N, head0 = blockIdx.y * stride * ROPE_HEADS + threadIdx.x / chunks;
    const int position = positions[blockIdx.x];
    const T* from = qkv + u64(blockIdx.x) * cols + at;
    T* to = out + u64(blockIdx.x) * cols + at;
    Pack<T> a[ROPE_HEADS], b[ROPE_HEADS];
#pragma unroll
    for (int h = 0; h < ROPE_HEADS; h++) {
        const int head = head0 + h * stride, low = head * head_dim;
        if (head < heads) a[h] = load_pack(from + low), b[h] = load_pack(from + low + half);
    }
    const bool known = position >= 0 && position < table_rows;
    const float* angles = table + u64(known ? position : 0) * rotated + at;
    float cosine[N], sine[N];
    load_some(angles, N, true, cosine);
    load_some(angles + half, N, true, sine);
#pragma unroll
    for (int i = 0; i < N; i++) {
        cosine[i] = known ? cosine[i] : __int_as_float(0x7fffffff);
        sine[i] *= sign;
    }
#pragma unroll
    for (int h = 0; h < ROPE_HEADS; h++) {
        const int head = head0 + h * stride, low = head * head_dim;
        if (head >= heads) break;
        float low_out[N], high_out[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            low_out[i] = turned_low(to_float(a[h].v[i]), to_float(b[h].v[i]), cosine[i], sine[i]);
            high_out[i] = turned_high(to_float(a[h].v[i]), to_float(b[h].v[i]), cosine[i], sine[i]);
        }
        store_floats(to + low, low_out);
        store_floats(to + low + half, high_out);
    }
    if (blockIdx.y > 0) return;
    for (int i = threadIdx.x * N; i < tails; i += blockDim.x * N) {
        const u64 tail = u64(blockIdx.x) * cols + tail_column(i, head_dim, rotated);
        store_pack(out + tail, load_pack(qkv + tail));
    }
    const u64 behind = u64(blockIdx.x) * cols + heads * head_dim;
    for (int i = threadIdx.x * N; i < values; i += blockDim.x * N) {
        store_pack(out + behind + i, load_pack(qkv + behind + i));
    }
}

// For others, pair by pair.
template <typename T> __device__ __forceinline__ void rope_odd(ROPE_PARAMETERS(T)) {
    const int half = rotated / 2, position = positions[blockIdx.x];
    const bool known = position >= 0 && position < table_rows;
    const float* angles = table + u64(known ? position : 0) * rotated;
    const u64 row = u64(blockIdx.x) * cols;
    for (int pair = threadIdx.x; pair < heads * half; pair += blockDim.x) {
        const int i = pair % half;
        const u64 low = row + pair / half * head_dim + i;
        const float a = to_float(qkv[low]), b = to_float(qkv[low + half]);
        const float cosine = known ? angles[i] : __int_as_float(0x7fffffff), sine = angles[half + i] * sign;
        out[low] = from_float<T>(turned_low(a, b, cosine, sine));
        out[low + half] = from_float<T>(turned_high(a, b, cosine, sine));
    }
    for (int i = threadIdx.x; i < tails; i += blockDim.x) {
        const u64 at = row + tail_column(i, head_dim, rotated);
        out[at] = qkv[at];
    }
    for (int i = threadIdx.x; i < values; i += blockDim.x) {
        const u64 at = row + heads * head_dim + i;
        out[at] = qkv[at];
    }
}

#define KERNELS(suffix, T)                                                                                             \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS_MAX) rope_##suffix(ROPE_PARAMETERS(T)) {                                 \
        wait_for_previous_kernel();                                                                                    \
        rope<T>(ROPE_ARGUMENTS);                                                                                       \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS_MAX) rope_odd_##suffix(ROPE_PARAMETERS(T)) {                             \
        wait_for_previous_kernel();                                                                                    \
        rope_odd<T>(ROPE_ARGUMENTS);                                                                                   \
    }

PLIMSOLL_FOR_EACH_TYPE(KERNELS)
