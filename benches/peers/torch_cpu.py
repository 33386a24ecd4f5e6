"""One training step of PyTorch on the CPU in float32: the peer that Plimsoll is measured against.

    python benches/peers/torch_cpu.py --model S                # eager
    python benches/peers/torch_cpu.py --model M --compile
    python benches/peers/torch_cpu.py --gemm                   # float32 product rate

A step is forward, backward, clip at 1.0, AdamW and zero_grad of transformers' LlamaForCausalLM
with sdpa attention, untied embeddings and random weights. Each process runs one configuration and
prints one JSON object: the median over --steps after --warmup, the peak resident set (VmHWM) of
the whole process, and how many cores other processes kept busy meanwhile (repeat the run when that
is above 0.1). --optimizer picks AdamW's implementation. Needs torch and transformers; --compile
also a C++ compiler.
"""

import argparse
import json
import os
import statistics
import time

import torch

MODELS = {
    "S": {"layers": 6, "dim": 384, "heads": 6, "ffn": 1024, "vocab": 4096, "batch": 8},
    "M": {"layers": 8, "dim": 768, "heads": 12, "ffn": 2048, "vocab": 8192, "batch": 4},
}
LENGTH = 256
OPTIMIZERS = {
    "single": {"fused": False, "foreach": False},
    "foreach": {"fused": False, "foreach": True},
    "fused": {"fused": True},
}
# rows (tokens), inner, columns: the products of S and M
GEMM_SHAPES = [
    (2048, 384, 384), (2048, 384, 1024), (2048, 1024, 384), (2048, 384, 4096),
    (1024, 768, 768), (1024, 768, 2048), (1024, 2048, 768), (1024, 768, 8192),
]


def peak_rss_bytes():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def others_busy_s():
    """CPU time that the machine has spent on anything but this process."""
    with open("/proc/stat") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    idle, waiting = ticks[3:5]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK") - time.process_time()


def build(shape):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=shape["dim"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["heads"],
        intermediate_size=shape["ffn"],
        vocab_size=shape["vocab"],
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).train()


def bench_step(args):
    torch.manual_seed(0)
    shape = MODELS[args.model]
    model = build(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **OPTIMIZERS[args.optimizer])
    forward = torch.compile(model) if args.compile else model
    ids = torch.randint(0, shape["vocab"], (shape["batch"], LENGTH))

    def step():
        forward(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    started = time.perf_counter()
    for _ in range(args.warmup):
        step()
    warmup_s = time.perf_counter() - started
    times_ms = []
    others_before_s = others_busy_s()
    for _ in range(args.steps):
        started = time.perf_counter()
        step()
        times_ms.append(1e3 * (time.perf_counter() - started))

    others_cores = max(0.0, others_busy_s() - others_before_s) / (sum(times_ms) / 1e3)

    median = statistics.median(times_ms)
    return {
        "model": args.model,
        "mode": "compile" if args.compile else "eager",
        "optimizer": args.optimizer,
        "parameters": sum(p.numel() for p in model.parameters()),
        "ms_per_step": round(median, 1),
        "ms_min": round(min(times_ms), 1),
        "ms_max": round(max(times_ms), 1),
        "tokens_per_s": round(1e3 * shape["batch"] * LENGTH / median),
        "peak_rss_gb": round(peak_rss_bytes() / 1e9, 3),
        "warmup_s": round(warmup_s, 1),
        "others_cores": round(others_cores, 2),
    }


def bench_gemm(args):
    """x @ w.T as a linear layer computes it; the best of several rounds, in GFLOP/s."""
    rates = {}
    for rows, inner, columns in GEMM_SHAPES:
        x, w = torch.randn(rows, inner), torch.randn(columns, inner)
        flop = 2 * rows * inner * columns
        repeats = max(1, int(2e10 / flop))
        best_s = float("inf")
        for _ in range(args.steps):
            started = time.perf_counter()
            for _ in range(repeats):
                torch.nn.functional.linear(x, w)
            best_s = min(best_s, (time.perf_counter() - started) / repeats)
        rates[f"{rows}x{inner}x{columns}"] = round(flop / best_s / 1e9, 1)
    return {"gemm_gflop_per_s": rates}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", choices=MODELS, default="S")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="fused")
    parser.add_argument("--gemm", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = bench_gemm(args) if args.gemm else bench_step(args)
    print(json.dumps({"torch": torch.__version__, "threads": args.threads} | result))


if __name__ == "__main__":
    main()
