// RMS norms: of a token's features, alone or joined with the residual sum, and of each head. Optional
// operands are null where they are absent. `offset` is added to the weight; minus zero leaves it as it is.
#include "plimsoll.cuh"

// Threads at most for a row, and where the weight's gradient takes registers too.
#define ROW_THREADS 512
#define SUMMED_ROW_THREADS 256
#define HEAD_THREADS 256
#define SUM_SLICES 8

// A row of whole packs lies in registers: each thread holds PACKS of them, a block's width apart. Which packs a
// thread holds depends on the row's length alone, so the norm of a stored sum has the bits it had when the sum was
// made. Every load is under way before the first is used; a row's odd end would make the compiler wait in between.
template <typename T, int PACKS>
__device__ __forceinline__ void rms_norm(const T* x, const T* h, const T* weight, T* sum, T* normed, float* rstd,
                                         int cols, float eps, float offset) {
    constexpr int N = Pack<T>::N;
    const u64 row = u64(blockIdx.x) * cols;
    Pack<T> xs[PACKS], other[PACKS], w[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int at = (p * blockDim.x + threadIdx.x) * N;
        if (at >= cols) break;
        xs[p] = load_pack(x + row + at);
        if (h != nullptr) other[p] = load_pack(h + row + at);
        if (weight != nullptr) w[p] = load_pack(weight + at);
    }
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int at = (p * blockDim.x + threadIdx.x) * N;
        if (at >= cols) break;
        if (h != nullptr) {
            // The norm is that of the sum as it is stored.
#pragma unroll
            for (int i = 0; i < N; i++) xs[p].v[i] = from_float<T>(to_float(xs[p].v[i]) + to_float(other[p].v[i]));
            store_pack(sum + row + at, xs[p]);
        }
#pragma unroll
        for (int i = 0; i < N; i++) squares = fmaf(to_float(xs[p].v[i]), to_float(xs[p].v[i]), squares);
    }
    squares = block_sum(squares);
    const float scale = 1.0f / sqrtf(squares / cols + eps);
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int at = (p * blockDim.x + threadIdx.x) * N;
        if (at >= cols) break;
        float v[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] = to_float(xs[p].v[i]) * scale;
            if (weight != nullptr) v[i] *= offset + to_float(w[p].v[i]);
        }
        store_floats(normed + row + at, v);
    }
}

// For other rows: the sum is read back by the thread that wrote it.
template <typename T>
__device__ __forceinline__ void rms_norm_long(const T* x, const T* h, const T* weight, T* sum, T* normed, float* rstd,
                                              int cols, float eps, float offset) {
    const u64 row = u64(blockIdx.x) * cols;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
        float v = to_float(x[row + i]);
        if (h != nullptr) {
            const T total = from_float<T>(v + to_float(h[row + i]));
            sum[row + i] = total;
            v = to_float(total);
        }
        squares = fmaf(v, v, squares);
    }
    squares = block_sum(squares);
    const float scale = 1.0f / sqrtf(squares / cols + eps);
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
    const T* source = h != nullptr ? sum : x;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
        const float v = to_float(source[row + i]) * scale;
        normed[row + i] = from_float<T>(weight != nullptr ? v * (offset + to_float(weight[i])) : v);
    }
}

#define RMS_NORM_PARAMETERS(T)                                                                                         \
    const T *x, const T *h, const T *weight, T *sum, T *normed, float *rstd, int cols, float eps,        \
        float offset
#define RMS_NORM_ARGUMENTS x, h, weight, sum, normed, rstd, cols, eps, offset

// A gradient that an element of dx gets: rstd·(g - x̂·mean(g·x̂)) with g = dy·(offset + w) and x̂ = x·rstd, onto
// what is there; `pull` is mean(g·x̂)·rstd².
__device__ __forceinline__ float norm_slope(float x, float g, float so_far, float scale, float pull) {
    return fmaf(g, scale, fmaf(x, -pull, so_far));
}

