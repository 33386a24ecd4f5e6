#!/usr/bin/env python3
"""The library's bf16 products of a 7B model's layers: what arrives of a small addend, and rates of a card kept busy.

    python3 benches/peers/products.py

Rates are TFLOP/s with random operands at three places in turns: the whole product, added onto its result (`onto`), divided
by rows (`m2`) and by columns (`n2`, `n4`, `n7`), and the whole again. Needs a GPU and PyTorch.
"""

import time

import torch

ROWS = 4096
PLACES = 3


def arrived(rows, cols, depth):
    """Share of an addend, about a thousandth of the product's size, that is found in the result."""
    x = torch.randn(rows, depth, device="cuda").bfloat16()
    w = (torch.randn(cols, depth, device="cuda") * (1.28 / depth**0.5)).bfloat16()
    addend = (torch.randn(rows, cols, device="cuda") * 5e-4).bfloat16()
    without, result = torch.mm(x, w.t()), addend.clone()
    torch.addmm(result, x, w.t(), out=result)
    difference = (result.float() - without.float()).double()
    return ((difference * addend.double()).mean() / addend.double().square().mean()).item()


def teraflops(work, flops, seconds=0.8):
    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    while time.perf_counter() - began < 0.4 * seconds:
        for _ in range(4):
            work()
        torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = int(0.6 * seconds * 7e14 / flops) + 1
    begin.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return flops * times / begin.elapsed_time(end) / 1e9


def rates(name, cols, depth, input_gradient=False):
    ws = [(torch.randn(cols, depth, device="cuda") * 0.02).bfloat16().t() for _ in range(PLACES)]
    ws = [w.contiguous() for w in ws] if input_gradient else ws
    xs = [torch.randn(ROWS, depth, device="cuda").bfloat16() for _ in range(PLACES)]
    ys = [torch.zeros(ROWS, cols, device="cuda", dtype=torch.bfloat16) for _ in range(PLACES)]
    turn = 0

    def operands():
        nonlocal turn
        turn = (turn + 1) % PLACES
        return xs[turn], ws[turn], ys[turn]

    def whole():
        x, w, y = operands()
        torch.mm(x, w, out=y)

    def onto():
        x, w, y = operands()
        torch.addmm(y, x, w, out=y, beta=0.5)

    def by_rows(parts):
        x, w, y = operands()
        for x_part, y_part in zip(x.chunk(parts), y.chunk(parts)):
            torch.mm(x_part, w, out=y_part)

    def by_columns(parts):
        x, w, y = operands()
        for w_part, y_part in zip(w.chunk(parts, 1), y.chunk(parts, 1)):
            torch.mm(x, w_part, out=y_part)

    ways = {"whole": whole, "onto": onto, "m2": lambda: by_rows(2), "n2": lambda: by_columns(2)}
    if cols % 14336 == 0:
        ways |= {"n4": lambda: by_columns(4), "n7": lambda: by_columns(7)}
    ways["again"] = whole
    found = {way: teraflops(work, 2.0 * ROWS * cols * depth) for way, work in ways.items()}
    print(f"{name:22} {cols:5} x {depth:5}  " + "  ".join(f"{way} {rate:.0f}" for way, rate in found.items()), flush=True)


def main():
    torch.manual_seed(0)
    for shape in ((4096, 28672, 4096), (4096, 6144, 4096), (4096, 4096, 14336), (512, 1024, 512), (32, 48, 64)):
        print(f"{shape}: {arrived(*shape):.3f} of a small addend arrives", flush=True)
    rates("gate_up", 28672, 4096)
    rates("gate_up, input gradient", 4096, 28672, True)
    rates("down", 4096, 14336)
    rates("down, input gradient", 14336, 4096, True)
    rates("qkv", 6144, 4096)


if __name__ == "__main__":
    main()
