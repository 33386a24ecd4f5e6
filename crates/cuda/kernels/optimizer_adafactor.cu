// Adafactor: second moments of a matrix from those of its rows and columns. Where the clip factor is no number, nothing
// changes but the gradient, which the step zeroes as ever.
#include "optimizer.cuh"

#define THREADS UPDATE_THREADS

// What a gradient counts for: clipped, its square with what is added to it.
struct Squares {
    float factor, eps, beta2, beta2_complement;

    __device__ __forceinline__ Squares(const float* hyper, const float* clip, float eps)
        : factor(clip[1]), eps(eps), beta2(hyper[1]), beta2_complement(hyper[2]) {}

    __device__ __forceinline__ bool left_out() const { return isnan(factor); }
    __device__ __forceinline__ float clipped(float g) const { return __fmul_rn(g, factor); }
    __device__ __forceinline__ float of(float g) const { return fmaf(clipped(g), clipped(g), eps); }
    __device__ __forceinline__ float into(float mean, float square) const {
        return fmaf(beta2, mean, beta2_complement * square);
    }
};

// A block has a row.
template <typename G>
__device__ __forceinline__ void row_means(const G* g, float* row, u32 cols, const Squares squares) {
    if (squares.left_out()) return;
    const G* from = g + u64(blockIdx.x) * cols;
    double sum = 0.0;
    for (u32 col = threadIdx.x; col < cols; col += THREADS) sum += squares.of(to_float(from[col]));
    sum = block_sum(sum);
    if (threadIdx.x == 0) row[blockIdx.x] = squares.into(row[blockIdx.x], float(sum / cols));
}

// A block has a strip of columns of a part of the rows, a thread a column of these.
template <typename G>
__device__ __forceinline__ void column_sums(const G* g, float* partial, u32 rows, u32 cols, u32 part_rows,
                                            const Squares squares) {
    const u32 col = blockIdx.x * THREADS + threadIdx.x;
    if (col >= cols) return;
    const u32 start = blockIdx.y * part_rows, end = min(start + part_rows, rows);
    float sum = 0.0f;
    for (u32 row = start; row < end; row++) sum += squares.of(to_float(g[u64(row) * cols + col]));
    partial[u64(blockIdx.y) * cols + col] = sum;
}

PLIMSOLL_EXPORT __launch_bounds__(THREADS) adafactor_column_means(const float* partial, float* col_means, u32 parts,
                                                                  u32 rows, u32 cols, const float* hyper,
                                                                  const float* clip) {
    wait_for_previous_kernel();
    const Squares squares(hyper, clip, 0.0f);
    const u32 col = blockIdx.x * THREADS + threadIdx.x;
    if (col >= cols || squares.left_out()) return;
    double sum = 0.0;
    for (u32 part = 0; part < parts; part++) sum += partial[u64(part) * cols + col];
    col_means[col] = squares.into(col_means[col], float(sum / rows));
}

PLIMSOLL_EXPORT __launch_bounds__(THREADS) adafactor_rows_mean(const float* row, u32 rows, float* numbers) {
    wait_for_previous_kernel();
    double sum = 0.0;
    for (u32 at = threadIdx.x; at < rows; at += THREADS) sum += row[at];
    sum = block_sum(sum);
    if (threadIdx.x == 0) numbers[0] = float(sum / rows);
}

