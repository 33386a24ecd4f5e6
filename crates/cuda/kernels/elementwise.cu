// Sums, multiples and dropout.
#include "plimsoll.cuh"

template <typename T> __device__ __forceinline__ void add(const T* a, const T* b, T* out, u64 len) {
    constexpr int N = Pack<T>::N;
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (at >= len) return;
    const int count = int(min(u64(N), len - at));
    float left[N], right[N];
    load_some(a + at, count, count == N, left);
    load_some(b + at, count, count == N, right);
#pragma unroll
    for (int i = 0; i < N; i++) left[i] += right[i];
    store_some(out + at, count, count == N, left);
}

template <typename T> __device__ __forceinline__ void scale(const T* x, T* out, u64 len, float factor) {
    constexpr int N = Pack<T>::N;
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (at >= len) return;
    const int count = int(min(u64(N), len - at));
    float v[N];
    load_some(x + at, count, count == N, v);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] *= factor;
    store_some(out + at, count, count == N, v);
}

// A thread has one run of columns of one row.
template <typename T>
__device__ __forceinline__ void dropout(const T* x, const u32* row_ids, const u32* key, T* out, u32 rows, u32 cols,
                                        u32 site, u32 threshold, float scale) {
    constexpr int N = Pack<T>::N;
    const u32 chunks = (cols + N - 1) / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = index / chunks, at = index % chunks * N;
    if (row >= rows) return;
    const int count = min(N, int(cols - at));
    const bool wide = cols % N == 0;
    const RowMask mask = Mask(key, site, threshold, scale).row(row_ids[row]);
    const u64 start = u64(row) * cols + at;
    float v[N];
    load_some(x + start, count, wide, v);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] *= mask.factor(at + i);
    store_some(out + start, count, wide, v);
}

#define KERNELS(suffix, T)                                                                                             \
    PLIMSOLL_EXPORT __launch_bounds__(256) add_##suffix(const T* a, const T* b, T* out, u64 len) {                     \
        wait_for_previous_kernel();                                                                                    \
        add<T>(a, b, out, len);                                                                                        \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(256) scale_##suffix(const T* x, T* out, u64 len, float factor) {                 \
        wait_for_previous_kernel();                                                                                    \
        scale<T>(x, out, len, factor);                                                                                 \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        dropout_##suffix(const T* x, const u32* row_ids, const u32* key, T* out, u32 rows, u32 cols, u32 site,         \
                         u32 threshold, float scale) {                                                                 \
        wait_for_previous_kernel();                                                                                    \
        dropout<T>(x, row_ids, key, out, rows, cols, site, threshold, scale);                                          \
    }

PLIMSOLL_FOR_EACH_TYPE(KERNELS)
