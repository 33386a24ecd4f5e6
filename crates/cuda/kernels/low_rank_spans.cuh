// The layers whose adapters lie side by side in one matrix: which columns of the wide matrix are whose.
#pragma once

#include "low_rank_parts.cuh"

// Columns `start ..` of the wide matrix; rows `row ..` of the second matrices and columns `low_rank ..` of the
// low-rank rows are their adapter's. Their blocks of columns are those up to `blocks_end`, behind the span before.
// The words are those of `Span` in src/low_rank.rs.
struct Span {
    u64 start, len, row, low_rank, blocks_end;
};

// Columns that no adapter writes to.
#define NO_ADAPTER 0xffffffffu

#define SPANS_MAX 8
struct Spans {
    Span spans[SPANS_MAX];

    // The span of a block, and which of its blocks it is.
    __device__ __forceinline__ Span of_block(u32 block, u32& inside) const {
        Span found = {};
        u32 begin = 0;
#pragma unroll
        for (int i = 0; i < SPANS_MAX; i++) {
            const u32 end = u32(spans[i].blocks_end);
            if (block >= begin && block < end) {
                found = spans[i];
                inside = block - begin;
            }
            begin = max(begin, end);
        }
        return found;
    }
};
