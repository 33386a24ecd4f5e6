// Scores of sequences: the loss of preferring one of a pair to the other, and that of telling classes.
#include "pairs.cuh"

// One block per sequence.
template <typename T>
__device__ void scores(const T* hidden, const T* weight, float* out, u32 cols) {
    const T* x = hidden + u64(blockIdx.x) * cols;
    float sum = 0.0f;
    for (u32 col = threadIdx.x; col < cols; col += blockDim.x) sum = fmaf(to_float(x[col]), to_float(weight[col]), sum);
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// One thread: there are few pairs, and their sum has one order. Puts each score's gradient in its place. `margins` is null
// where there are none.
PLIMSOLL_EXPORT compare(float* scores, const int* boundaries, u32 sequences, const float* margins, float centring,
                        const float* scale_at, double* loss, double* stats) {
    wait_for_previous_kernel();
    const double scale = *scale_at;
    double total = 0.0;
    PairStats found = {};
    for (u32 chosen = 0; chosen + 1 < sequences; chosen += 2) {
        if (!counts(boundaries, chosen)) {
            scores[chosen] = scores[chosen + 1] = 0.0f;
            continue;
        }
        const double ours = scores[chosen], theirs = scores[chosen + 1];
        found.add(ours, theirs);
        const double asked = margins != nullptr ? double(margins[chosen]) : 0.0;
        const Logistic logistic = logistic_loss(ours - theirs - asked);
        total += logistic.loss + double(centring) * (ours + theirs) * (ours + theirs);
        const double pull = 2.0 * double(centring) * (ours + theirs);
        scores[chosen] = float(scale * (pull - logistic.doubt));
        scores[chosen + 1] = float(scale * (pull + logistic.doubt));
    }
    *loss += scale * total;
    found.add_to(stats);
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
        wait_for_previous_kernel();                                                                                    \
        scores(hidden, weight, out, cols);                                                                             \
    }                                                                                                                  \
    PLIMSOLL_EXPORT score_hidden_grad_##suffix(const T* weight, const float* gradients, T* d_hidden, u32 cols) {       \
        wait_for_previous_kernel();                                                                                    \
        score_hidden_grad(weight, gradients, d_hidden, cols);                                                          \
    }
PLIMSOLL_FOR_EACH_TYPE(EXPORT_SCORES)

#define EXPORT_SCORE_WEIGHT_GRAD(suffix, T, other, G)                                                                  \
    PLIMSOLL_EXPORT score_weight_grad_##suffix##_##other(const T* hidden, const int* boundaries,                       \
                                                         const float* gradients, G* dw, u32 sequences, u32 cols) {     \
        wait_for_previous_kernel();                                                                                    \
        score_weight_grad(hidden, boundaries, gradients, dw, sequences, cols);                                         \
    }
EXPORT_SCORE_WEIGHT_GRAD(f32, float, f32, float)
EXPORT_SCORE_WEIGHT_GRAD(bf16, bf16, f32, float)
EXPORT_SCORE_WEIGHT_GRAD(bf16, bf16, bf16, bf16)
EXPORT_SCORE_WEIGHT_GRAD(f16, f16, f32, float)
EXPORT_SCORE_WEIGHT_GRAD(f16, f16, f16, f16)

// One block per sequence, one warp per class at a time. Sequences without a label have no logits.
template <typename T>
__device__ void class_logits(const T* hidden, const T* weight, const int* labels, float* logits, u32 classes,
                             u32 cols) {
    if (labels[blockIdx.x] < 0) return;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const T* x = hidden + u64(blockIdx.x) * cols;
    for (u32 c = warp; c < classes; c += warps) {
        const T* w = weight + u64(c) * cols;
        float sum = 0.0f;
        for (u32 col = lane; col < cols; col += WARP) sum = fmaf(to_float(x[col]), to_float(w[col]), sum);
        sum = warp_sum(sum);
        if (lane == 0) logits[u64(blockIdx.x) * classes + c] = sum;
    }
}

// The larger of two logits and its class; of equals, the first one.
struct Best {
    float logit;
    u32 label;

    __device__ __forceinline__ void meet(float other, u32 other_label) {
        if (other > logit || (other == logit && other_label < label)) {
            logit = other;
            label = other_label;
        }
    }
};

