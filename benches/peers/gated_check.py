#!/usr/bin/env python3
"""Checks the CUDA kernels of the gated activation with adapters against float64 and times them beside those without.

    python3 benches/peers/gated_check.py                        # check, then time
    python3 benches/peers/gated_check.py --time-only

Needs a GPU, PyTorch, and NVRTC with CUDA's headers; the kernels are compiled as the program compiles them.
"""

import argparse
import sys

import torch
import torch.nn.functional as F

from attention_check import NAMES, Kernels, distance, milliseconds

WARPS, COLS = 4, 32
# Of dropout: where it is, and what of 65,536 it drops.
SITE, THRESHOLD = 7, 6554
# ‖result − float64‖ / ‖float64‖ that one rounding to the type explains.
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 5e-4}
SHARES = {None: "no share", False: "a share", True: "a share with dropout"}
CURVES = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
}


class Gated:
    """One shape, with the tensors of both kernels. `sides` are the halves that have an adapter."""

    def __init__(self, kernels, rows, cols, rank, sides=(0, 1), dtype=torch.bfloat16, curve="silu", share=None):
        make = lambda *shape: torch.randn(*shape, device="cuda").to(dtype)
        self.kernels, self.rows, self.cols, self.rank, self.dtype = kernels, rows, cols, rank, dtype
        self.sides, self.curve, self.alpha, self.block_rows = sides, curve, 0.75, 128
        self.gate_up, self.dy = make(rows, 2 * cols), make(rows, cols)
        self.low_rank, self.b = make(rows, len(sides) * rank), make(len(sides) * cols, rank) / rank**0.5
        # What `down`'s adapter gives to the gradient: none, without dropout, or with it.
        self.share, self.dh, self.a = share, make(rows, rank), make(rank, cols) / rank**0.5
        self.row_ids = torch.randperm(rows, device="cuda").int()
        self.key = torch.tensor([3, 1, 4, 1], device="cuda").int()
        self.share_alpha = 0.5 * (65536 / (65536 - THRESHOLD) if share else 1.0)
        self.out, self.d_gate_up = torch.empty_like(self.dy), torch.empty_like(self.gate_up)

    def launch(self, gradient, out):
        none = torch.empty(0, device="cuda", dtype=self.dtype)
        matrices, narrows = [none, none], [none, none]
        for index, side in enumerate(self.sides):
            matrices[side] = self.b[index * self.cols :]
            narrows[side] = self.low_rank[:, index * self.rank :]
        room = next(room for room in (16, 32, 64) if self.rank <= room)
        name = f"{'gated_grad' if gradient else 'gated'}_{self.curve}_{NAMES[self.dtype]}_{room}"
        wide, stages = (3 if gradient else 2), (2 if gradient and room == 64 else 3)
        shared_bytes = WARPS * stages * (wide * (1024 + room // 16 * 512) + (128 if gradient else 0))
        grid = (-(-self.cols // (WARPS * COLS)), -(-self.rows // self.block_rows))
        args = [self.gate_up, *([self.dy] if gradient else []), *matrices, *narrows, out]
        args += [self.low_rank.shape[1], self.rows, self.cols, self.rank, self.block_rows, self.alpha]
        if gradient and self.share is None:
            args += [none, none, 0.0, none, none, 0, 0]
        elif gradient:
            args += [self.dh, self.a, self.share_alpha, *((self.row_ids, self.key) if self.share else (none, none))]
            args += [SITE, THRESHOLD if self.share else 0]
        self.kernels.launch(f"gated_adapters_{NAMES[self.dtype]}", name, grid, 32 * WARPS, shared_bytes, args)

    def forward(self):
        self.launch(False, self.out)

    def backward(self):
        self.launch(True, self.d_gate_up)

    def backward_in_place(self):
        self.launch(True, self.gate_up)

    def without_adapters(self, gradient):
        grid = (-(-self.rows * (self.cols // 8) // 256), 1)
        name = f"{'gated_grad' if gradient else 'gated'}_{self.curve}_{NAMES[self.dtype]}"
        tensors = [self.gate_up, self.dy, self.d_gate_up] if gradient else [self.gate_up, self.out]
        self.kernels.launch("activation", name, grid, 256, 0, [*tensors, self.rows, self.cols])

    def mask(self):
        """What dropout keeps, as the program's own kernel draws it."""
        out = torch.empty(self.rows, self.cols, device="cuda")
        ones, grid = torch.ones_like(out), (-(-self.rows * (-(-self.cols // 4)) // 256), 1)
        args = [ones, self.row_ids, self.key, out, self.rows, self.cols, SITE, THRESHOLD, 1.0]
        self.kernels.launch("elementwise", "dropout_f32", grid, 256, 0, args)
        return out.double()

    def reference(self):
        """The result and the gradient in float64."""
        dy = self.dy.double()
        if self.share is not None:
            dy = dy + self.share_alpha * (self.dh.double() @ self.a.double()) * (self.mask() if self.share else 1.0)
        gate_up = self.gate_up.double()
        for index, side in enumerate(self.sides):
            low_rank = self.low_rank[:, index * self.rank : (index + 1) * self.rank].double()
            b = self.b[index * self.cols : (index + 1) * self.cols].double()
            gate_up[:, side * self.cols : (side + 1) * self.cols] += self.alpha * low_rank @ b.T
        gate_up.requires_grad_()
        gate, up = gate_up.split(self.cols, dim=1)
        out = CURVES[self.curve](gate) * up
        (d_gate_up,) = torch.autograd.grad((out * dy).sum(), gate_up)
        return out.detach(), d_gate_up


def check(kernels, name, **shape):
    case = Gated(kernels, **shape)
    out, d_gate_up = case.reference()
    case.forward()
    case.backward()
    first = [case.out.clone(), case.d_gate_up.clone()]
    errors = {"out": distance(case.out, out), "d_gate_up": distance(case.d_gate_up, d_gate_up)}
    case.out.fill_(float("nan"))
    case.block_rows = 32
    case.forward()
    case.backward_in_place()
    same = torch.equal(first[0], case.out) and torch.equal(first[1], case.gate_up)
    good = same and all(error <= TOLERANCE[case.dtype] for error in errors.values())
    text = " ".join(f"{part} {error:.1e}" for part, error in errors.items())
    print(f"{'ok  ' if good else 'FAIL'} {name:72} {text}{'' if same else ' DIFFERENT BITS'}", flush=True)
    return good


def check_all(kernels):
    good = True
    for dtype in (torch.bfloat16, torch.float16):
        for curve in CURVES:
            for rows, cols, rank, sides in (
                (1, 8, 4, (0, 1)),
                (37, 40, 8, (0, 1)),
                (300, 136, 16, (0, 1)),
                (300, 136, 16, (0,)),
                (300, 136, 16, (1,)),
                (129, 264, 24, (0, 1)),
                (500, 1024, 32, (0, 1)),
                (131, 520, 64, (0, 1)),
                (131, 520, 40, (1,)),
                (131, 520, 16, ()),
            ):
                for share in (None, False, True):
                    name = f"{NAMES[dtype]} {curve} {rows} x {cols} rank {rank}, adapters of {sides}, {SHARES[share]}"
                    shape = dict(rows=rows, cols=cols, rank=rank, sides=sides, dtype=dtype, curve=curve, share=share)
                    good &= check(kernels, name, **shape)
    print("all good" if good else "SOMETHING IS WRONG", flush=True)
    return good


def time_all(kernels, rows=4096, cols=14336, sets=3):
    """Each call takes the next of several sets of tensors, so that none is in the cache."""
    print(f"{rows} x {cols}, bf16, both halves adapted; microseconds and TB/s of the wide matrices")
    for rank in (16, 8, 32, 64):
        cases = [Gated(kernels, rows, cols, rank) for _ in range(sets)]
        turn = [0]

        def timed(work):
            def next_set():
                turn[0] = (turn[0] + 1) % sets
                work(cases[turn[0]])

            return 1000 * milliseconds(next_set)

        wide = rows * cols * 2
        rate = lambda us, times: f"{us:7.1f} us {times * wide / us / 1e6:5.2f} TB/s"
        for block_rows in (64, 128, 256):
            for case in cases:
                case.block_rows = block_rows
            text = f"{f'rank {rank}, {block_rows} rows a block':28} forward {rate(timed(Gated.forward), 3)}"
            for share in (None, False, True):
                for case in cases:
                    case.share = share
                text += f"   gradient, {SHARES[share]} {rate(timed(Gated.backward), 5)}"
            print(text, flush=True)
        if rank == 16:
            forward = timed(lambda case: case.without_adapters(False))
            backward = timed(lambda case: case.without_adapters(True))
            print(f"{'without adapters':28} forward {rate(forward, 3)}   gradient {rate(backward, 5)}", flush=True)
        del cases


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-only", action="store_true")
    parser.add_argument("--check-only", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    kernels = Kernels([])
    good = args.time_only or check_all(kernels)
    if not args.check_only:
        time_all(kernels)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
