// The instructions that products with a low-rank matrix are made of beside those of all that multiply, from sm_80 on.
#pragma once

#include "tensor_cores.cuh"

// Bytes from device to shared memory without waiting for them; zeros if not `valid`, wherever `from` points.
__device__ __forceinline__ void copy16(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy8(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0) : "memory");
}

__device__ __forceinline__ void copy4(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

__device__ __forceinline__ u32 load_shared4(u32 from) {
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

__device__ __forceinline__ uint2 load_shared8(u32 from) {
    uint2 words;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(from) : "memory");
    return words;
}

__device__ __forceinline__ void load_shared16(u32 (&words)[4], u32 from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void store_shared16(u32 to, const u32 (&words)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
}

// a[16 × 16]·b[16 × 8], on one warp: a product that begins.
#define LOW_RANK_MMA(TYPE, NAME)                                                                                       \
    template <> __device__ __forceinline__ void mma_first<TYPE>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {    \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                                    \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"                             \
                     : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));                       \
    }
template <typename T> __device__ __forceinline__ void mma_first(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
LOW_RANK_MMA(bf16, "bf16")
LOW_RANK_MMA(f16, "f16")

// Column `j` of two rows of eight 16-bit numbers, the first row's in the low half.
__device__ __forceinline__ u32 column_pair(const u32 (&first)[4], const u32 (&second)[4], int j) {
    return __byte_perm(first[j / 2], second[j / 2], j % 2 ? 0x7632 : 0x5410);
}