// One block, a warp per sequence at a time: each warp sums up its sequences in their order, and the block the warps in
// theirs. Puts the logits' gradients in their place. A label that is no class makes the loss no number.
PLIMSOLL_EXPORT __launch_bounds__(1024)
    classify(float* logits, const int* labels, u32 sequences, u32 classes, const float* scale_at, double* loss,
             double* stats) {
    wait_for_previous_kernel();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const double scale = *scale_at;
    double total = 0.0, labelled = 0.0, right = 0.0;
    for (u32 sequence = warp; sequence < sequences; sequence += warps) {
        const int label = labels[sequence];
        if (label < 0) continue;
        float* row = logits + u64(sequence) * classes;
        Best best = {__int_as_float(0xff800000), 0xffffffffu};
        for (u32 c = lane; c < classes; c += WARP) best.meet(row[c], c);
#pragma unroll
        for (int distance = WARP / 2; distance > 0; distance /= 2) {
            const float other = __shfl_xor_sync(FULL_MASK, best.logit, distance);
            const u32 other_label = __shfl_xor_sync(FULL_MASK, best.label, distance);
            best.meet(other, other_label);
        }
        const float own = u32(label) < classes ? row[label] : __int_as_float(0x7fffffff);
        // The largest has the share one of the total. Without it nothing cancels where that share is nearly all.
        double rest = 0.0;
        for (u32 c = lane; c < classes; c += WARP) {
            if (c != best.label) rest += double(expf(row[c] - best.logit));
        }
        rest = warp_sum(rest);
        if (lane == 0) {
            total += log1p(rest) + (double(best.logit) - double(own));
            labelled += 1.0;
            right += best.label == u32(label) ? 1.0 : 0.0;
        }
        const double factor = scale / (1.0 + rest);
        const double others = best.label == u32(label) ? rest : 1.0 + rest - double(expf(own - best.logit));
        // All lanes read the label's logit, and one of them overwrites it.
        __syncwarp();
        for (u32 c = lane; c < classes; c += WARP) {
            row[c] = float(factor * (c == u32(label) ? -others : double(expf(row[c] - best.logit))));
        }
    }
    total = block_sum(total);
    labelled = block_sum(labelled);
    right = block_sum(right);
    if (threadIdx.x == 0) {
        *loss += scale * total;
        stats[0] += labelled;
        stats[1] += right;
    }
}

// One thread per class and column, sequences in their order.
template <typename T, typename G>
__device__ void class_weight_grad(const T* hidden, const int* labels, const float* gradients, G* dw, u32 sequences,
                                  u32 cols) {
    const u32 label = blockIdx.x, classes = gridDim.x, col = blockIdx.y * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    G* to = dw + u64(label) * cols + col;
    float sum = to_float(*to);
    for (u32 sequence = 0; sequence < sequences; sequence++) {
        if (labels[sequence] < 0) continue;
        const float gradient = gradients[u64(sequence) * classes + label];
        sum = fmaf(gradient, to_float(hidden[u64(sequence) * cols + col]), sum);
    }
    *to = from_float<G>(sum);
}

// One block per sequence, classes in their order. Sequences without a label have no gradient.
template <typename T>
__device__ void class_hidden_grad(const T* weight, const int* labels, const float* gradients, T* d_hidden, u32 classes,
                                  u32 cols) {
    T* to = d_hidden + u64(blockIdx.x) * cols;
    const float* row = gradients + u64(blockIdx.x) * classes;
    const bool labelled = labels[blockIdx.x] >= 0;
    for (u32 col = threadIdx.x; col < cols; col += blockDim.x) {
        float sum = 0.0f;
        for (u32 c = 0; labelled && c < classes; c++) sum = fmaf(row[c], to_float(weight[u64(c) * cols + col]), sum);
        to[col] = from_float<T>(sum);
    }
}

#define EXPORT_CLASSES(suffix, T)                                                                                      \
    PLIMSOLL_EXPORT class_logits_##suffix(const T* hidden, const T* weight, const int* labels, float* logits,          \
                                          u32 classes, u32 cols) {                                                     \
        wait_for_previous_kernel();                                                                                    \
        class_logits(hidden, weight, labels, logits, classes, cols);                                                   \
    }                                                                                                                  \
    PLIMSOLL_EXPORT class_hidden_grad_##suffix(const T* weight, const int* labels, const float* gradients,             \
                                               T* d_hidden, u32 classes, u32 cols) {                                   \
        wait_for_previous_kernel();                                                                                    \
        class_hidden_grad(weight, labels, gradients, d_hidden, classes, cols);                                         \
    }
PLIMSOLL_FOR_EACH_TYPE(EXPORT_CLASSES)

#define EXPORT_CLASS_WEIGHT_GRAD(suffix, T, other, G)                                                                  \
    PLIMSOLL_EXPORT class_weight_grad_##suffix##_##other(const T* hidden, const int* labels, const float* gradients,   \
                                                         G* dw, u32 sequences, u32 cols) {                             \
        wait_for_previous_kernel();                                                                                    \
        class_weight_grad(hidden, labels, gradients, dw, sequences, cols);                                             \
    }
EXPORT_CLASS_WEIGHT_GRAD(f32, float, f32, float)
EXPORT_CLASS_WEIGHT_GRAD(bf16, bf16, f32, float)
EXPORT_CLASS_WEIGHT_GRAD(bf16, bf16, bf16, bf16)
EXPORT_CLASS_WEIGHT_GRAD(f16, f16, f32, float)
EXPORT_CLASS_WEIGHT_GRAD(f16, f16, f16, f16)
