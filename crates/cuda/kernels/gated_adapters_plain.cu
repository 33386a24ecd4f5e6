// The gated activation with adapters of any rank and any columns, in any type: plain sums, nothing tuned.
#include "curves.cuh"

// Columns `start ..` of the product belong to an adapter whose second matrix begins at row `row` and whose low-rank columns
// begin at `low_rank`. The words are those of `Span` in src/gated_adapters.rs; those with no columns are not there.
struct Span {
    u64 start, len, row, low_rank;
};

#define SPANS_MAX 8
struct Spans {
    Span spans[SPANS_MAX];
};

// Of two rows of `rank` numbers, in packs where every row begins with one.
template <typename T> __device__ __forceinline__ float dot(const T* a, const T* b, u32 rank) {
    constexpr int N = Pack<T>::N;
    const bool wide = rank % N == 0;
    float sum = 0.0f;
#pragma unroll 1
    for (u32 k = 0; k < rank; k += N) {
        float x[N], y[N];
        load_some(a + k, int(rank - k), wide, x);
        load_some(b + k, int(rank - k), wide, y);
#pragma unroll
        for (int i = 0; i < N; i++) sum = fmaf(x[i], y[i], sum);
    }
    return sum;
}

// Adds what adapters add to columns `col ..` of one row.
template <typename T, int N>
__device__ __forceinline__ void add_adapters(const Spans& spans, const T* low_rank, const T* b, u32 col, int count,
                                             u32 rank, float alpha, float (&x)[N]) {
#pragma unroll 1
    for (int s = 0; s < SPANS_MAX; s++) {
        const Span span = spans.spans[s];
        const T* from = low_rank + span.low_rank;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const u64 column = col + i;
            if (i >= count || column < span.start || column >= span.start + span.len) continue;
            const float sum = dot(from, b + (span.row + column - span.start) * rank, rank);
            x[i] = fmaf(alpha, sum, x[i]);
        }
    }
}

// What an adapter's first matrix `a` [rank, cols] gives to a gradient: drop(α·dh·A). Null if there is none.
template <typename T> struct Share {
    const T* dh;
    const T* a;
    u32 rank;
    float alpha;
    const u32* row_ids;
    const u32* key;
    u32 site, threshold;
    float scale;
};

// Adds the last share of a gradient to columns `col ..` of one row.
template <typename T, int N>
__device__ __forceinline__ void add_share(const Share<T>& share, u32 row, u32 col, u32 cols, int count, float (&d)[N]) {
    float sums[N] = {};
#pragma unroll 1
    for (u32 k = 0; k < share.rank; k++) {
        const float factor = to_float(share.dh[u64(row) * share.rank + k]);
        float weights[N];
        load_some(share.a + u64(k) * cols + col, count, cols % N == 0, weights);
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] = fmaf(factor, weights[i], sums[i]);
    }
    if (share.row_ids != nullptr) {
        const RowMask mask = Mask(share.key, share.site, share.threshold, share.scale).row(share.row_ids[row]);
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] *= mask.factor(col + i);
    }
#pragma unroll
    for (int i = 0; i < N; i++) d[i] = fmaf(share.alpha, sums[i], d[i]);
}

// A thread has one run of columns of one row, in both halves; `cols` are those of one. `out` may be `gate_up` for the
// gradient: a thread writes the elements it read. `value`, unless null, is what the plain kind makes.
template <typename T, typename Curve, bool GRADIENT>
__device__ __forceinline__ void gated_plain(const Spans& spans, const T* gate_up, const T* dy, const T* low_rank,
                                            const T* b, const Share<T>& share, T* out, T* value, u32 low_rank_stride,
                                            u32 rows, u32 cols, u32 rank, float alpha) {
    constexpr int N = Pack<T>::N;
    const u32 chunks = (cols + N - 1) / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = index / chunks, at = index % chunks * N;
    if (row >= rows) return;
    const int count = min(N, int(cols - at));
    const bool wide = cols % N == 0;
    const u64 start = u64(row) * 2 * cols + at;
    const T* low_rank_row = low_rank + u64(row) * low_rank_stride;
    float gate[N], up[N], d[N];
    load_some(gate_up + start, count, wide, gate);
    load_some(gate_up + start + cols, count, wide, up);
    add_adapters(spans, low_rank_row, b, at, count, rank, alpha, gate);
    add_adapters(spans, low_rank_row, b, cols + at, count, rank, alpha, up);
    if constexpr (GRADIENT) {
        load_some(dy + u64(row) * cols + at, count, wide, d);
        if (share.a != nullptr) add_share(share, row, at, cols, count, d);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        if constexpr (GRADIENT) {
            const float2 curve = Curve::both(gate[i]);
            gate[i] = d[i] * up[i] * curve.y;
            const float act = curve.x * up[i];
            up[i] = d[i] * curve.x;
            d[i] = act;
        } else {
            gate[i] = Curve::value(gate[i]) * up[i];
        }
    }
    if constexpr (GRADIENT) {
        store_some(out + start, count, wide, gate);
        store_some(out + start + cols, count, wide, up);
        if (value != nullptr) store_some(value + u64(row) * cols + at, count, wide, d);
    } else {
        store_some(out + u64(row) * cols + at, count, wide, gate);
    }
}

#define CURVE_KERNELS(curve, suffix, T)                                                                                \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        gated_##curve##_##suffix(const Spans spans, const T* gate_up, const T* low_rank, const T* b, T* out,             \
                                 u32 low_rank_stride, u32 rows, u32 cols, u32 rank, float alpha) {                       \
        wait_for_previous_kernel();                                                                                      \
        gated_plain<T, curve, false>(spans, gate_up, nullptr, low_rank, b, Share<T>{}, out, nullptr, low_rank_stride, rows, \
                                     cols, rank, alpha);                                                               \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(256)                                                                             \
        gated_grad_##curve##_##suffix(const Spans spans, const T* gate_up, const T* dy, const T* low_rank, const T* b,   \
                                      T* out, u32 low_rank_stride, u32 rows, u32 cols, u32 rank, float alpha,            \
                                      const T* dh, const T* a, u32 share_rank, float share_alpha, const u32* row_ids,  \
                                      const u32* key, u32 site, u32 threshold, float scale, T* value) {                \
        wait_for_previous_kernel();                                                                                    \
        const Share<T> share = {dh, a, share_rank, share_alpha, row_ids, key, site, threshold, scale};                 \
        gated_plain<T, curve, true>(spans, gate_up, dy, low_rank, b, share, out, value, low_rank_stride, rows, cols,       \
                                    rank, alpha);                                                                          \
    }

#define KERNELS(suffix, T)                                                                                             \
    CURVE_KERNELS(silu, suffix, T)                                                                                     \
    CURVE_KERNELS(gelu, suffix, T)                                                                                     \
    CURVE_KERNELS(gelu_tanh, suffix, T)                                                                                \
    CURVE_KERNELS(relu, suffix, T)                                                                                     \
    CURVE_KERNELS(relu2, suffix, T)

PLIMSOLL_FOR_EACH_TYPE(KERNELS)
