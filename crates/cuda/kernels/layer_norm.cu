// Layer norm of a token's features: the mean is taken away first. Optional operands are null where they are absent.
#include "plimsoll.cuh"

#define ROW_THREADS 512

// A block has a row, a thread the same packs of it in every pass, so results may take the place of an input. Rows of whole
// packs are read in wide accesses.
#define EACH_PACK(at) for (int at = threadIdx.x * N; at < cols; at += blockDim.x * N)

template <typename T>
__device__ __forceinline__ void layer_norm(const T* x, const T* weight, const T* bias, T* normed, float* means,
                                           float* rstd, int cols, float eps) {
    constexpr int N = Pack<T>::N;
    const bool wide = cols % N == 0;
    const u64 row = u64(blockIdx.x) * cols;
    float v[N], total = 0.0f, squares = 0.0f;
    EACH_PACK(at) {
        load_some(x + row + at, cols - at, wide, v);
#pragma unroll
        for (int i = 0; i < N; i++) total += v[i];
    }
    const float mean = block_sum(total) / cols;
    EACH_PACK(at) {
        load_some(x + row + at, cols - at, wide, v);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float apart = at + i < cols ? v[i] - mean : 0.0f;
            squares = fmaf(apart, apart, squares);
        }
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / cols + eps);
    if (threadIdx.x == 0) means[blockIdx.x] = mean, rstd[blockIdx.x] = scale;
    EACH_PACK(at) {
        float w[N], b[N];
        load_some(x + row + at, cols - at, wide, v);
        if (weight != nullptr) load_some(weight + at, cols - at, wide, w);
        if (bias != nullptr) load_some(bias + at, cols - at, wide, b);
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] = (v[i] - mean) * scale;
            if (weight != nullptr) v[i] *= w[i];
            if (bias != nullptr) v[i] += b[i];
        }
        store_some(normed + row + at, cols - at, wide, v);
    }
}

// Rows a grid's width apart belong to one block, whose threads keep their columns. The parameters' gradients gather in
// the block's row of `partial`, the weight's before the bias's, each column touched by one thread only.
template <typename T>
__device__ __forceinline__ void layer_norm_grad(const T* x, const float* means, const float* rstd, const T* dy,
                                                const T* weight, const T* so_far, T* dx, float* partial, int rows,
                                                int cols, bool weight_grad, bool bias_grad) {
    constexpr int N = Pack<T>::N;
    const bool wide = cols % N == 0;
    const int parameters = int(weight_grad) + int(bias_grad);
    float* dw = partial + u64(blockIdx.x) * parameters * cols;
    float* db = weight_grad ? dw + cols : dw;
    float v[N], d[N], w[N], sums[N] = {};
    EACH_PACK(at) {
        if (weight_grad) store_some(dw + at, cols - at, wide, sums);
        if (bias_grad) store_some(db + at, cols - at, wide, sums);
    }
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const u64 start = u64(row) * cols;
        const float mean = means[row], scale = rstd[row];
        const auto load = [&](int at) {
            load_some(x + start + at, cols - at, wide, v);
            load_some(dy + start + at, cols - at, wide, d);
            if (weight != nullptr) load_some(weight + at, cols - at, wide, w);
        };
        // The gradient of a normalised element before its parameters; zero for what is missing at the end of a row.
        // Rounded by name: what is summed is what the mean is taken from later.
        const auto slope = [&](int i) { return weight != nullptr ? __fmul_rn(d[i], w[i]) : d[i]; };
        float total = 0.0f, dot = 0.0f;
        EACH_PACK(at) {
            load(at);
#pragma unroll
            for (int i = 0; i < N; i++) {
                total += slope(i);
                dot = fmaf(slope(i), (v[i] - mean) * scale, dot);
            }
            if (weight_grad) {
                load_some(dw + at, cols - at, wide, sums);
#pragma unroll
                for (int i = 0; i < N; i++) sums[i] = fmaf(d[i], (v[i] - mean) * scale, sums[i]);
                store_some(dw + at, cols - at, wide, sums);
            }
            if (bias_grad) {
                load_some(db + at, cols - at, wide, sums);
#pragma unroll
                for (int i = 0; i < N; i++) sums[i] += d[i];
                store_some(db + at, cols - at, wide, sums);
            }
        }
        const float shift = block_sum(total) / cols, pull = block_sum(dot) / cols;
        EACH_PACK(at) {
            float onto[N];
            load(at);
            if (so_far != nullptr) load_some(so_far + start + at, cols - at, wide, onto);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float change = scale * (slope(i) - shift - (v[i] - mean) * scale * pull);
                v[i] = so_far != nullptr ? onto[i] + change : change;
            }
            store_some(dx + start + at, cols - at, wide, v);
        }
    }
}

#define KERNELS(suffix, T)                                                                                             \
    PLIMSOLL_EXPORT __launch_bounds__(ROW_THREADS)                                                                     \
        layer_norm_##suffix(const T* x, const T* weight, const T* bias, T* normed, float* means, float* rstd,          \
                            int cols, float eps) {                                                                     \
        wait_for_previous_kernel();                                                                                    \
        layer_norm<T>(x, weight, bias, normed, means, rstd, cols, eps);                                                \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(ROW_THREADS)                                                                     \
        layer_norm_grad_##suffix(const T* x, const float* means, const float* rstd, const T* dy, const T* weight,      \
                                 const T* so_far, T* dx, float* partial, int rows, int cols, int weight_grad,          \
                                 int bias_grad) {                                                                      \
        wait_for_previous_kernel();                                                                                    \
        layer_norm_grad<T>(x, means, rstd, dy, weight, so_far, dx, partial, rows, cols, weight_grad, bias_grad);       \
    }

PLIMSOLL_FOR_EACH_TYPE(KERNELS)
