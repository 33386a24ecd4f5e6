// Stochastic gradient descent with momentum.
#include "optimizer.cuh"

// What all elements of an SGD update share. Its one state, the momentum, stands in for `m`.
struct Sgd {
    float factor, lr, momentum_factor, weight_decay;

    __device__ __forceinline__ Sgd(const float* hyper, const float* clip, float momentum_factor, float weight_decay)
        : factor(clip[1]), lr(hyper[0]), momentum_factor(momentum_factor), weight_decay(weight_decay) {}

    template <int N, bool WIDE, typename P, typename G, typename S>
    __device__ __forceinline__ void step(P* p, G* g, S* momentum, S*, float* master, u64 at, u64 len,
                                         const Draws& draws) const {
        constexpr bool wide = WIDE;
        const int count = wide ? N : int(len - at);
        float parameter[N], gradient[N], velocity[N];
        if (master != nullptr) load_some(master + at, count, wide, parameter);
        else load_some(p + at, count, wide, parameter);
        load_some(g + at, count, wide, gradient);
        if (momentum != nullptr) load_some(momentum + at, count, wide, velocity);

        u32 draw[N], draw_velocity[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float grad = fmaf(parameter[i], weight_decay, __fmul_rn(gradient[i], factor));
            draw[i] = draws.draw(at + i, grad);
            draw_velocity[i] = draw[i] << 16;
            gradient[i] = 0.0f;
            velocity[i] = momentum != nullptr ? fmaf(velocity[i], momentum_factor, grad) : grad;
            parameter[i] = fmaf(-lr, velocity[i], parameter[i]);
        }
        store_parameter(p + at, master != nullptr ? master + at : nullptr, count, wide, parameter, draw);
        store_some(g + at, count, wide, gradient);
        if (momentum != nullptr) store_stochastic(momentum + at, count, wide, velocity, draw_velocity);
    }
};

#define NUMBERS_sgd const float *hyper, const float *clip, float momentum_factor, float weight_decay
#define RULE_sgd Sgd(hyper, clip, momentum_factor, weight_decay)

UPDATE_TYPES(sgd)
