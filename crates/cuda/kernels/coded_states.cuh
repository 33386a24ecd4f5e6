// Optimizer states in codes of eight bits. Every block of 256 elements has a float32 scale; scales lie behind the codes, at
// a multiple of four. A warp has a block at a time, every lane eight elements of it.
#pragma once
#include "dynamic_tables.cuh"
#include "plimsoll.cuh"

struct Int8 {
    u8 code;
};

template <typename S> constexpr bool CODED = false;
template <> constexpr bool CODED<Int8> = true;

#define INT8_LANE 8
#define INT8_BLOCK (WARP * INT8_LANE)
// Threads of a block of an update, and such blocks on a multiprocessor: few blocks, as each has tables of 25 KiB. A kernel
// that goes from tensor to tensor needs more registers.
#define CODED_THREADS 512
#define CODED_BLOCKS 2
#define CODED_MANY_THREADS 256
#define CODED_MANY_BLOCKS 3

// From here on floats have all of their digits.
#define SMALLEST_WHOLE 1.1754944e-38f

// The tables, where lanes may look up what they like.
template <int STATES> struct DynamicTables {
    static constexpr bool BOTH = STATES > 1;
    float with_sign[256], without_sign[BOTH ? 256 : 1];
    u32 signed_words[2 * SIGNED_CELLS], unsigned_words[BOTH ? UNSIGNED_CELLS : 1];

    __device__ __forceinline__ void fill() {
        copy(with_sign, DYNAMIC_SIGNED, 256);
        copy(signed_words, SIGNED_WORDS, 2 * SIGNED_CELLS);
        if (BOTH) {
            copy(without_sign, DYNAMIC_UNSIGNED, 256);
            copy(unsigned_words, UNSIGNED_WORDS, UNSIGNED_CELLS);
        }
        __syncthreads();
    }

    template <typename T> static __device__ __forceinline__ void copy(T* to, const T* from, u32 count) {
#pragma unroll 4
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
    }
};

// The code of the nearest number, in the highest byte. The leading bits of a float choose a word of the table, and the
// float added to it carries into the code where it is beyond the middle between two numbers (`src/dynamic.rs`). So nothing
// is compared, and one look at shared memory is all it takes: this is most of what an update does.
template <bool SIGNED> __device__ __forceinline__ u32 nearest_code(const u32* words, float number) {
    constexpr u32 FIRST = SIGNED ? SIGNED_FIRST_BITS : UNSIGNED_FIRST_BITS, SHIFT = SIGNED ? SIGNED_SHIFT : UNSIGNED_SHIFT;
    // What is no number is zero.
    const u32 size = __float_as_uint(fmaxf(fabsf(number), __uint_as_float(FIRST)));
    const u32 cell = (size >> SHIFT) - (FIRST >> SHIFT);
    if (!SIGNED) return words[cell] + size;
    // Of negative numbers, the complement.
    const u32 negative = u32(i32(__float_as_uint(number)) >> 31);
    return (words[cell - negative * SIGNED_CELLS] + size) ^ negative;
}

// The highest bytes of four words.
__device__ __forceinline__ u32 highest_bytes(u32 a, u32 b, u32 c, u32 d) {
    return __byte_perm(__byte_perm(a, b, 0x73), __byte_perm(c, d, 0x73), 0x5410);
}

// A state of some elements.
struct CodedState {
    Int8* codes;
    float* scales;

    __device__ __forceinline__ CodedState(Int8* state, u64 len)
        : codes(state), scales(reinterpret_cast<float*>(state + (len + 3) / 4 * 4)) {}
};

// What a lane has of a block: its codes, in one access if all of them are there, and the block's scale.
struct CodedLane {
    uint2 codes;
    float scale;

    __device__ __forceinline__ CodedLane() {}

    __device__ __forceinline__ CodedLane(const CodedState& state, u64 block, u64 at, int count, bool wide)
        : codes{0, 0}, scale(state.scales[block / INT8_BLOCK]) {
        if (wide) {
            codes = *reinterpret_cast<const uint2*>(state.codes + at);
        } else {
#pragma unroll
            for (int i = 0; i < INT8_LANE; i++) half(i) |= i < count ? u32(state.codes[at + i].code) << i % 4 * 8 : 0;
        }
    }

    __device__ __forceinline__ u32& half(int i) { return i < 4 ? codes.x : codes.y; }

    __device__ __forceinline__ void decode(const float* numbers, float (&out)[INT8_LANE]) {
#pragma unroll
        for (int i = 0; i < INT8_LANE; i++) out[i] = numbers[half(i) >> i % 4 * 8 & 255u] * scale;
    }

    // By a whole warp. The largest of the block does not depend on the order it is looked for in; sizes are ordered as the
    // whole numbers that their bits are.
    template <bool SIGNED>
    __device__ __forceinline__ void encode(const u32* words, const float (&in)[INT8_LANE], int count) {
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < INT8_LANE; i++) largest = i < count ? fmaxf(largest, fabsf(in[i])) : largest;
        scale = __uint_as_float(__reduce_max_sync(FULL_MASK, __float_as_uint(largest)));
        float shares[INT8_LANE];
        if (scale >= SMALLEST_WHOLE) {
            const float inverse = __fdiv_rn(1.0f, scale);
#pragma unroll
            for (int i = 0; i < INT8_LANE; i++) shares[i] = i < count ? in[i] * inverse : 0.0f;
        } else {
            // So small that its inverse would be infinite.
            const float inverse = scale > 0.0f ? __fdiv_rn(1.0f, scale * 0x1p100f) : 0.0f;
#pragma unroll
            for (int i = 0; i < INT8_LANE; i++) shares[i] = i < count ? in[i] * 0x1p100f * inverse : 0.0f;
        }
        u32 found[INT8_LANE];
#pragma unroll
        for (int i = 0; i < INT8_LANE; i++) found[i] = nearest_code<SIGNED>(words, shares[i]);
        codes.x = highest_bytes(found[0], found[1], found[2], found[3]);
        codes.y = highest_bytes(found[4], found[5], found[6], found[7]);
    }

    __device__ __forceinline__ void store(const CodedState& state, u64 block, u64 at, int count, bool wide) {
        if (wide) {
            *reinterpret_cast<uint2*>(state.codes + at) = codes;
        } else {
#pragma unroll
            for (int i = 0; i < INT8_LANE; i++) {
                if (i < count) state.codes[at + i].code = u8(half(i) >> i % 4 * 8);
            }
        }
        if (threadIdx.x % WARP == 0) state.scales[block / INT8_BLOCK] = scale;
    }
};