// Keeps the compiler from holding what it made of a pack in its place: a pack takes half the registers.
template <typename T> __device__ __forceinline__ void stay_packed(Pack<T>& pack) {
    uint4& words = *reinterpret_cast<uint4*>(&pack);
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
}

// Rows a grid's width apart belong to one block, whose threads keep their columns. The weight's gradient gathers in
// registers and leaves as one row of `partial`; a block then has many rows, so the next one is on its way while this one is
// summed.
template <typename T, int PACKS, bool SUMMED>
__device__ __forceinline__ void rms_norm_grad(const T* x, const float* rstd, const T* dy, const T* weight,
                                              const T* so_far, T* dx, float* partial, int rows, int cols, float offset) {
    constexpr int N = Pack<T>::N;
    float dw[PACKS][N] = {};
    Pack<T> xs[PACKS], dys[PACKS], onto[PACKS], w[PACKS], next_xs[PACKS], next_dys[PACKS], next_onto[PACKS];
    const auto fetch = [&](int row, Pack<T>(&to_xs)[PACKS], Pack<T>(&to_dys)[PACKS], Pack<T>(&to_onto)[PACKS]) {
        const u64 start = u64(row) * cols;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int at = (p * blockDim.x + threadIdx.x) * N;
            if (at >= cols) break;
            to_xs[p] = load_pack(x + start + at);
            to_dys[p] = load_pack(dy + start + at);
            if (so_far != nullptr) to_onto[p] = load_pack(so_far + start + at);
        }
    };
    if (SUMMED && int(blockIdx.x) < rows) fetch(blockIdx.x, next_xs, next_dys, next_onto);
    // Long rows leave no registers for the weight.
    constexpr bool HELD = PACKS < 4;
    const auto fetch_weight = [&](int p) {
        const int at = (p * blockDim.x + threadIdx.x) * N;
        if (weight != nullptr && at < cols) w[p] = load_pack(weight + at);
    };
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (HELD) fetch_weight(p);
    }
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const u64 start = u64(row) * cols;
        const float scale = rstd[row];
        if constexpr (SUMMED) {
#pragma unroll
            for (int p = 0; p < PACKS; p++) xs[p] = next_xs[p], dys[p] = next_dys[p], onto[p] = next_onto[p];
            if (row + int(gridDim.x) < rows) fetch(row + gridDim.x, next_xs, next_dys, next_onto);
        } else {
            fetch(row, xs, dys, onto);
        }
        float dot = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            if ((p * blockDim.x + threadIdx.x) * N >= cols) break;
            if (!HELD) fetch_weight(p);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float v = to_float(xs[p].v[i]), d = to_float(dys[p].v[i]);
                dot = fmaf(weight != nullptr ? d * (offset + to_float(w[p].v[i])) : d, v, dot);
                if (SUMMED) dw[p][i] = fmaf(d * scale, v, dw[p][i]);
            }
        }
        dot = block_sum(dot);
        const float pull = dot * scale * scale * scale / cols;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int at = (p * blockDim.x + threadIdx.x) * N;
            if (at >= cols) break;
            if (!HELD) fetch_weight(p);
            stay_packed(xs[p]), stay_packed(dys[p]), stay_packed(w[p]);
            float out[N];
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float d = to_float(dys[p].v[i]), g = weight != nullptr ? d * (offset + to_float(w[p].v[i])) : d;
                const float before = so_far != nullptr ? to_float(onto[p].v[i]) : 0.0f;
                out[i] = norm_slope(to_float(xs[p].v[i]), g, before, scale, pull);
            }
            store_floats(dx + start + at, out);
        }
    }
    if constexpr (SUMMED) {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int at = (p * blockDim.x + threadIdx.x) * N;
            if (at < cols) store_some(partial + u64(blockIdx.x) * cols + at, N, true, dw[p]);
        }
    }
}

