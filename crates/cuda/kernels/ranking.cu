// Scores of candidates inside a sequence, and losses over the order in which they put them.
#include "pairs.cuh"

// Numbers that each list adds to the statistics; the last one is its loss.
#define LIST_STATS 5

// One warp per sequence: the tokens of its candidates in the order of the text, from where the sequence begins. A list of
// fewer than two has none.
PLIMSOLL_EXPORT list_candidates(const float* marks, const int* boundaries, int* places, int* list_counts) {
    wait_for_previous_kernel();
    const int begin = boundaries[blockIdx.x], end = boundaries[blockIdx.x + 1];
    int count = 0;
    for (int start = begin; start < end; start += WARP) {
        const int token = start + int(threadIdx.x);
        const bool marked = token < end && marks[token] >= 0.0f;
        const u32 all = __ballot_sync(FULL_MASK, marked);
        if (marked) places[begin + count + __popc(all & ((1u << threadIdx.x) - 1u))] = token;
        count += __popc(all);
    }
    if (threadIdx.x == 0) list_counts[blockIdx.x] = count < 2 ? 0 : count;
}

// One block per sequence, its candidates one after another.
template <typename T>
__device__ void list_scores(const T* hidden, const T* weight, const int* boundaries, const int* places,
                            const int* list_counts, float* scores, u32 cols) {
    const int begin = boundaries[blockIdx.x], count = list_counts[blockIdx.x];
    for (int at = begin; at < begin + count; at++) {
        const T* x = hidden + u64(places[at]) * cols;
        float sum = 0.0f;
        for (u32 col = threadIdx.x; col < cols; col += blockDim.x) sum = fmaf(to_float(x[col]), to_float(weight[col]), sum);
        sum = block_sum(sum);
        if (threadIdx.x == 0) scores[at] = sum;
    }
}

// Whether candidate j with the value a stands before candidate i with the value b.
__device__ __forceinline__ bool stands_before(float a, float b, int j, int i) { return a > b || (a == b && j < i); }

// The candidates of one list. Everything is in the order of the text.
struct List {
    const float* scores;
    const float* marks;
    const int* places;
    int* ranks;
    float* gradients;
    double* sums;
    int count;

    __device__ __forceinline__ float relevance(int i) const { return marks[places[i]]; }

    // Statistics of one candidate, which summed up over all are those of the list, the discounted gains apart.
    __device__ void measure(int i, u32 top, double& gain, double& best_gain, double& reciprocal, double& first) const {
        u32 rank = 0, best_rank = 0;
        bool relevant_before = false;
        for (int j = 0; j < count; j++) {
            const bool before = stands_before(scores[j], scores[i], j, i);
            rank += before ? 1 : 0;
            best_rank += stands_before(relevance(j), relevance(i), j, i) ? 1 : 0;
            relevant_before |= before && relevance(j) > 0.0f;
        }
        ranks[i] = int(best_rank);
        if (rank < top) gain += double(relevance(i)) / log2(double(rank) + 2.0);
        if (best_rank < top) best_gain += double(relevance(i)) / log2(double(best_rank) + 2.0);
        if (relevance(i) > 0.0f && !relevant_before) reciprocal += 1.0 / (double(rank) + 1.0);
        if (relevance(i) > 0.0f && rank == 0) first += 1.0;
    }

    // The logarithm of the sum of exponentials of the scores from candidate i's place on, and what the place adds.
    __device__ double likelihood(int i) const {
        double largest = double(scores[i]), sum = 0.0;
        for (int j = 0; j < count; j++) {
            if (ranks[j] >= ranks[i]) largest = fmax(largest, double(scores[j]));
        }
        for (int j = 0; j < count; j++) {
            if (ranks[j] >= ranks[i]) sum += exp(double(scores[j]) - largest);
        }
        sums[i] = largest + log(sum);
        return sums[i] - double(scores[i]);
    }

