// Scores of sequences, and the loss of preferring one of a pair to the other.
#include "plimsoll.cuh"

// Whether neither sequence of its pair is empty. Sequences lie in pairs.
__device__ __forceinline__ bool counts(const int* boundaries, u32 sequence) {
    const int* at = boundaries + sequence / 2 * 2;
    return at[0] < at[1] && at[1] < at[2];
}

// One block per sequence.
template <typename T>
__device__ void scores(const T* hidden, const T* weight, float* out, u32 cols) {
    const T* x = hidden + u64(blockIdx.x) * cols;
    float sum = 0.0f;
    for (u32 col = threadIdx.x; col < cols; col += blockDim.x) sum = fmaf(to_float(x[col]), to_float(weight[col]), sum);
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// One thread: there are few pairs, and their sum has one order. Puts each score's gradient in its place.
PLIMSOLL_EXPORT compare(float* scores, const int* boundaries, u32 sequences, const float* scale_at, double* loss,
                        double* stats) {
    const double scale = *scale_at;
    double total = 0.0, pairs = 0.0, right = 0.0, margins = 0.0;
    for (u32 chosen = 0; chosen + 1 < sequences; chosen += 2) {
        if (!counts(boundaries, chosen)) {
            scores[chosen] = scores[chosen + 1] = 0.0f;
            continue;
        }
        const double margin = double(scores[chosen]) - double(scores[chosen + 1]);
        pairs += 1.0;
        right += margin > 0.0 ? 1.0 : 0.0;
        margins += margin;
        const double small = exp(-fabs(margin));
        total += log1p(small) - fmin(margin, 0.0);
        // The logistic of -margin, from the exponential that cannot overflow.
        const double doubt = (margin > 0.0 ? small : 1.0) / (1.0 + small);
        const float slope = float(scale * doubt);
        scores[chosen] = -slope;
        scores[chosen + 1] = slope;
    }
    *loss += scale * total;
    stats[0] += pairs;
    stats[1] += right;
    stats[2] += margins;
}

// One thread per column, sequences in their order.
template <typename T, typename G>
__device__ void score_weight_grad(const T* hidden, const int* boundaries, const float* gradients, G* dw, u32 sequences,
                                  u32 cols) {
    const u32 col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float sum = to_float(dw[col]);
    for (u32 sequence = 0; sequence < sequences; sequence++) {
        if (!counts(boundaries, sequence)) continue;
        sum = fmaf(gradients[sequence], to_float(hidden[u64(sequence) * cols + col]), sum);
    }
    dw[col] = from_float<G>(sum);
}

// One block per sequence.
template <typename T>
__device__ void score_hidden_grad(const T* weight, const float* gradients, T* d_hidden, u32 cols) {
    T* to = d_hidden + u64(blockIdx.x) * cols;
    const float gradient = gradients[blockIdx.x];
    for (u32 col = threadIdx.x; col < cols; col += blockDim.x) to[col] = from_float<T>(gradient * to_float(weight[col]));
}

#define EXPORT_SCORES(suffix, T)                                                                                       \
    PLIMSOLL_EXPORT scores_##suffix(const T* hidden, const T* weight, float* out, u32 cols) {                          \
        scores(hidden, weight, out, cols);                                                                             \
    }                                                                                                                  \
    PLIMSOLL_EXPORT score_hidden_grad_##suffix(const T* weight, const float* gradients, T* d_hidden, u32 cols) {       \
        score_hidden_grad(weight, gradients, d_hidden, cols);                                                          \
    }
PLIMSOLL_FOR_EACH_TYPE(EXPORT_SCORES)

#define EXPORT_SCORE_WEIGHT_GRAD(suffix, T, other, G)                                                                  \
    PLIMSOLL_EXPORT score_weight_grad_##suffix##_##other(const T* hidden, const int* boundaries,                       \
                                                         const float* gradients, G* dw, u32 sequences, u32 cols) {     \
        score_weight_grad(hidden, boundaries, gradients, dw, sequences, cols);                                         \
    }
EXPORT_SCORE_WEIGHT_GRAD(f32, float, f32, float)
EXPORT_SCORE_WEIGHT_GRAD(bf16, bf16, f32, float)
EXPORT_SCORE_WEIGHT_GRAD(bf16, bf16, bf16, bf16)
EXPORT_SCORE_WEIGHT_GRAD(f16, f16, f32, float)
EXPORT_SCORE_WEIGHT_GRAD(f16, f16, f16, f16)
