// Cross entropy over rows of logits, and the logits' gradient.
#include "plimsoll.cuh"

__device__ __forceinline__ float capped(float x, float cap) { return cap > 0.0f ? cap * tanhf(x / cap) : x; }

// The largest value seen and the sum of exponentials relative to it.
struct Softmax {
    float max, sum;

    __device__ __forceinline__ void add(float x) {
        if (x > max) {
            sum = fmaf(sum, expf(max - x), 1.0f);
            max = x;
        } else {
            sum += expf(x - max);
        }
    }

    // Four at a time meet the maximum once.
    __device__ __forceinline__ void add(const float (&x)[4]) {
        const float largest = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
        if (largest > max) {
            sum *= expf(max - largest);
            max = largest;
        }
        sum += (expf(x[0] - max) + expf(x[1] - max)) + (expf(x[2] - max) + expf(x[3] - max));
    }
};

template <typename T> __device__ __forceinline__ void store_four(T* to, const float (&x)[4]) {
    struct alignas(4 * sizeof(T)) Four {
        T v[4];
    } four;
#pragma unroll
    for (int i = 0; i < 4; i++) four.v[i] = from_float<T>(x[i]);
    *reinterpret_cast<Four*>(to) = four;
}

// One block per row. `d_logits` may be the same memory as `logits` when T is float: every thread then
// overwrites only what it alone has read. `weights`, `scale_at` and `nlls` are null where there are none;
// the scale is one then.
template <bool GRAD, typename T>
__device__ void loss_rows(const float* logits, T* d_logits, const int* targets, const float* weights,
                          const float* scale_at, double* row_losses, float* nlls, u32 vocabulary, u32 stride, float cap) {
    const u64 start = u64(blockIdx.x) * stride;
    const float* row = logits + start;
    T* d_row = d_logits + start;
    const int target = targets[blockIdx.x];
    // Rows begin at multiples of sixteen bytes.
    const u32 wide_end = vocabulary / 4 * 4;
    if (target < 0) {
        if (GRAD) {
            const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (u32 i = threadIdx.x * 4; i < wide_end; i += blockDim.x * 4) store_four(d_row + i, zeros);
            for (u32 i = wide_end + threadIdx.x; i < vocabulary; i += blockDim.x) d_row[i] = from_float<T>(0.0f);
        }
        if (threadIdx.x == 0) {
            row_losses[blockIdx.x] = 0.0;
            if (nlls != nullptr) nlls[blockIdx.x] = 0.0f;
        }
        return;
    }
    // Read before anything is overwritten; the reductions' barriers lie between.
    const bool known = u32(target) < vocabulary;
    const float own = known ? capped(row[target], cap) : __int_as_float(0x7fffffff);

    Softmax softmax = {__int_as_float(0xff800000), 0.0f};
    for (u32 i = threadIdx.x * 4; i < wide_end; i += blockDim.x * 4) {
        float x[4];
        load_floats(row + i, x);
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = capped(x[j], cap);
        softmax.add(x);
    }
    for (u32 i = wide_end + threadIdx.x; i < vocabulary; i += blockDim.x) softmax.add(capped(row[i], cap));
    const float max = block_max(softmax.max);
    // A thread that saw nothing has the sum zero.
    const float sum = block_sum(softmax.sum > 0.0f ? softmax.sum * expf(softmax.max - max) : softmax.sum);
    if (threadIdx.x == 0) {
        const double nll = log(double(sum)) + double(max) - double(own);
        row_losses[blockIdx.x] = weights != nullptr ? double(weights[blockIdx.x]) * nll : nll;
        if (nlls != nullptr) nlls[blockIdx.x] = float(nll);
    }
    if (!GRAD) return;

    // Rounded by name: fused into what follows, a weight of one would not be the same as none.
    const float whole = scale_at != nullptr ? *scale_at : 1.0f;
    const float scale = weights != nullptr ? __fmul_rn(whole, weights[blockIdx.x]) : whole;
    const float factor = scale / sum;
    auto gradient = [&](u32 i, float x) {
        // 1 - tanh² by way of the exponential, which loses nothing where tanh is close to one.
        const float tail = expf(-2.0f * fabsf(x) / cap);
        const float slope = cap > 0.0f ? 4.0f * tail / ((1.0f + tail) * (1.0f + tail)) : 1.0f;
        x = capped(x, cap);
        const float share = factor * expf(x - max);
        return (int(i) == target ? share - scale : share) * slope;
    };
    for (u32 i = threadIdx.x * 4; i < wide_end; i += blockDim.x * 4) {
        float x[4];
        load_floats(row + i, x);
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = gradient(i + j, x[j]);
        store_four(d_row + i, x);
    }
    for (u32 i = wide_end + threadIdx.x; i < vocabulary; i += blockDim.x) d_row[i] = from_float<T>(gradient(i, row[i]));
}

#define EXPORT_LOSS_ROWS(suffix, T)                                                                                    \
    PLIMSOLL_EXPORT __launch_bounds__(1024)                                                                            \
        loss_rows_##suffix(const float* logits, T* d_logits, const int* targets, const float* weights,                 \
                           const float* scale, double* row_losses, float* nlls, u32 vocabulary, u32 stride,           \
                           float cap) {                                                                                \
        wait_for_previous_kernel();                                                                                    \
        loss_rows<true>(logits, d_logits, targets, weights, scale, row_losses, nlls, vocabulary, stride, cap);         \
    }
PLIMSOLL_FOR_EACH_TYPE(EXPORT_LOSS_ROWS)

PLIMSOLL_EXPORT __launch_bounds__(1024)
    loss_rows(const float* logits, float* d_logits, const int* targets, const float* weights, const float* scale,
              double* row_losses, float* nlls, u32 vocabulary, u32 stride, float cap) {
    wait_for_previous_kernel();
    loss_rows<false>(logits, d_logits, targets, weights, scale, row_losses, nlls, vocabulary, stride, cap);
}

// One block: loss += scale * sum of the rows' losses, always in the same order.
PLIMSOLL_EXPORT __launch_bounds__(1024)
    sum_losses(const double* row_losses, u32 rows, const float* scale, double* loss) {
    wait_for_previous_kernel();
    double sum = 0.0;
    for (u32 row = threadIdx.x; row < rows; row += blockDim.x) sum += row_losses[row];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *loss += double(*scale) * sum;
}

// The last token of every sequence, one block each. Boundaries that name no token give rows of NaN.
template <typename T>
__device__ void gather_last(const T* hidden, const int* boundaries, T* gathered, u32 tokens, u32 cols) {
    const int end = boundaries[blockIdx.x + 1];
    const bool known = end >= 1 && u32(end) <= tokens;
    const T* from = hidden + u64(known ? end - 1 : 0) * cols;
    T* to = gathered + u64(blockIdx.x) * cols;
    for (u32 col = threadIdx.x; col < cols; col += blockDim.x) {
        to[col] = known ? from[col] : from_float<T>(__int_as_float(0x7fffffff));
    }
}

#define EXPORT_GATHER_LAST(suffix, T)                                                                                  \
    PLIMSOLL_EXPORT gather_last_##suffix(const T* hidden, const int* boundaries, T* gathered, u32 tokens, u32 cols) {  \
        wait_for_previous_kernel();                                                                                    \
        gather_last(hidden, boundaries, gathered, tokens, cols);                                                       \
    }
PLIMSOLL_FOR_EACH_TYPE(EXPORT_GATHER_LAST)

PLIMSOLL_EXPORT soften(float* logits, u64 count, float cap) {
    wait_for_previous_kernel();
    const u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) logits[i] = capped(logits[i], cap);
}