    __device__ void likelihood_gradient(int k, double scale) const {
        double drawn = 0.0;
        for (int i = 0; i < count; i++) {
            if (ranks[i] <= ranks[k]) drawn += exp(double(scores[k]) - sums[i]);
        }
        gradients[k] = float(scale * (drawn - 1.0));
    }

    __device__ double softmax(int i, double scale) const {
        double largest = double(scores[0]), best = double(relevance(0)), total = 0.0, wanted = 0.0;
        for (int j = 1; j < count; j++) {
            largest = fmax(largest, double(scores[j]));
            best = fmax(best, double(relevance(j)));
        }
        for (int j = 0; j < count; j++) {
            total += exp(double(scores[j]) - largest);
            wanted += exp(double(relevance(j)) - best);
        }
        const double share = exp(double(relevance(i)) - best) / wanted;
        gradients[i] = float(scale * (exp(double(scores[i]) - largest) / total - share));
        return share * (log(total) + largest - double(scores[i]));
    }

    __device__ double ordered_pairs(int i) const {
        double pairs = 0.0;
        for (int j = 0; j < count; j++) pairs += relevance(i) > relevance(j) ? 1.0 : 0.0;
        return pairs;
    }

    __device__ double pairwise(int i, double scale, double pairs) const {
        double loss = 0.0, slope = 0.0;
        for (int j = 0; j < count; j++) {
            const double difference = double(scores[i]) - double(scores[j]);
            if (relevance(i) > relevance(j)) {
                const Logistic logistic = logistic_loss(difference);
                loss += logistic.loss;
                slope -= logistic.doubt;
            } else if (relevance(j) > relevance(i)) {
                slope += logistic_loss(-difference).doubt;
            }
        }
        gradients[i] = float(scale * slope / pairs);
        return loss / pairs;
    }
};

// One block per sequence, a thread per candidate at a time; each looks at all others. `ranking`: by likelihood, by
// softmax, by pairs.
PLIMSOLL_EXPORT __launch_bounds__(128)
    list_order(const float* marks, const int* boundaries, const int* places, const int* list_counts,
               const float* scores, int* ranks, float* gradients, double* sums, double* totals, u32 ranking, u32 top,
               const float* scale_at) {
    wait_for_previous_kernel();
    const int begin = boundaries[blockIdx.x], count = list_counts[blockIdx.x];
    const double scale = *scale_at;
    const List list = {scores + begin, marks, places + begin, ranks + begin, gradients + begin, sums + begin, count};
    double gain = 0.0, best_gain = 0.0, reciprocal = 0.0, first = 0.0, pairs = 0.0, loss = 0.0;
    for (int i = int(threadIdx.x); i < count; i += blockDim.x) {
        list.measure(i, top, gain, best_gain, reciprocal, first);
        if (ranking == 2) pairs += list.ordered_pairs(i);
    }
    pairs = fmax(block_sum(pairs), 1.0);
    // Ranks are there, because the block has met.
    for (int i = int(threadIdx.x); i < count; i += blockDim.x) {
        if (ranking == 0) loss += list.likelihood(i);
        if (ranking == 1) loss += list.softmax(i, scale);
        if (ranking == 2) loss += list.pairwise(i, scale, pairs);
    }
    loss = block_sum(loss);
    if (ranking == 0) {
        for (int i = int(threadIdx.x); i < count; i += blockDim.x) list.likelihood_gradient(i, scale);
    }
    gain = block_sum(gain);
    best_gain = block_sum(best_gain);
    reciprocal = block_sum(reciprocal);
    first = block_sum(first);
    if (threadIdx.x != 0) return;
    double* to = totals + u64(blockIdx.x) * LIST_STATS;
    to[0] = count > 0 ? 1.0 : 0.0;
    to[1] = best_gain > 0.0 ? gain / best_gain : 0.0;
    to[2] = reciprocal;
    to[3] = first;
    to[4] = loss;
}

