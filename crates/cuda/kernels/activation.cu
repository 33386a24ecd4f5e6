// Nonlinearities of the MLP, gated (`act(gate)·up`) and plain.
#include "curves.cuh"

// A thread has one run of columns of one row; `cols` are those of the result.
template <typename T, typename Curve>
__device__ __forceinline__ void gated(const T* gate_up, T* out, u32 rows, u32 cols) {
    constexpr int N = Pack<T>::N;
    const u32 chunks = (cols + N - 1) / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = index / chunks, at = index % chunks * N;
    if (row >= rows) return;
    const int count = min(N, int(cols - at));
    const bool wide = cols % N == 0;
    const T* from = gate_up + u64(row) * 2 * cols + at;
    float gate[N], up[N];
    load_some(from, count, wide, gate);
    load_some(from + cols, count, wide, up);
#pragma unroll
    for (int i = 0; i < N; i++) gate[i] = Curve::value(gate[i]) * up[i];
    store_some(out + u64(row) * cols + at, count, wide, gate);
}

// `out` may be `gate_up`: a thread writes the elements it read. `value`, unless null, is what `gated` makes.
template <typename T, typename Curve>
__device__ __forceinline__ void gated_grad(const T* gate_up, const T* dy, T* out, T* value, u32 rows, u32 cols) {
    constexpr int N = Pack<T>::N;
    const u32 chunks = (cols + N - 1) / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = index / chunks, at = index % chunks * N;
    if (row >= rows) return;
    const int count = min(N, int(cols - at));
    const bool wide = cols % N == 0;
    const u64 start = u64(row) * 2 * cols + at;
    float gate[N], up[N], d[N];
    load_some(gate_up + start, count, wide, gate);
    load_some(gate_up + start + cols, count, wide, up);
    load_some(dy + u64(row) * cols + at, count, wide, d);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float2 curve = Curve::both(gate[i]);
        gate[i] = d[i] * up[i] * curve.y;
        const float act = curve.x * up[i];
        up[i] = d[i] * curve.x;
        d[i] = act;
    }
    store_some(out + start, count, wide, gate);
    store_some(out + start + cols, count, wide, up);
    if (value != nullptr) store_some(value + u64(row) * cols + at, count, wide, d);
}

template <typename T, typename Curve> __device__ __forceinline__ void pointwise(const T* x, T* out, u64 len) {
    constexpr int N = Pack<T>::N;
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (at >= len) return;
    const int count = int(min(u64(N), len - at));
    float v[N];
    load_some(x + at, count, count == N, v);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = Curve::value(v[i]);
    store_some(out + at, count, count == N, v);
}

template <typename T, typename Curve>
__device__ __forceinline__ void pointwise_grad(const T* x, const T* dy, T* out, u64 len) {
    constexpr int N = Pack<T>::N;
    const u64 at = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (at >= len) return;
    const int count = int(min(u64(N), len - at));
    float v[N], d[N];
    load_some(x + at, count, count == N, v);
    load_some(dy + at, count, count == N, d);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = Curve::both(v[i]).y * d[i];
    store_some(out + at, count, count == N, v);
}

#define CURVE_KERNELS(curve, suffix, T)                                                                                \
    PLIMSOLL_EXPORT __launch_bounds__(256) gated_##curve##_##suffix(const T* gate_up, T* out, u32 rows, u32 cols) {    \
        wait_for_previous_kernel();                                                                                    \
        gated<T, curve>(gate_up, out, rows, cols);                                                                     \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        gated_grad_##curve##_##suffix(const T* gate_up, const T* dy, T* out, T* value, u32 rows, u32 cols) {           \
        wait_for_previous_kernel();                                                                                    \
        gated_grad<T, curve>(gate_up, dy, out, value, rows, cols);                                                     \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(256) pointwise_##curve##_##suffix(const T* x, T* out, u64 len) {                 \
        wait_for_previous_kernel();                                                                                    \
        pointwise<T, curve>(x, out, len);                                                                              \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        pointwise_grad_##curve##_##suffix(const T* x, const T* dy, T* out, u64 len) {                                  \
        wait_for_previous_kernel();                                                                                    \
        pointwise_grad<T, curve>(x, dy, out, len);                                                                     \
    }

#define KERNELS(suffix, T)                                                                                             \
    CURVE_KERNELS(silu, suffix, T)                                                                                     \
    CURVE_KERNELS(gelu, suffix, T)                                                                                     \
    CURVE_KERNELS(gelu_tanh, suffix, T)                                                                                \
    CURVE_KERNELS(relu, suffix, T)                                                                                     \
    CURVE_KERNELS(relu2, suffix, T)

PLIMSOLL_FOR_EACH_TYPE(KERNELS)
