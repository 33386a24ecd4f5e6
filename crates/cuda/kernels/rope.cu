// Rotary positions, half-split: pairs are (i, i + head_dim/2).
#include "plimsoll.cuh"

// One block turns the heads of one row. A thread keeps a run of pairs and so its angles, and walks
// the heads. `values` is the number of columns behind the turned heads that have to be copied, none
// if the row stays in place. A position outside the table shows as NaN.
template <typename T>
__device__ __forceinline__ void rope(const T* qkv, const float* table, const int* positions, T* out, int heads,
                                     int head_dim, int cols, int values, int table_rows, float sign) {
    constexpr int N = Pack<T>::N;
    const int half = head_dim / 2, chunks = (half + N - 1) / N, stride = blockDim.x / chunks;
    const int at = threadIdx.x % chunks * N, count = min(N, half - at);
    const bool wide = half % N == 0;
    const u64 row = u64(blockIdx.x) * cols;
    const int position = positions[blockIdx.x];
    float cosine[N], sine[N];
    if (position >= 0 && position < table_rows) {
        const float* angles = table + u64(position) * head_dim + at;
        load_some(angles, count, wide, cosine);
        load_some(angles + half, count, wide, sine);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) cosine[i] = sine[i] = __int_as_float(0x7fffffff);
    }
    for (int head = threadIdx.x / chunks; head < heads; head += stride) {
        const u64 low = row + head * head_dim + at, high = low + half;
        float a[N], b[N], turned_a[N], turned_b[N];
        load_some(qkv + low, count, wide, a);
        load_some(qkv + high, count, wide, b);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float s = sine[i] * sign;
            turned_a[i] = fmaf(a[i], cosine[i], -b[i] * s);
            turned_b[i] = fmaf(b[i], cosine[i], a[i] * s);
        }
        store_some(out + low, count, wide, turned_a);
        store_some(out + high, count, wide, turned_b);
    }
    const bool wide_values = head_dim % N == 0;
    for (int i = threadIdx.x * N; i < values; i += blockDim.x * N) {
        const u64 from = row + heads * head_dim + i;
        float v[N];
        load_some(qkv + from, min(N, values - i), wide_values, v);
        store_some(out + from, min(N, values - i), wide_values, v);
    }
}

#define KERNELS(suffix, T)                                                                                             \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        rope_##suffix(const T* qkv, const float* table, const int* positions, T* out, int heads, int head_dim,         \
                      int cols, int values, int table_rows, float sign) {                                              \
        rope<T>(qkv, table, positions, out, heads, head_dim, cols, values, table_rows, sign);                          \
    }

PLIMSOLL_FOR_EACH_TYPE(KERNELS)
