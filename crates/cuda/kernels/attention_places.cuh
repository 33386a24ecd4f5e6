// Which rows a block works on: tiles of all sequences of the flat batch, those with the most work first.
#pragma once

#include "plimsoll.cuh"

#define MINUS_INFINITY __int_as_float(0xff800000)

struct Segment {
    int start, length;
};

struct Place {
    int start, length;  // the sequence
    int sequence;       // its number
    int tile;           // the tile's number in it
    bool found;         // false: there are fewer tiles than blocks
    bool outside;       // these rows belong to no sequence
};

// The sequences, then the rows behind the last and the rows before the first.
__device__ __forceinline__ Segment segment(const int* bounds, int sequences, int tokens, int index) {
    int start = 0, end = 0;
    if (index <= sequences + 1) {
        start = index <= sequences ? bounds[index] : 0;
        end = index < sequences ? bounds[index + 1] : index == sequences ? tokens : bounds[0];
    }
    start = max(start, 0);
    return {start, max(min(end, tokens) - start, 0)};
}

// The segments, a lane for each 32nd, as the tiles they have.
struct Tiles {
    const int* bounds;
    int sequences, tokens, rows;
    int first;  // of the first 32 segments, which are mostly all

    __device__ __forceinline__ Tiles(const int* bounds, int sequences, int tokens, int rows)
        : bounds(bounds), sequences(sequences), tokens(tokens), rows(rows) {
        first = count(segment_of(0).length);
    }

    __device__ __forceinline__ int count(int length) const { return (length + rows - 1) / rows; }

    __device__ __forceinline__ Segment segment_of(int chunk) const {
        return segment(bounds, sequences, tokens, chunk + (int)(threadIdx.x % WARP));
    }

    __device__ __forceinline__ int most() const {
        int most = first;
#pragma unroll 1
        for (int chunk = WARP; chunk < sequences + 2; chunk += WARP) most = max(most, count(segment_of(chunk).length));
        return __reduce_max_sync(FULL_MASK, most);
    }

    // Tiles whose number is `level` or higher, over all segments.
    __device__ __forceinline__ int from(int level) const {
        int sum = max(first - level, 0);
#pragma unroll 1
        for (int chunk = WARP; chunk < sequences + 2; chunk += WARP) {
            sum += max(count(segment_of(chunk).length) - level, 0);
        }
        return __reduce_add_sync(FULL_MASK, sum);
    }
};

// The `index`th tile in descending order of its number. All lanes of a warp must call.
// `from_end`: tiles are numbered from the end of their sequence.
__device__ __forceinline__ Place locate(const Tiles& tiles, int index, bool from_end) {
    const int sequences = tiles.sequences;
    Place place = {0, 0, 0, 0, false, false};
    if (index >= tiles.from(0)) return place;
    int level = 0, above = tiles.most();  // more than `index` tiles from `level` on, not from `above`
#pragma unroll 1
    while (above - level > 1) {
        const int middle = (level + above) / 2;
        if (index < tiles.from(middle)) level = middle;
        else above = middle;
    }
    int rank = index - tiles.from(above);
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int chunk = 0; chunk < sequences + 2; chunk += WARP) {
        const Segment s = tiles.segment_of(chunk);
        const bool long_enough = tiles.count(s.length) > level;
        const u32 candidates = __ballot_sync(FULL_MASK, long_enough);
        const int before = __popc(candidates & ((1u << lane) - 1));
        const u32 chosen = __ballot_sync(FULL_MASK, long_enough && before == rank);
        if (chosen != 0) {
            // What comes from lane zero is known to be the same in all lanes.
            const int owner = __ffs(chosen) - 1;
            place.start = __shfl_sync(FULL_MASK, __shfl_sync(FULL_MASK, s.start, owner), 0);
            place.length = __shfl_sync(FULL_MASK, __shfl_sync(FULL_MASK, s.length, owner), 0);
            level = __shfl_sync(FULL_MASK, level, 0);
            place.sequence = chunk + owner;
            place.tile = from_end ? tiles.count(place.length) - 1 - level : level;
            place.outside = chunk + owner >= sequences;
            place.found = true;
            return place;
        }
        rank -= __popc(candidates);
    }
    return place;
}

__device__ __forceinline__ Place locate(const int* bounds, int sequences, int tokens, int rows, int index,
                                        bool from_end) {
    return locate(Tiles(bounds, sequences, tokens, rows), index, from_end);
}

// Whether a query sees a key: not one after it, and none that has left the window.
__device__ __forceinline__ bool sees(int query, int key, int window) { return key <= query && query - key < window; }

// Whether all queries of a range see all keys of another.
__device__ __forceinline__ bool all_seen(int first_query, int queries, int first_key, int keys, int window) {
    return first_key + keys - 1 <= first_query && first_query + queries - 1 - first_key < window;
}

// Whether any query of a range sees any key of another.
__device__ __forceinline__ bool any_seen(int first_query, int queries, int first_key, int keys, int window) {
    return first_key <= first_query + queries - 1 && first_query - (first_key + keys - 1) < window;
}
