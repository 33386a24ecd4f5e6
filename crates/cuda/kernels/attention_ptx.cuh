// The instructions that attention is made of beside those of all that multiply, each as a function: its copies into shared
// memory, and products on Hopper.
#pragma once

#include "tensor_cores.cuh"

// Hopper's products on warpgroups exist only in code built for exactly that chip, and here for whole panels.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(ATTENTION_WITHOUT_WGMMA) && HEAD_DIM % 64 == 0
#define ATTENTION_WGMMA 1
#else
#define ATTENTION_WGMMA 0
#endif

// Sixteen bytes from device to shared memory; zeros if not `valid`, and `from` is not read.
__device__ __forceinline__ void copy16(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

__device__ __forceinline__ void copy4(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void store_shared(u32 to, u32 word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

__device__ __forceinline__ void store_shared(u32 to, float number) { store_shared(to, __float_as_uint(number)); }

__device__ __forceinline__ float load_shared(u32 from) {
    float number;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(number) : "r"(from) : "memory");
    return number;
}

__device__ __forceinline__ float2 load_shared_pair(u32 from) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(from) : "memory");
    return pair;
}

__device__ __forceinline__ uint4 load_shared16(u32 from) {
    uint4 piece;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                 : "r"(from)
                 : "memory");
    return piece;
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two numbers in one register, the first in its low half.
template <typename T> __device__ __forceinline__ u32 pack2(float low, float high);
template <> __device__ __forceinline__ u32 pack2<bf16>(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
template <> __device__ __forceinline__ u32 pack2<f16>(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

template <typename T> __device__ __forceinline__ float2 unpack2(u32 packed);
template <> __device__ __forceinline__ float2 unpack2<bf16>(u32 packed) {
    return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 unpack2<f16>(u32 packed) {
    float2 pair;
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(pair.x), "=f"(pair.y)
        : "r"(packed));
    return pair;
}

#if ATTENTION_WGMMA

// A matrix in shared memory as the warpgroup products see it: rows of 128 bytes whose sixteen-byte pieces
// are swapped by `piece ^= row % 8`, eight rows to a group, `panel_bytes` from one 64-column panel to the next.
__device__ __forceinline__ u64 describe(u32 at, u32 panel_bytes) {
    const u64 swizzle_128_bytes = 1ull << 62, row_group = 1024 >> 4;
    return swizzle_128_bytes | row_group << 32 | (u64)(panel_bytes >> 4) << 16 | (at & 0x3ffff) >> 4;
}

// Makes copies and stores to shared memory visible to the products; to be followed by a barrier.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// What was computed so far stays before this point, what follows behind it: the compiler would move
// reads of accumulators before the wait for them, and work that should run meanwhile behind it.
template <int TILES> __device__ __forceinline__ void pin(float (&acc)[TILES][4]) {
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        asm volatile("" : "+f"(acc[i][0]), "+f"(acc[i][1]), "+f"(acc[i][2]), "+f"(acc[i][3])::"memory");
    }
}

// The assembler pulls a wait for products up, before work that should run meanwhile; a store that needs
// the work's result holds the wait back. `never` must be false, and not known to be so by the compiler.
__device__ __forceinline__ void finish_first(float result, bool never, u32 at) {
    if (never) store_shared(at, result);
}

// A number that depends on all.
template <int TILES> __device__ __forceinline__ float any_bits(const float (&acc)[TILES][4]) {
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        bits |= __float_as_uint(acc[i][0]) | __float_as_uint(acc[i][1]);
        bits |= __float_as_uint(acc[i][2]) | __float_as_uint(acc[i][3]);
    }
    return __uint_as_float(bits);
}

template <int LEFT> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define ACC4(C, I) "+f"(C[I][0]), "+f"(C[I][1]), "+f"(C[I][2]), "+f"(C[I][3])
#define ACC32(C, I) ACC4(C, I), ACC4(C, I + 1), ACC4(C, I + 2), ACC4(C, I + 3), ACC4(C, I + 4), ACC4(C, I + 5), \
        ACC4(C, I + 6), ACC4(C, I + 7)
#define NAMES32                                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES64                                                                                                  \
    NAMES32                                                                                                      \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "    \
    "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

template <typename T> struct Warpgroup;

// `shared`: acc[64 × n] (+)= a·bᵀ, both with the summed index along their rows, from shared memory.
// `registers`: acc[64 × n] += a·b with `a` in registers and the summed index down b's rows.
#define ATTENTION_WGMMA_TYPE(TYPE, NAME)                                                                           \
    template <> struct Warpgroup<TYPE> {                                                                           \
        static __device__ __forceinline__ void shared(float (&c)[8][4], u64 a, u64 b, int add) {                   \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; "                                                  \
                         "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" NAMES32 "}, %32, %33, "  \
                         "p, 1, 1, 0, 0;}"                                                                         \
                         : ACC32(c, 0)                                                                             \
                         : "l"(a), "l"(b), "r"(add));                                                              \
        }                                                                                                          \
        static __device__ __forceinline__ void shared(float (&c)[16][4], u64 a, u64 b, int add) {                  \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; "                                                  \
                         "wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" NAMES64 "}, %64, %65, " \
                         "p, 1, 1, 0, 0;}"                                                                         \
                         : ACC32(c, 0), ACC32(c, 8)                                                                \
                         : "l"(a), "l"(b), "r"(add));                                                              \
        }                                                                                                          \
        static __device__ __forceinline__ void registers(float (&c)[8][4], const u32 (&a)[4], u64 b) {             \
            asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" NAMES32 "}, "            \
                         "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                                  \
                         : ACC32(c, 0)                                                                             \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                    \
        }                                                                                                          \
        static __device__ __forceinline__ void registers(float (&c)[16][4], const u32 (&a)[4], u64 b) {            \
            asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" NAMES64 "}, "           \
                         "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                                  \
                         : ACC32(c, 0), ACC32(c, 8)                                                                \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                    \
        }                                                                                                          \
    };
ATTENTION_WGMMA_TYPE(bf16, "bf16")
ATTENTION_WGMMA_TYPE(f16, "f16")

#else

__device__ __forceinline__ void publish() {}
__device__ __forceinline__ void products_begin() {}
__device__ __forceinline__ void products_commit() {}
template <int LEFT> __device__ __forceinline__ void products_wait() {}
template <int TILES> __device__ __forceinline__ void pin(float (&acc)[TILES][4]) {}

#endif