// For other rows: the weight's gradient gathers in the block's row of `partial`,
// each column touched by one thread only.
template <typename T>
__device__ __forceinline__ void rms_norm_grad_long(const T* x, const float* rstd, const T* dy, const T* weight,
                                                   const T* so_far, T* dx, float* partial, int rows, int cols,
                                                   float offset) {
    float* dw = partial != nullptr ? partial + u64(blockIdx.x) * cols : nullptr;
    for (int i = threadIdx.x; dw != nullptr && i < cols; i += blockDim.x) dw[i] = 0.0f;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const u64 start = u64(row) * cols;
        const float scale = rstd[row];
        float dot = 0.0f;
        for (int i = threadIdx.x; i < cols; i += blockDim.x) {
            const float v = to_float(x[start + i]), d = to_float(dy[start + i]);
            dot = fmaf(weight != nullptr ? d * (offset + to_float(weight[i])) : d, v, dot);
            if (dw != nullptr) dw[i] = fmaf(d * scale, v, dw[i]);
        }
        dot = block_sum(dot);
        const float pull = dot * scale * scale * scale / cols;
        for (int i = threadIdx.x; i < cols; i += blockDim.x) {
            const float v = to_float(x[start + i]), d = to_float(dy[start + i]);
            const float g = weight != nullptr ? d * (offset + to_float(weight[i])) : d;
            const float onto = so_far != nullptr ? to_float(so_far[start + i]) : 0.0f;
            dx[start + i] = from_float<T>(norm_slope(v, g, onto, scale, pull));
        }
    }
}

#define RMS_NORM_GRAD_PARAMETERS(T)                                                                                    \
    const T *x, const float *rstd, const T *dy, const T *weight, const T *so_far, T *dx, float *partial, int rows,     \
        int cols, float offset
#define RMS_NORM_GRAD_ARGUMENTS x, rstd, dy, weight, so_far, dx, partial, rows, cols, offset

// `total += Σ partial` over rows `stride` apart: slices of them first, then the slices in their order.
template <typename G>
__device__ __forceinline__ void add_partial_sums(G* total, const float* partial, int parts, int cols, int stride) {
    __shared__ float slices[SUM_SLICES][WARP];
    const int slice = threadIdx.x / WARP, lane = threadIdx.x % WARP, column = blockIdx.x * WARP + lane;
    float sum = 0.0f;
    if (column < cols) {
#pragma unroll 4
        for (int part = slice; part < parts; part += SUM_SLICES) sum += partial[u64(part) * stride + column];
    }
    slices[slice][lane] = sum;
    __syncthreads();
    if (slice != 0 || column >= cols) return;
    for (int other = 1; other < SUM_SLICES; other++) sum += slices[other][lane];
    total[column] = from_float<G>(to_float(total[column]) + sum);
}

// Heads are normalised by groups of neighbouring lanes, a power of two of them.
__device__ __forceinline__ float group_sum(float x, int group) {
    for (int lane = group / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(FULL_MASK, x, lane);
    return x;
}

// Elements of a head that a lane holds.
#define HEAD_ELEMENTS 8

// A fused row: query heads, key heads, value heads. `touched` heads are written; the values only if
// they have to be copied.
struct FusedRow {
    int query, kv, head_dim, touched;

    __device__ __forceinline__ int normed() const { return query + kv; }
    __device__ __forceinline__ u64 offset(int row, int head) const {
        return (u64(row) * (query + 2 * kv) + head) * head_dim;
    }
};

template <typename T>
__device__ __forceinline__ void head_norm(const T* qkv, const T* wq, const T* wk, T* out, float* rstd, int rows,
                                          FusedRow fused, int group, float eps, float offset) {
    constexpr int N = Pack<T>::N, CHUNKS = HEAD_ELEMENTS / N;
    const bool wide = fused.head_dim % N == 0;
    const int item = blockIdx.x * (blockDim.x / group) + threadIdx.x / group, lane = threadIdx.x % group;
    const int row = item / fused.touched, head = item % fused.touched;
    const u64 start = fused.offset(row, head);
    const T* weight = head < fused.query ? wq : wk;
    float v[CHUNKS][N], squares = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = (c * group + lane) * N, count = min(N, fused.head_dim - at);
        if (row >= rows || count <= 0) break;
        load_some(qkv + start + at, count, wide, v[c]);
#pragma unroll
        for (int i = 0; i < N; i++) squares = fmaf(v[c][i], v[c][i], squares);
    }
    squares = group_sum(squares, group);
    const float scale = 1.0f / sqrtf(squares / fused.head_dim + eps);
    const bool normed = head < fused.normed();
    if (row < rows && normed && lane == 0) rstd[u64(row) * fused.normed() + head] = scale;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = (c * group + lane) * N, count = min(N, fused.head_dim - at);
        if (row >= rows || count <= 0) break;
        if (normed) {
            float w[N];
            if (weight != nullptr) load_some(weight + at, count, wide, w);
#pragma unroll
            for (int i = 0; i < N; i++) {
                v[c][i] *= scale;
                if (weight != nullptr) v[c][i] *= offset + w[i];
            }
        }
        store_some(out + start + at, count, wide, v[c]);
    }
}

