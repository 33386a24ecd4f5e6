// Pairs of sequences: which of them count, what is counted, and the logistic loss.
#pragma once

#include "plimsoll.cuh"

// Whether neither sequence of its pair is empty. Sequences lie in pairs.
__device__ __forceinline__ bool counts(const int* boundaries, u32 sequence) {
    const int* at = boundaries + sequence / 2 * 2;
    return at[0] < at[1] && at[1] < at[2];
}

struct Logistic {
    // -log of the logistic of x, and the logistic of -x, which is minus its slope.
    double loss, doubt;
};

// From the exponential that cannot overflow.
__device__ __forceinline__ Logistic logistic_loss(double x) {
    const double small = exp(-fabs(x));
    return {log1p(small) - fmin(x, 0.0), (x > 0.0 ? small : 1.0) / (1.0 + small)};
}

struct PairStats {
    double pairs, right, differences, chosen, rejected;

    __device__ __forceinline__ void add(double ours, double theirs) {
        pairs += 1.0;
        right += ours > theirs ? 1.0 : 0.0;
        differences += ours - theirs;
        chosen += ours;
        rejected += theirs;
    }

    __device__ __forceinline__ void add_to(double* stats) const {
        stats[0] += pairs;
        stats[1] += right;
        stats[2] += differences;
        stats[3] += chosen;
        stats[4] += rejected;
    }
};
