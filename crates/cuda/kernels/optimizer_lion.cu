// Lion: the sign of an interpolated momentum.
#include "optimizer.cuh"

// What all elements of a Lion update share. Its one state is the momentum.
struct Lion {
    float factor, lr, keep, beta1_complement, beta2_complement;

    __device__ __forceinline__ Lion(const float* hyper, const float* clip, float beta1_complement,
                                    float beta2_complement, float weight_decay)
        : factor(clip[1]), lr(hyper[0]), keep(fmaf(-hyper[0], weight_decay, 1.0f)), beta1_complement(beta1_complement),
          beta2_complement(beta2_complement) {}

    static constexpr int STATES = 1;
    static constexpr bool MOVES = true;

    __device__ __forceinline__ void apply(float& parameter, float& gradient, float& velocity, float&) const {
        // Rounded by name: a compiler that fused it here and not there would make kernels differ.
        const float grad = __fmul_rn(gradient, factor);
        gradient = grad;
        const float direction = fmaf(grad - velocity, beta1_complement, velocity);
        const float sign = float(direction > 0.0f) - float(direction < 0.0f);
        parameter = fmaf(-lr, sign, __fmul_rn(parameter, keep));
        velocity = fmaf(grad - velocity, beta2_complement, velocity);
    }
};

#define NUMBERS_lion                                                                                                   \
    const float *hyper, const float *clip, float beta1_complement, float beta2_complement, float weight_decay
#define RULE_lion Lion(hyper, clip, beta1_complement, beta2_complement, weight_decay)

UPDATE_TYPES(lion)