// One thread: there are few lists, and their sum has one order.
PLIMSOLL_EXPORT list_totals(const double* totals, u32 sequences, const float* scale_at, double* loss, double* stats) {
    wait_for_previous_kernel();
    double sums[LIST_STATS] = {};
    for (u32 sequence = 0; sequence < sequences; sequence++) {
        for (u32 i = 0; i < LIST_STATS; i++) sums[i] += totals[u64(sequence) * LIST_STATS + i];
    }
    for (u32 i = 0; i < LIST_STATS; i++) stats[i] += sums[i];
    *loss += double(*scale_at) * sums[LIST_STATS - 1];
}

// One thread per column, candidates in their order.
template <typename T, typename G>
__device__ void list_weight_grad(const T* hidden, const int* boundaries, const int* places, const int* list_counts,
                                 const float* gradients, G* dw, u32 sequences, u32 cols) {
    const u32 col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float sum = to_float(dw[col]);
    for (u32 sequence = 0; sequence < sequences; sequence++) {
        const int begin = boundaries[sequence], end = begin + list_counts[sequence];
        for (int at = begin; at < end; at++) sum = fmaf(gradients[at], to_float(hidden[u64(places[at]) * cols + col]), sum);
    }
    dw[col] = from_float<G>(sum);
}

// One block per sequence, its candidates one after another; other rows are zero already.
template <typename T>
__device__ void list_hidden_grad(const T* weight, const int* boundaries, const int* places, const int* list_counts,
                                 const float* gradients, T* d_hidden, u32 cols) {
    const int begin = boundaries[blockIdx.x], end = begin + list_counts[blockIdx.x];
    for (int at = begin; at < end; at++) {
        T* to = d_hidden + u64(places[at]) * cols;
        const float gradient = gradients[at];
        for (u32 col = threadIdx.x; col < cols; col += blockDim.x)
            to[col] = from_float<T>(gradient * to_float(weight[col]));
    }
}

#define EXPORT_LISTS(suffix, T)                                                                                        \
    PLIMSOLL_EXPORT list_scores_##suffix(const T* hidden, const T* weight, const int* boundaries, const int* places,   \
                                         const int* list_counts, float* scores, u32 cols) {                            \
        wait_for_previous_kernel();                                                                                    \
        list_scores(hidden, weight, boundaries, places, list_counts, scores, cols);                                    \
    }                                                                                                                  \
    PLIMSOLL_EXPORT list_hidden_grad_##suffix(const T* weight, const int* boundaries, const int* places,               \
                                              const int* list_counts, const float* gradients, T* d_hidden, u32 cols) { \
        wait_for_previous_kernel();                                                                                    \
        list_hidden_grad(weight, boundaries, places, list_counts, gradients, d_hidden, cols);                          \
    }
PLIMSOLL_FOR_EACH_TYPE(EXPORT_LISTS)

#define EXPORT_LIST_WEIGHT_GRAD(suffix, T, other, G)                                                                   \
    PLIMSOLL_EXPORT list_weight_grad_##suffix##_##other(const T* hidden, const int* boundaries, const int* places,     \
                                                        const int* list_counts, const float* gradients, G* dw,         \
                                                        u32 sequences, u32 cols) {                                     \
        wait_for_previous_kernel();                                                                                    \
        list_weight_grad(hidden, boundaries, places, list_counts, gradients, dw, sequences, cols);                     \
    }
EXPORT_LIST_WEIGHT_GRAD(f32, float, f32, float)
EXPORT_LIST_WEIGHT_GRAD(bf16, bf16, f32, float)
EXPORT_LIST_WEIGHT_GRAD(bf16, bf16, bf16, bf16)
EXPORT_LIST_WEIGHT_GRAD(f16, f16, f32, float)
EXPORT_LIST_WEIGHT_GRAD(f16, f16, f16, f16)
