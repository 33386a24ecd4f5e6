// The gated activation with adapters of any rank and any columns, in any type: plain sums, nothing tuned.
#include "curves.cuh"

// Columns `start ..` of the product belong to an adapter whose second matrix begins at row `row` and whose narrow columns
// begin at `narrow`. The words are those of `Span` in src/gated_adapters.rs; those with no columns are not there.
struct Span {
    u64 start, len, row, narrow;
};

#define SPANS_MAX 8
struct Spans {
    Span spans[SPANS_MAX];
};

// Adds what adapters add to columns `col ..` of one row.
template <typename T, int N>
__device__ __forceinline__ void add_adapters(const Spans& spans, const T* narrow, const T* b, u32 col, int count,
                                             u32 rank, float alpha, float (&x)[N]) {
#pragma unroll 1
    for (int s = 0; s < SPANS_MAX; s++) {
        const Span span = spans.spans[s];
        const T* from = narrow + span.narrow;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const u64 column = col + i;
            if (i >= count || column < span.start || column >= span.start + span.len) continue;
            const T* weight = b + (span.row + column - span.start) * rank;
            float sum = 0.0f;
#pragma unroll 1
            for (u32 k = 0; k < rank; k++) sum = fmaf(to_float(from[k]), to_float(weight[k]), sum);
            x[i] = fmaf(alpha, sum, x[i]);
        }
    }
}

// A thread has one run of columns of one row, in both halves; `cols` are those of one. `out` may be `gate_up` for the
// gradient: a thread writes the elements it read.
template <typename T, typename Curve, bool GRADIENT>
__device__ __forceinline__ void gated_plain(const Spans& spans, const T* gate_up, const T* dy, const T* narrow,
                                            const T* b, T* out, u32 narrow_stride, u32 rows, u32 cols, u32 rank,
                                            float alpha) {
    constexpr int N = Pack<T>::N;
    const u32 chunks = (cols + N - 1) / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = index / chunks, at = index % chunks * N;
    if (row >= rows) return;
    const int count = min(N, int(cols - at));
    const bool wide = cols % N == 0;
    const u64 start = u64(row) * 2 * cols + at;
    const T* narrow_row = narrow + u64(row) * narrow_stride;
    float gate[N], up[N], d[N];
    load_some(gate_up + start, count, wide, gate);
    load_some(gate_up + start + cols, count, wide, up);
    add_adapters(spans, narrow_row, b, at, count, rank, alpha, gate);
    add_adapters(spans, narrow_row, b, cols + at, count, rank, alpha, up);
    if constexpr (GRADIENT) load_some(dy + u64(row) * cols + at, count, wide, d);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if constexpr (GRADIENT) {
            const float2 curve = Curve::both(gate[i]);
            gate[i] = d[i] * up[i] * curve.y;
            up[i] = d[i] * curve.x;
        } else {
            gate[i] = Curve::value(gate[i]) * up[i];
        }
    }
    if constexpr (GRADIENT) {
        store_some(out + start, count, wide, gate);
        store_some(out + start + cols, count, wide, up);
    } else {
        store_some(out + u64(row) * cols + at, count, wide, gate);
    }
}

#define CURVE_KERNELS(curve, suffix, T)                                                                                \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        gated_##curve##_##suffix(const Spans spans, const T* gate_up, const T* narrow, const T* b, T* out,             \
                                 u32 narrow_stride, u32 rows, u32 cols, u32 rank, float alpha) {                       \
        gated_plain<T, curve, false>(spans, gate_up, nullptr, narrow, b, out, narrow_stride, rows, cols, rank, alpha); \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        gated_grad_##curve##_##suffix(const Spans spans, const T* gate_up, const T* dy, const T* narrow, const T* b,   \
                                      T* out, u32 narrow_stride, u32 rows, u32 cols, u32 rank, float alpha) {          \
        gated_plain<T, curve, true>(spans, gate_up, dy, narrow, b, out, narrow_stride, rows, cols, rank, alpha);       \
    }

#define KERNELS(suffix, T)                                                                                             \
    CURVE_KERNELS(silu, suffix, T)                                                                                     \
    CURVE_KERNELS(gelu, suffix, T)                                                                                     \
    CURVE_KERNELS(gelu_tanh, suffix, T)                                                                                \
    CURVE_KERNELS(relu, suffix, T)                                                                                     \
    CURVE_KERNELS(relu2, suffix, T)

PLIMSOLL_FOR_EACH_TYPE(KERNELS)