// Rows a grid's width apart belong to one block. Each of its groups gathers the gradients of both
// weights over its heads; the groups are added in their order and leave as one row of `partial`.
template <typename T>
__device__ __forceinline__ void head_norm_grad(const T* qkv, const float* rstd, const T* dy, const T* wq, const T* wk,
                                               T* dx, float* partial, int rows, FusedRow fused, int group,
                                               float offset) {
    constexpr int N = Pack<T>::N, CHUNKS = HEAD_ELEMENTS / N;
    __shared__ float gathered[2 * HEAD_ELEMENTS * HEAD_THREADS];
    const bool wide = fused.head_dim % N == 0;
    const int groups = blockDim.x / group, mine = threadIdx.x / group, lane = threadIdx.x % group;
    float dwq[CHUNKS][N] = {}, dwk[CHUNKS][N] = {};
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        for (int first = 0; first < fused.touched; first += groups) {
            const int head = first + mine;
            const bool alive = head < fused.touched, normed = head < fused.normed();
            const u64 start = fused.offset(row, head);
            const T* weight = head < fused.query ? wq : wk;
            const float scale = normed ? rstd[u64(row) * fused.normed() + head] : 0.0f;
            float v[CHUNKS][N], d[CHUNKS][N], w[CHUNKS][N], dot = 0.0f;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const int at = (c * group + lane) * N, count = min(N, fused.head_dim - at);
                if (!alive || count <= 0) break;
                load_some(dy + start + at, count, wide, d[c]);
                if (!normed) continue;
                load_some(qkv + start + at, count, wide, v[c]);
                if (weight != nullptr) load_some(weight + at, count, wide, w[c]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    w[c][i] = weight != nullptr ? offset + w[c][i] : 1.0f;
                    dot = fmaf(d[c][i] * w[c][i], v[c][i], dot);
                    const float dw = d[c][i] * scale;
                    if (head < fused.query) dwq[c][i] = fmaf(dw, v[c][i], dwq[c][i]);
                    else dwk[c][i] = fmaf(dw, v[c][i], dwk[c][i]);
                }
            }
            dot = group_sum(dot, group);
            const float pull = dot * scale * scale * scale / fused.head_dim;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const int at = (c * group + lane) * N, count = min(N, fused.head_dim - at);
                if (!alive || count <= 0) break;
                if (normed) {
#pragma unroll
                    for (int i = 0; i < N; i++) d[c][i] = norm_slope(v[c][i], d[c][i] * w[c][i], 0.0f, scale, pull);
                }
                store_some(dx + start + at, count, wide, d[c]);
            }
        }
    }
    if (partial == nullptr) return;
    const int both = 2 * fused.head_dim;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int column = (c * group + lane) * N + i;
            if (column >= fused.head_dim) continue;
            gathered[mine * both + column] = dwq[c][i];
            gathered[mine * both + fused.head_dim + column] = dwk[c][i];
        }
    }
    __syncthreads();
    for (int column = threadIdx.x; column < both; column += blockDim.x) {
        float sum = 0.0f;
        for (int other = 0; other < groups; other++) sum += gathered[other * both + column];
        partial[u64(blockIdx.x) * both + column] = sum;
    }
}

