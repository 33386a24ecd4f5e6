"""What a base in few bits costs in quality: `python3 benches/base_formats.py PLIMSOLL [--device cuda:0] [--width 256] [--updates 1200]`.

Trains a small model on the built-in dataset, evaluates it with its weights in every format (before any adapter is trained),
then trains adapters beside each format on sums of three numbers, which the model has not seen, and prints the evaluation losses
along the way. Everything is seeded; the figures are those of docs/measurements.md.
"""

import argparse
import json
import math
import random
import subprocess
import tempfile
from pathlib import Path

# Beside what a device computes in.
FORMATS = ["int8", "fp8", "nf4"]
ITEMS = ["crates", "barrels", "tons"]


def rows(seed, count):
    """Three numbers, added up along the way. A triple is either for training or held out."""
    draw = random.Random(seed)
    out = []
    while len(out) < count:
        a, b, c = (draw.randint(10, 99) for _ in range(3))
        if (a * 8101 + b * 89 + c) % 10 != seed % 2:
            continue
        item = draw.choice(ITEMS)
        out.append({"prompt": f"{a} {item}, {b} more, then {c}?", "response": f"{a}+{b}={a + b}+{c}={a + b + c}"})
    return out


def run(program, *args):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, args))}\n{done.stderr}")
    return done.stdout


def main():
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("program")
    parse.add_argument("--device", default="cpu")
    parse.add_argument("--width", type=int, default=256)
    parse.add_argument("--base-updates", type=int, default=2000)
    parse.add_argument("--updates", type=int, default=1200)
    parse.add_argument("--every", type=int, default=200)
    args = parse.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="base-formats-"))
    base = folder / "base"
    shape = {"hidden_size": args.width, "intermediate_size": 3 * args.width, "num_attention_heads": args.width // 32,
             "num_key_value_heads": args.width // 32}
    sets = [part for key, value in shape.items() for part in ("--set", f"model.{key}={value}")]
    run(args.program, "train", "--device", args.device, "--out", base, "--host", "4GiB", "--set", "eval.samples=1",
        "--steps", args.base_updates, *sets, "--json", "--quiet")
    for name, seed, count in [("train", 1, 20000), ("held", 0, 500)]:
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(seed, count)))
    print(f"{args.device}, width {args.width}, {args.base_updates} updates of the base, {args.updates} of adapters")
    for form in ["fp32" if args.device == "cpu" else "bf16", *FORMATS]:
        before = json.loads(run(args.program, "eval", base, "--device", args.device, "--base", form, "--json"))
        (folder / f"{form}.yaml").write_text(f"""
model: {base}/final
method: {{lora: {{r: 16, alpha: 32, targets: all-linear}}}}
base: {form}
data: {{train: {folder}/train.jsonl, eval: {folder}/held.jsonl, max_length: 64}}
batch: {{sequences: 32}}
optimizer: {{lr: 1e-3, weight_decay: 0.0}}
schedule: {{name: cosine, warmup: 0.05, steps: {args.updates}}}
eval: {{every: {args.every}}}
plan: {{micro_batch_tokens: 2048, loss_chunks: 1}}
""")
        out = folder / f"run-{form}"
        run(args.program, "train", folder / f"{form}.yaml", "--device", args.device, "--host", "4GiB", "--out", out, "--json", "--quiet")
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses = [(line["step"], line["eval"]["loss"]) for line in lines if "eval" in line]
        text = "  ".join(f"{step}: {loss:.4f}" for step, loss in losses)
        print(f"{form:>5}  perplexity before {math.exp(before['loss']):.5f}  {text}", flush=True)


main()
