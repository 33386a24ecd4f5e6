// Parts of a weight in few bits, decoded into scratch: runs of its rows or of its columns, packed tightly. Of an element,
// `number(code)·scale` in float32 is rounded once.
#include "stored.cuh"

#define WARPS 4
// Packs of a lane, each in a row of its own: their loads are under way together, and so are those of other warps' stores.
#define TURNS 8
#define SEGMENT (WARP * PACK)

// Scales of a segment that begins where a block does.
template <typename F> constexpr int SCALES = F::ROW_SCALES ? 1 : SEGMENT / NF4_BLOCK;

// `total` elements in rows of `width`, `stride` apart in the weight, from its element `first` on, decoded to `to`.
struct Part {
    u64 total, stride, first;
    u32 width, first_row;

    __device__ __forceinline__ bool has(u32 row, u32 col) const { return col < width && u64(row) * width + col < total; }
};

// A segment of each of TURNS rows. Of their scales, each lane makes one. `WHOLE` says that all of it is there; what is not
// is read where something is.
template <bool WHOLE, typename F, typename S, typename T>
__device__ __forceinline__ void decode_rows(const u8* codes, const void* scales, const float2* nested, T* to,
                                            const Part& part, u32 row, u32 begin, float held) {
    const u32 lane = threadIdx.x % WARP, col = begin + lane * PACK;
    const u8* from = codes + F::bytes(part.first + row * part.stride + col);
    typename F::Codes read[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++, from += F::bytes(part.stride)) {
        read[turn] = F::load(WHOLE || part.has(row + turn, col) ? from : codes + F::bytes(part.first));
    }
    const u32 scale_row = row + lane / SCALES<F> % TURNS, scale_col = begin + lane % SCALES<F> * NF4_BLOCK;
    const bool there = WHOLE || part.has(scale_row, scale_col);
    const u64 scale_at = there ? part.first + scale_row * part.stride + scale_col : part.first;
    const auto loaded = S::load(scales, nested, F::block(scale_at, part.first_row + (there ? scale_row : 0)));
    const float scale = S::scale(loaded);
    T* at = to + u64(row) * part.width + col;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++, at += part.width) {
        const int lane_with = turn * SCALES<F> + (F::ROW_SCALES ? 0 : lane / (NF4_BLOCK / PACK));
        const float factor = __shfl_sync(FULL_MASK, scale, lane_with);
        float decoded[PACK];
        decode_pack<F>(read[turn], held, factor, decoded);
        if (WHOLE || part.has(row + turn, col)) store_some(at, PACK, true, decoded);
    }
}

// All whole packs; of scales for less than a row, whole blocks.
template <typename F, typename S, typename T>
__device__ __forceinline__ void decode(const u8* codes, const void* scales, const float2* nested, T* to, const Part& part) {
    const u32 begin = blockIdx.x * SEGMENT;
    const float held = F::held();
    for (u32 first = blockIdx.y * (WARPS * TURNS); part.has(first, begin); first += gridDim.y * (WARPS * TURNS)) {
        const u32 row = first + threadIdx.x / WARP * TURNS;
        if (part.has(row + TURNS - 1, begin + SEGMENT - 1)) {
            decode_rows<true, F, S>(codes, scales, nested, to, part, row, begin, held);
        } else if (part.has(row, begin)) {
            decode_rows<false, F, S>(codes, scales, nested, to, part, row, begin, held);
        }
    }
}

// The same of any sizes, an element for each thread; `block` elements share a scale.
template <typename F, typename T>
__device__ __forceinline__ void decode_any(const u8* codes, const void* scales, const float2* nested, T* to, u64 total,
                                           u32 width, u64 stride, u64 first, u64 block) {
    __shared__ float numbers[NF4_CODES];
    fill(numbers);
    const u64 index = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= total) return;
    const u64 at = first + index / width * stride + index % width;
    const float scale = nested == nullptr ? PlainScales::scale(PlainScales::load(scales, nested, at / block))
                                          : NestedScales::scale(NestedScales::load(scales, nested, at / block));
    to[index] = from_float<T>(__fmul_rn(F::one(codes, at, numbers), scale));
}

#define EXPORT_DECODE(name, F, S, suffix, T)                                                                           \
    PLIMSOLL_EXPORT __launch_bounds__(WARP* WARPS)                                                                     \
        decode_##name##_##suffix(const u8* codes, const void* scales, const float2* nested, T* to, u64 total,          \
                                 u32 width, u64 stride, u64 first, u32 first_row) {                                    \
        wait_for_previous_kernel();                                                                                    \
        decode<F, S>(codes, scales, nested, to, {total, stride, first, width, first_row});                               \
    }
#define EXPORT_ANY(name, F, suffix, T)                                                                                 \
    PLIMSOLL_EXPORT __launch_bounds__(WARP* WARPS)                                                                     \
        decode_any_##name##_##suffix(const u8* codes, const void* scales, const float2* nested, T* to, u64 total,      \
                                     u32 width, u64 stride, u64 first, u64 block) {                                    \
        wait_for_previous_kernel();                                                                                    \
        decode_any<F>(codes, scales, nested, to, total, width, stride, first, block);                                  \
    }
#define EXPORT_FORMATS(suffix, T)                                                                                      \
    EXPORT_DECODE(nf4, Nf4, PlainScales, suffix, T)                                                                    \
    EXPORT_DECODE(nf4_nested, Nf4, NestedScales, suffix, T)                                                            \
    EXPORT_DECODE(int8, Int8, PlainScales, suffix, T)                                                                  \
    EXPORT_DECODE(e4m3, E4m3, PlainScales, suffix, T)                                                                  \
    EXPORT_ANY(nf4, Nf4, suffix, T)                                                                                    \
    EXPORT_ANY(int8, Int8, suffix, T)                                                                                  \
    EXPORT_ANY(e4m3, E4m3, suffix, T)
PLIMSOLL_FOR_EACH_TYPE(EXPORT_FORMATS)