// Registers for three blocks of short rows on a multiprocessor: more, or the next row ahead, and there is less under way.
#define ROW_KERNELS(suffix, T, PACKS)                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(ROW_THREADS) rms_norm_x##PACKS##_##suffix(RMS_NORM_PARAMETERS(T)) {              \
        wait_for_previous_kernel();                                                                                    \
        rms_norm<T, PACKS>(RMS_NORM_ARGUMENTS);                                                                        \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(ROW_THREADS, PACKS == 1 ? 3 : 1)                                                 \
        rms_norm_grad_x##PACKS##_##suffix(RMS_NORM_GRAD_PARAMETERS(T)) {                                               \
        wait_for_previous_kernel();                                                                                    \
        rms_norm_grad<T, PACKS, false>(RMS_NORM_GRAD_ARGUMENTS);                                                       \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(SUMMED_ROW_THREADS)                                                              \
        rms_norm_summed_grad_x##PACKS##_##suffix(RMS_NORM_GRAD_PARAMETERS(T)) {                                        \
        wait_for_previous_kernel();                                                                                    \
        rms_norm_grad<T, PACKS, true>(RMS_NORM_GRAD_ARGUMENTS);                                                        \
    }

#define KERNELS(suffix, T)                                                                                             \
    ROW_KERNELS(suffix, T, 1)                                                                                          \
    ROW_KERNELS(suffix, T, 2)                                                                                          \
    ROW_KERNELS(suffix, T, 4)                                                                                          \
    PLIMSOLL_EXPORT __launch_bounds__(ROW_THREADS) rms_norm_long_##suffix(RMS_NORM_PARAMETERS(T)) {                    \
        wait_for_previous_kernel();                                                                                    \
        rms_norm_long<T>(RMS_NORM_ARGUMENTS);                                                                          \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(ROW_THREADS) rms_norm_grad_long_##suffix(RMS_NORM_GRAD_PARAMETERS(T)) {          \
        wait_for_previous_kernel();                                                                                    \
        rms_norm_grad_long<T>(RMS_NORM_GRAD_ARGUMENTS);                                                                \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(SUM_SLICES* WARP)                                                                \
        add_partial_sums_##suffix(T* total, const float* partial, int parts, int cols, int stride) {                   \
        wait_for_previous_kernel();                                                                                    \
        add_partial_sums<T>(total, partial, parts, cols, stride);                                                      \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(HEAD_THREADS)                                                                    \
        head_norm_##suffix(const T* qkv, const T* wq, const T* wk, T* out, float* rstd, int rows, int query, int kv,   \
                           int head_dim, int touched, int group, float eps, float offset) {                            \
        wait_for_previous_kernel();                                                                                    \
        head_norm<T>(qkv, wq, wk, out, rstd, rows, FusedRow{query, kv, head_dim, touched}, group, eps, offset);        \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(HEAD_THREADS)                                                                    \
        head_norm_grad_##suffix(const T* qkv, const float* rstd, const T* dy, const T* wq, const T* wk, T* dx,         \
                                float* partial, int rows, int query, int kv, int head_dim, int touched, int group,     \
                                float offset) {                                                                        \
        wait_for_previous_kernel();                                                                                    \
        const FusedRow fused{query, kv, head_dim, touched};                                                            \
        head_norm_grad<T>(qkv, rstd, dy, wq, wk, dx, partial, rows, fused, group, offset);                             \
    }

PLIMSOLL_FOR_EACH_TYPE(KERNELS)
