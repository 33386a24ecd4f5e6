// Weights in few bits: where codes and scales lie, and what is read of them at a time.
#pragma once

#include "codes.cuh"
#include "dynamic_tables.cuh"

// Elements that are read at a time: their codes are one load, and sixteen-bit results one store of sixteen bytes.
#define PACK 8
#define NF4_BLOCK 64
#define NESTED_SCALES 256

// Scales in float32; or codes of them, of which 256 at a time share a scale and an offset. Sums and products are rounded one
// by one, as on the host. What is loaded is kept apart from what is made of it: so no load waits for another.
struct PlainScales {
    using Loaded = float;
    static __device__ __forceinline__ Loaded load(const void* scales, const float2*, u64 block) {
        return static_cast<const float*>(scales)[block];
    }
    static __device__ __forceinline__ float scale(Loaded loaded) { return loaded; }
};

struct NestedScales {
    struct Loaded {
        float2 shared;
        u8 code;
    };
    static __device__ __forceinline__ Loaded load(const void* scales, const float2* nested, u64 block) {
        return {nested[block / NESTED_SCALES], static_cast<const u8*>(scales)[block]};
    }
    static __device__ __forceinline__ float scale(const Loaded& loaded) {
        return __fadd_rn(__fmul_rn(DYNAMIC_SIGNED[loaded.code], loaded.shared.x), loaded.shared.y);
    }
};

// Weights are read once and by one thread, so the first cache is left to what is read again. Loads stay where they are
// written: many can be under way before the first is used. Weights come by copies, behind which a kernel is placed in
// turn: nothing old lies in a cache that is not coherent.
__device__ __forceinline__ u32 read_once(const u32* from) {
    u32 x;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}

__device__ __forceinline__ uint2 read_once(const uint2* from) {
    uint2 x;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
    return x;
}

__device__ __forceinline__ uint4 read_once(const uint4* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

// Each format: eight codes as they are loaded, the number of one of them, two neighbours at a time of a word of codes, and
// which scale is an element's.
struct Nf4 {
    using Codes = u32;
    static constexpr int WORD_PAIRS = 4;
    static constexpr bool ROW_SCALES = false;
    static __device__ __forceinline__ u64 bytes(u64 elements) { return elements / 2; }
    static __device__ __forceinline__ Codes load(const u8* at) { return read_once(reinterpret_cast<const u32*>(at)); }
    // The first of two is the upper half of its byte.
    static __device__ __forceinline__ float number(Codes codes, int i, const float* numbers) {
        return numbers[codes >> (i / 2 * 8 + (i % 2 ? 0 : 4)) & 15u];
    }
    static __device__ __forceinline__ float one(const u8* codes, u64 at, const float* numbers) {
        return numbers[codes[at / 2] >> (at % 2 ? 0 : 4) & 15u];
    }
    // Lanes hold the numbers, in both halves of a warp: which half is asked does not matter, nor do bits above. All lanes
    // must call.
    static __device__ __forceinline__ float held() { return NF4_NUMBERS[threadIdx.x % NF4_CODES]; }
    static __device__ __forceinline__ float2 pair(u32 word, int i, float held) {
        return make_float2(__shfl_sync(FULL_MASK, held, word >> (i * 8 + 4)), __shfl_sync(FULL_MASK, held, word >> i * 8));
    }
    static __device__ __forceinline__ u64 block(u64 at, u32) { return at / NF4_BLOCK; }
};

struct Bytes {
    using Codes = uint2;
    static constexpr int WORD_PAIRS = 2;
    static constexpr bool ROW_SCALES = true;
    static __device__ __forceinline__ u64 bytes(u64 elements) { return elements; }
    static __device__ __forceinline__ Codes load(const u8* at) { return read_once(reinterpret_cast<const uint2*>(at)); }
    static __device__ __forceinline__ u32 code(Codes codes, int i) { return (i < 4 ? codes.x : codes.y) >> i % 4 * 8 & 255u; }
    static __device__ __forceinline__ float held() { return 0.0f; }
    static __device__ __forceinline__ u64 block(u64, u32 row) { return row; }
};

struct Int8 : Bytes {
    static __device__ __forceinline__ float number(Codes codes, int i, const float*) { return int8_number(code(codes, i)); }
    static __device__ __forceinline__ float one(const u8* codes, u64 at, const float*) { return int8_number(codes[at]); }
    static __device__ __forceinline__ float2 pair(u32 word, int i, float) {
        return make_float2(int8_number_of(word, 2 * i), int8_number_of(word, 2 * i + 1));
    }
};

struct E4m3 : Bytes {
    static __device__ __forceinline__ float number(Codes codes, int i, const float*) { return e4m3_number(code(codes, i)); }
    static __device__ __forceinline__ float one(const u8* codes, u64 at, const float*) { return e4m3_number(codes[at]); }
    static __device__ __forceinline__ float2 pair(u32 word, int i, float) { return e4m3_numbers(word >> i * 16); }
};

// All numbers of a pack.
template <typename F>
__device__ __forceinline__ void decode_pack(const typename F::Codes& codes, float held, float factor, float (&out)[PACK]) {
    constexpr int PAIRS = F::WORD_PAIRS;
#pragma unroll
    for (int i = 0; i < PACK / 2; i++) {
        const float2 pair = F::pair(reinterpret_cast<const u32*>(&codes)[i / PAIRS], i % PAIRS, held);
        out[2 * i] = __fmul_rn(pair.x, factor);
        out[2 * i + 1] = __fmul_rn(pair.y, factor);
    }
}

// The sixteen numbers lie in as many banks, so lanes never wait for each other.
__device__ __forceinline__ void fill(float (&numbers)[NF4_CODES]) {
    if (threadIdx.x < NF4_CODES) numbers[threadIdx.x] = NF4_NUMBERS[threadIdx.x];
    __syncthreads();
}
