// Adam with decoupled weight decay.
#include "optimizer.cuh"

// The square root to about a unit in the last place.
__device__ __forceinline__ float root(float x) {
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What all elements of an AdamW update share.
struct AdamW {
    float factor, keep, step_size, root_correction, beta1_complement, beta2, beta2_complement, eps;

    __device__ __forceinline__ AdamW(const float* hyper, const float* clip, float beta1_complement, float beta2,
                                     float beta2_complement, float eps, float weight_decay)
        : factor(clip[1]), keep(fmaf(-hyper[0], weight_decay, 1.0f)), step_size(hyper[0] / hyper[1]),
          root_correction(1.0f / sqrtf(hyper[2])), beta1_complement(beta1_complement), beta2(beta2),
          beta2_complement(beta2_complement), eps(eps) {}

    static constexpr int STATES = 2;
    static constexpr bool MOVES = true;

    __device__ __forceinline__ void apply(float& parameter, float& gradient, float& first, float& second) const {
        // Rounded by name: a compiler that fused it here and not there would make kernels differ.
        const float grad = __fmul_rn(gradient, factor);
        gradient = grad;
        first = fmaf(grad - first, beta1_complement, first);
        second = fmaf(second, beta2, beta2_complement * grad * grad);
        const float denominator = fmaf(root(second), root_correction, eps);
        parameter = fmaf(-step_size, __fdividef(first, denominator), parameter * keep);
    }
};

#define NUMBERS_adamw                                                                                                  \
    const float *hyper, const float *clip, float beta1_complement, float beta2, float beta2_complement, float eps,     \
        float weight_decay
#define RULE_adamw AdamW(hyper, clip, beta1_complement, beta2, beta2_complement, eps, weight_decay)

UPDATE_TYPES(adamw)
