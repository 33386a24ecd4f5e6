// Stochastic gradient descent with momentum.
#include "optimizer.cuh"

// What all elements of an SGD update share. Its one state is the momentum.
struct Sgd {
    float factor, lr, momentum_factor, weight_decay;

    __device__ __forceinline__ Sgd(const float* hyper, const float* clip, float momentum_factor, float weight_decay)
        : factor(clip[1]), lr(hyper[0]), momentum_factor(momentum_factor), weight_decay(weight_decay) {}

    static constexpr int STATES = 1;
    static constexpr bool MOVES = true;

    __device__ __forceinline__ void apply(float& parameter, float& gradient, float& velocity, float&) const {
        const float grad = fmaf(parameter, weight_decay, __fmul_rn(gradient, factor));
        gradient = grad;
        velocity = momentum_factor != 0.0f ? fmaf(velocity, momentum_factor, grad) : grad;
        parameter = fmaf(-lr, velocity, parameter);
    }
};

#define NUMBERS_sgd const float *hyper, const float *clip, float momentum_factor, float weight_decay
#define RULE_sgd Sgd(hyper, clip, momentum_factor, weight_decay)

UPDATE_TYPES(sgd)
