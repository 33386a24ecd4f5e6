// How likely whole sequences are, and losses that prefer one of a pair to the other by that.
#include "pairs.cuh"

// Tokens of the block's sequence that have a target.
__device__ u32 learnt_tokens(const int* targets, const int* boundaries) {
    float count = 0.0f;
    for (int token = boundaries[blockIdx.x] + int(threadIdx.x); token < boundaries[blockIdx.x + 1]; token += blockDim.x)
        count += targets[token] >= 0 ? 1.0f : 0.0f;
    return u32(block_sum(count));
}

// One block per sequence.
PLIMSOLL_EXPORT sequence_log_prob(const float* nll, const int* targets, const int* boundaries, float* out, u32 mean) {
    wait_for_previous_kernel();
    double sum = 0.0;
    for (int token = boundaries[blockIdx.x] + int(threadIdx.x); token < boundaries[blockIdx.x + 1]; token += blockDim.x)
        sum -= targets[token] >= 0 ? double(nll[token]) : 0.0;
    sum = block_sum(sum);
    const u32 count = mean ? learnt_tokens(targets, boundaries) : 1;
    if (threadIdx.x == 0) out[blockIdx.x] = float(sum / double(count > 0 ? count : 1));
}

// One block per sequence.
PLIMSOLL_EXPORT sequence_log_prob_grad(const float* dy, const int* targets, const int* boundaries, float* d_nll,
                                       u32 mean) {
    wait_for_previous_kernel();
    const u32 count = mean ? learnt_tokens(targets, boundaries) : 1;
    const float slope = -dy[blockIdx.x] / float(count > 0 ? count : 1);
    for (int token = boundaries[blockIdx.x] + int(threadIdx.x); token < boundaries[blockIdx.x + 1]; token += blockDim.x)
        d_nll[token] = targets[token] >= 0 ? slope : 0.0f;
}

// The loss of a pair, its slopes over the log-probabilities, and the rewards.
struct Compared {
    double loss, chosen_slope, rejected_slope, chosen_reward, rejected_reward;
};

__device__ __forceinline__ Compared direct(double chosen, double rejected, double beta, double wrong) {
    const double ours = beta * chosen, theirs = beta * rejected;
    const Logistic right = logistic_loss(ours - theirs), turned = logistic_loss(theirs - ours);
    const double slope = beta * (wrong * turned.doubt - (1.0 - wrong) * right.doubt);
    return {(1.0 - wrong) * right.loss + wrong * turned.loss, slope, -slope, ours, theirs};
}

__device__ __forceinline__ Compared odds(double chosen, double rejected, double lambda, double log_prob_max) {
    const double ours = fmin(chosen, log_prob_max), theirs = fmin(rejected, log_prob_max);
    const double our_rest = -expm1(ours), their_rest = -expm1(theirs);
    const Logistic logistic = logistic_loss((ours - log(our_rest)) - (theirs - log(their_rest)));
    // The slope of the log odds is one over how likely the sequence is not.
    const double pull = lambda * logistic.doubt;
    return {lambda * logistic.loss - chosen, -1.0 - pull / our_rest, pull / their_rest, lambda * chosen,
            lambda * rejected};
}

// One thread: there are few pairs, and their sum has one order. `reference` is null for the loss over odds, `gradient`
// where none is wanted. `strength` is beta or lambda, `other` the label smoothing or the largest log-probability.
PLIMSOLL_EXPORT preference(const float* log_probs, const float* reference, const int* boundaries, u32 sequences,
                           float strength, double other, const float* scale_at, double* loss, double* stats,
                           float* gradient) {
    wait_for_previous_kernel();
    const double scale = *scale_at;
    double total = 0.0;
    PairStats found = {};
    for (u32 chosen = 0; chosen + 1 < sequences; chosen += 2) {
        Compared compared = {};
        if (counts(boundaries, chosen)) {
            const double ours = log_probs[chosen], theirs = log_probs[chosen + 1];
            compared = reference != nullptr
                           ? direct(ours - double(reference[chosen]), theirs - double(reference[chosen + 1]), strength, other)
                           : odds(ours, theirs, strength, other);
            found.add(compared.chosen_reward, compared.rejected_reward);
            total += compared.loss;
        }
        if (gradient == nullptr) continue;
        gradient[chosen] = float(scale * compared.chosen_slope);
        gradient[chosen + 1] = float(scale * compared.rejected_slope);
    }
    *loss += scale * total;
    found.add_to(stats);
}
