// Muon: momentum, made orthogonal. Products between its kernels are the library's.
#include "optimizer.cuh"

// Takes the gradient into the momentum, and leaves the direction in its place.
struct Direction {
    float factor, momentum;
    bool nesterov;

    __device__ __forceinline__ Direction(const float* hyper, const float* clip, float nesterov)
        : factor(clip[1]), momentum(hyper[1]), nesterov(nesterov != 0.0f) {}

    static constexpr int STATES = 1;
    static constexpr bool MOVES = false;

    __device__ __forceinline__ void apply(float&, float& gradient, float& velocity, float&) const {
        // Rounded by name: a compiler that fused it here and not there would make kernels differ.
        const float grad = __fmul_rn(gradient, factor);
        velocity = fmaf(grad - velocity, 1.0f - momentum, velocity);
        gradient = nesterov ? fmaf(velocity - grad, momentum, grad) : velocity;
    }
};

#define NUMBERS_muon const float *hyper, const float *clip, float nesterov
#define RULE_muon Direction(hyper, clip, nesterov)

UPDATE_TYPES(muon)

// The norm from the sums of squares of its parts, no less than `least`; by one block.
PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS) muon_norm(const double* partial, float* norm, u32 parts, float least) {
    wait_for_previous_kernel();
    double sum = 0.0;
    for (u32 part = threadIdx.x; part < parts; part += blockDim.x) sum += partial[part];
    sum = block_sum(sum);
    if (threadIdx.x == 0) norm[0] = fmaxf(float(sqrt(sum)), least);
}

#define FOR_EACH_ELEMENT(i, len)                                                                                       \
    for (u64 i = u64(blockIdx.x) * UPDATE_THREADS + threadIdx.x; i < len; i += u64(gridDim.x) * UPDATE_THREADS)

template <typename G, typename X>
__device__ __forceinline__ void divide(const G* direction, X* x, const float* norm, u64 len) {
    const float by = norm[0];
    FOR_EACH_ELEMENT(i, len) x[i] = from_float<X>(__fdiv_rn(to_float(direction[i]), by));
}

// `squared = a·I + b·gram + c·squared`, of `side` rows and columns.
template <typename X>
__device__ __forceinline__ void polynomial(const X* gram, X* squared, u64 side, float a, float b, float c) {
    FOR_EACH_ELEMENT(i, side * side) {
        const float identity = i % (side + 1) == 0 ? a : 0.0f;
        squared[i] = from_float<X>(fmaf(c, to_float(squared[i]), fmaf(b, to_float(gram[i]), identity)));
    }
}

// A matrix of the parameter, which begins at element `first` of it.
template <typename P>
__device__ __forceinline__ void move(P* p, const P* x, float* master, const float* hyper, const float* clip, u64 first,
                                     u64 len, u32 site, float scale, float weight_decay) {
    if (isnan(clip[1])) return;
    const Draws draws(site, hyper);
    const float size = hyper[0] * scale, keep = fmaf(-hyper[0], weight_decay, 1.0f);
    FOR_EACH_ELEMENT(i, len) {
        const u64 at = first + i;
        const float before = master != nullptr ? master[at] : to_float(p[at]), step = to_float(x[i]);
        const float after = fmaf(-size, step, __fmul_rn(before, keep));
        p[at] = master != nullptr ? from_float<P>(after) : round_stochastic<P>(after, draws.draw(at, step));
        if (master != nullptr) master[at] = after;
    }
}

#define DIVIDE_KERNEL(g_name, G, x_name, X)                                                                            \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS)                                                                  \
        muon_divide_##g_name##_##x_name(const G* direction, X* x, const float* norm, u64 len) {                        \
        wait_for_previous_kernel();                                                                                    \
        divide(direction, x, norm, len);                                                                               \
    }

#define MATRIX_KERNELS(name, P)                                                                                        \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS)                                                                  \
        muon_polynomial_##name(const P* gram, P* squared, u64 side, float a, float b, float c) {                       \
        wait_for_previous_kernel();                                                                                    \
        polynomial(gram, squared, side, a, b, c);                                                                      \
    }                                                                                                                  \
    PLIMSOLL_EXPORT __launch_bounds__(UPDATE_THREADS)                                                                  \
        muon_move_##name(P* p, const P* x, float* master, const float* hyper, const float* clip, u64 first, u64 len,   \
                         u32 site, float scale, float weight_decay) {                                                  \
        wait_for_previous_kernel();                                                                                    \
        move(p, x, master, hyper, clip, first, len, site, scale, weight_decay);                                        \
    }

DIVIDE_KERNEL(f32, float, f32, float)
DIVIDE_KERNEL(f32, float, bf16, bf16)
DIVIDE_KERNEL(bf16, bf16, bf16, bf16)
DIVIDE_KERNEL(f32, float, f16, f16)
DIVIDE_KERNEL(f16, f16, f16, f16)
PLIMSOLL_FOR_EACH_TYPE(MATRIX_KERNELS)
