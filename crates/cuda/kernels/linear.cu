// What a product leaves to do: masks around it, biases, and the biases' gradients.
#include "plimsoll.cuh"

// One block per row. `from` and `to` may be the same rows.
template <typename T>
__device__ void mask_rows(const T* from, T* to, const u32* row_ids, const u32* key, u32 cols, u32 site, u32 threshold,
                          float scale) {
    const RowMask mask = Mask(key, site, threshold, scale).row(row_ids[blockIdx.x]);
    const u64 start = u64(blockIdx.x) * cols;
    if (packable(from, cols) && packable(to, cols)) {
        constexpr int N = Pack<T>::N;
        for (u32 col = threadIdx.x * N; col < cols; col += blockDim.x * N) {
            float x[N];
            load_floats(from + start + col, x);
#pragma unroll
            for (int i = 0; i < N; i++) x[i] *= mask.factor(col + i);
            store_floats(to + start + col, x);
        }
    } else {
        for (u32 col = threadIdx.x; col < cols; col += blockDim.x) {
            to[start + col] = from_float<T>(to_float(from[start + col]) * mask.factor(col));
        }
    }
}

// to += drop(from), one block per row.
template <typename T>
__device__ void add_masked_rows(const float* from, T* to, const u32* row_ids, const u32* key, u32 cols, u32 site,
                                u32 threshold, float scale) {
    const RowMask mask = Mask(key, site, threshold, scale).row(row_ids[blockIdx.x]);
    const u64 start = u64(blockIdx.x) * cols;
    for (u32 col = threadIdx.x; col < cols; col += blockDim.x) {
        const float sum = fmaf(from[start + col], mask.factor(col), to_float(to[start + col]));
        to[start + col] = from_float<T>(sum);
    }
}

// One block per row and run of columns; `stride` elements from one row to the next.
template <typename T, typename B> __device__ void add_bias(T* y, const B* bias, u32 stride, u32 cols) {
    const u32 col = blockIdx.y * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    T* at = y + u64(blockIdx.x) * stride + col;
    *at = from_float<T>(to_float(*at) + to_float(bias[col]));
}

// Sums of a share of the rows, one thread per column; the shares are divided along the grid's second side.
template <typename T>
__device__ void bias_grad(const T* dy, float* parts, u32 rows, u32 share, u32 cols, u32 stride) {
    const u32 col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    const u32 begin = blockIdx.y * share, end = min(rows, begin + share);
    float sum = 0.0f;
    for (u32 row = begin; row < end; row++) sum += to_float(dy[u64(row) * stride + col]);
    parts[u64(blockIdx.y) * cols + col] = sum;
}

// total += the parts, in their order.
template <typename G> __device__ void add_parts(const float* parts, G* total, u32 count, u32 cols) {
    const u32 col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float sum = 0.0f;
    for (u32 part = 0; part < count; part++) sum += parts[u64(part) * cols + col];
    total[col] = from_float<G>(to_float(total[col]) + sum);
}

#define EXPORT_MASKS(suffix, T)                                                                                        \
    PLIMSOLL_EXPORT mask_rows_##suffix(const T* from, T* to, const u32* row_ids, const u32* key, u32 cols, u32 site,   \
                                       u32 threshold, float scale) {                                                   \
        wait_for_previous_kernel();                                                                                    \
        mask_rows(from, to, row_ids, key, cols, site, threshold, scale);                                               \
    }                                                                                                                  \
    PLIMSOLL_EXPORT add_masked_rows_##suffix(const float* from, T* to, const u32* row_ids, const u32* key, u32 cols,   \
                                             u32 site, u32 threshold, float scale) {                                   \
        wait_for_previous_kernel();                                                                                    \
        add_masked_rows(from, to, row_ids, key, cols, site, threshold, scale);                                         \
    }
PLIMSOLL_FOR_EACH_TYPE(EXPORT_MASKS)

#define EXPORT_BIAS(suffix, T, other, P)                                                                               \
    PLIMSOLL_EXPORT add_bias_##suffix##_##other(T* y, const P* bias, u32 stride, u32 cols) {                           \
        wait_for_previous_kernel();                                                                                    \
        add_bias(y, bias, stride, cols);                                                                               \
    }
EXPORT_BIAS(f32, float, f32, float)
EXPORT_BIAS(bf16, bf16, f32, float)
EXPORT_BIAS(bf16, bf16, bf16, bf16)
EXPORT_BIAS(f16, f16, f32, float)
EXPORT_BIAS(f16, f16, f16, f16)

#define EXPORT_BIAS_GRAD(suffix, T)                                                                                    \
    PLIMSOLL_EXPORT bias_grad_##suffix(const T* dy, float* parts, u32 rows, u32 share, u32 cols, u32 stride) {         \
        wait_for_previous_kernel();                                                                                    \
        bias_grad(dy, parts, rows, share, cols, stride);                                                               \
    }                                                                                                                  \
    PLIMSOLL_EXPORT add_parts_##suffix(const float* parts, T* total, u32 count, u32 cols) {                            \
        wait_for_previous_kernel();                                                                                    \
        add_parts(parts, total, count, cols);                                                                          \
    }
PLIMSOLL_FOR_EACH_TYPE(EXPORT_BIAS_GRAD)
