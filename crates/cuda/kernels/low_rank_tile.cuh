// Sixteen rows of a wide matrix in shared memory, some columns to each warp, as kernels have them that walk down the rows.
#pragma once

#include "low_rank_parts.cuh"

template <int COLS> struct WideTile {
    static constexpr int PIECES = COLS / 8;
    static constexpr int BYTES = 32 * COLS;
    u32 at;

    // Where a row's piece of eight columns lies: eight rows' pieces are in different banks.
    __device__ __forceinline__ u32 place(u32 row, u32 piece) const {
        const u32 turn = PIECES >= 8 ? row % 8 : row / 2 % 4;
        return at + (row * PIECES + (piece ^ turn)) * 16;
    }

    // The lane's own pieces are those it copies.
    static constexpr int OWN = PIECES / 2;
    __device__ __forceinline__ static u32 own_row(int i) { return (i * WARP + threadIdx.x % WARP) / PIECES; }
    __device__ __forceinline__ static u32 own_piece(int i) { return (i * WARP + threadIdx.x % WARP) % PIECES; }

    __device__ __forceinline__ u32 own(int i) const { return place(own_row(i), own_piece(i)); }

    // Starts copying; rows from `rows` and columns from `cols` on become zeros.
    template <typename T> __device__ __forceinline__ void fetch(const T* from, u64 stride, u32 rows, u32 cols) const {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const u32 row = own_row(i), piece = own_piece(i);
            copy16(place(row, piece), from + row * stride + 8 * piece, row < rows && 8 * piece < cols);
        }
    }

    // Sixteen columns as a factor of a product, for `load_matrices` and `load_matrices_transposed`.
    __device__ __forceinline__ u32 step(int s) const {
        const u32 lane = threadIdx.x % WARP;
        return place(lane % 16, 2 * s + lane / 16);
    }
};

// Sixteen low-rank rows, of which all warps of a block read the same; RT: sixteens in the rank.
template <int RT> struct LowRankTile {
    static constexpr int ROW_BYTES = padded_row_bytes(2 * RT);
    static constexpr int BYTES = 16 * ROW_BYTES;
    u32 at;

    // Starts copying, with the block's first threads.
    template <typename T> __device__ __forceinline__ void fetch(const T* from, u64 stride, u32 rows, u32 rank) const {
        const u32 row = threadIdx.x / (2 * RT), piece = threadIdx.x % (2 * RT);
        if (row < 16) copy_piece(at + row * ROW_BYTES + piece * 16, from + row * stride, piece, rank, row < rows);
    }

    // Its transpose as the left factor of a product.
    __device__ __forceinline__ void load_transposed(u32 (&a)[RT][4]) const {
        const u32 lane = threadIdx.x % WARP, row = lane / 16 * 8 + lane % 8;
#pragma unroll
        for (int m = 0; m < RT; m++) load_matrices_transposed(a[m], at + row * ROW_BYTES + (2 * m + lane / 8 % 2) * 16);
    }
};