// The gradient over the root of its second moment, in its place; a block has some rows, and sums the squares.
template <typename G>
__device__ __forceinline__ void scale_rows(G* g, const float* row, const float* col, const float* numbers,
                                           double* partial, u32 rows, u32 cols, u32 block_rows, const Squares squares) {
    if (squares.left_out()) return;
    const u32 start = blockIdx.x * block_rows, end = min(start + block_rows, rows);
    double sum = 0.0;
    for (u32 at = start; at < end; at++) {
        const float factor = rsqrtf(row[at] / numbers[0]);
        for (u32 i = threadIdx.x; i < cols; i += THREADS) {
            G& place = g[u64(at) * cols + i];
            const float u = squares.clipped(to_float(place)) * factor * rsqrtf(col[i]);
            place = from_float<G>(u);
            sum += double(u) * u;
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// The same with a second moment of every element.
template <typename G>
__device__ __forceinline__ void scale_elements(G* g, float* v, double* partial, u64 len, u64 block_len,
                                               const Squares squares) {
    if (squares.left_out()) return;
    const u64 start = blockIdx.x * block_len, end = min(start + block_len, len);
    double sum = 0.0;
    for (u64 i = start + threadIdx.x; i < end; i += THREADS) {
        v[i] = squares.into(v[i], squares.of(to_float(g[i])));
        const float u = squares.clipped(to_float(g[i])) * rsqrtf(v[i]);
        g[i] = from_float<G>(u);
        sum += double(u) * u;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// `numbers[1]` is what `u` is multiplied by, `numbers[2]` what the parameter is; by one block. Without parts of the
// parameter's squares, the rate is that of the step.
PLIMSOLL_EXPORT __launch_bounds__(THREADS) adafactor_sizes(const double* parameter_squares, u32 parameter_parts,
                                                           const double* step_squares, u32 step_parts, float* numbers,
                                                           const float* hyper, u64 len, float least_scale,
                                                           float clip_threshold, float weight_decay) {
    wait_for_previous_kernel();
    double parameter = 0.0, step = 0.0;
    for (u32 part = threadIdx.x; part < parameter_parts; part += THREADS) parameter += parameter_squares[part];
    for (u32 part = threadIdx.x; part < step_parts; part += THREADS) step += step_squares[part];
    parameter = block_sum(parameter);
    step = block_sum(step);
    if (threadIdx.x != 0) return;
    const float scale = parameter_parts > 0 ? fmaxf(float(sqrt(parameter / double(len))), least_scale) : 1.0f;
    const float alpha = hyper[0] * scale;
    numbers[1] = alpha / fmaxf(float(sqrt(step / double(len))) / clip_threshold, 1.0f);
    numbers[2] = fmaf(-weight_decay, alpha, 1.0f);
}

// The span of `len` elements at `first`.
template <typename P, typename G, typename S>
__device__ __forceinline__ void step(P* p, G* g, S* m, float* master, const float* hyper, const float* clip,
                                     const float* numbers, u64 first, u64 len, u32 site, float beta1,
                                     float beta1_complement) {
    const bool left_out = isnan(clip[1]);
    const Draws draws(site, hyper);
    const float size = numbers[1], keep = numbers[2];
    for (u64 i = u64(blockIdx.x) * THREADS + threadIdx.x; i < len; i += u64(gridDim.x) * THREADS) {
        const u64 at = first + i;
        const float u = to_float(g[at]);
        g[at] = from_float<G>(0.0f);
        if (left_out) continue;
        const u32 draw = draws.draw(at, u);
        float moved = __fmul_rn(size, u);
        if (m != nullptr) {
            moved = fmaf(to_float(m[at]), beta1, __fmul_rn(beta1_complement, moved));
            m[at] = round_stochastic<S>(moved, draw << 16);
        }
        const float before = master != nullptr ? master[at] : to_float(p[at]);
        const float after = fmaf(before, keep, -moved);
        p[at] = master != nullptr ? from_float<P>(after) : round_stochastic<P>(after, draw);
        if (master != nullptr) master[at] = after;
    }
}

#define SHARED const float *hyper, const float *clip, float eps
#define SQUARES Squares(hyper, clip, eps)

#define GRADIENT_KERNELS(name, G)                                                                                      \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS) adafactor_rows_##name(const G* g, float* row, u32 cols, SHARED) {       \
        wait_for_previous_kernel();                                                                                    \
        row_means(g, row, cols, SQUARES);                                                                              \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS)                                                                         \
        adafactor_columns_##name(const G* g, float* partial, u32 rows, u32 cols, u32 part_rows, SHARED) {              \
        wait_for_previous_kernel();                                                                                    \
        column_sums(g, partial, rows, cols, part_rows, SQUARES);                                                       \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS)                                                                         \
        adafactor_scale_##name(G* g, const float* row, const float* col, const float* numbers, double* partial,        \
                               u32 rows, u32 cols, u32 block_rows, SHARED) {                                           \
        wait_for_previous_kernel();                                                                                    \
        scale_rows(g, row, col, numbers, partial, rows, cols, block_rows, SQUARES);                                    \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS)                                                                         \
        adafactor_elements_##name(G* g, float* v, double* partial, u64 len, u64 block_len, SHARED) {                   \
        wait_for_previous_kernel();                                                                                    \
        scale_elements(g, v, partial, len, block_len, SQUARES);                                                        \
    }

#define STEP_KERNEL(p_name, P, g_name, G, s_name, S)                                                                   \
    PLIMSOLL_EXPORT __launch_bounds__(THREADS) adafactor_step_##p_name##_##g_name##_##s_name(                          \
        P* p, G* g, S* m, float* master, const float* hyper, const float* clip, const float* numbers, u64 first,       \
        u64 len, u32 site, float beta1, float beta1_complement) {                                                      \
        wait_for_previous_kernel();                                                                                    \
        step(p, g, m, master, hyper, clip, numbers, first, len, site, beta1, beta1_complement);                        \
    }

#define STEP_KERNELS(p_name, P, g_name, G)                                                                             \
    STEP_KERNEL(p_name, P, g_name, G, f32, float)                                                                      \
    STEP_KERNEL(p_name, P, g_name, G, bf16, bf16)

PLIMSOLL_FOR_EACH_TYPE(GRADIENT_KERNELS)
STEP_KERNELS(f32, float, f32, float)
STEP_KERNELS(bf16, bf16, f32, float)
STEP_KERNELS(bf16, bf16, bf16, bf16)
STEP_KERNELS(f16, f16, f32, float)
STEP_KERNELS(f16, f16, f16, f16)
