// Lion: the sign of an interpolated momentum.
#include "optimizer.cuh"

// What all elements of a Lion update share. Its one state, the momentum, stands in for `m`.
struct Lion {
    float factor, lr, keep, beta1_complement, beta2_complement;

    __device__ __forceinline__ Lion(const float* hyper, const float* clip, float beta1_complement,
                                    float beta2_complement, float weight_decay)
        : factor(clip[1]), lr(hyper[0]), keep(fmaf(-hyper[0], weight_decay, 1.0f)), beta1_complement(beta1_complement),
          beta2_complement(beta2_complement) {}

    template <int N, bool WIDE, typename P, typename G, typename S>
    __device__ __forceinline__ void step(P* p, G* g, S* momentum, S*, float* master, u64 at, u64 len,
                                         const Draws& draws) const {
        constexpr bool wide = WIDE;
        const int count = wide ? N : int(len - at);
        float parameter[N], gradient[N], velocity[N];
        load_some(g + at, count, wide, gradient);
        load_some(momentum + at, count, wide, velocity);
        if (master != nullptr) load_some(master + at, count, wide, parameter);
        else load_some(p + at, count, wide, parameter);

        u32 draw[N], draw_velocity[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            // Rounded by name: a compiler that fused it here and not there would make kernels differ.
            const float grad = __fmul_rn(gradient[i], factor);
            gradient[i] = 0.0f;
            draw[i] = draws.draw(at + i, grad);
            draw_velocity[i] = draw[i] << 16;
            const float direction = fmaf(grad - velocity[i], beta1_complement, velocity[i]);
            const float sign = float(direction > 0.0f) - float(direction < 0.0f);
            parameter[i] = fmaf(-lr, sign, __fmul_rn(parameter[i], keep));
            velocity[i] = fmaf(grad - velocity[i], beta2_complement, velocity[i]);
        }
        store_parameter(p + at, master != nullptr ? master + at : nullptr, count, wide, parameter, draw);
        store_some(g + at, count, wide, gradient);
        store_stochastic(momentum + at, count, wide, velocity, draw_velocity);
    }
};

#define NUMBERS_lion                                                                                                   \
    const float *hyper, const float *clip, float beta1_complement, float beta2_complement, float weight_decay
#define RULE_lion Lion(hyper, clip, beta1_complement, beta2_complement, weight_decay)

UPDATE_TYPES(lion)
