"""A long run of a small model, whose memory and speed must stay as they are: long_run.py PLIMSOLL [--updates 10000] [--set KEY=VALUE]

Updates with evaluations, samples and checkpoints in between, on the CPU. Behind two tenths of the run, resident memory may grow by less
than 1 MiB, and of each tenth the faster quarter of updates must be as fast as that of the second, within 15 %. The
whole run stays within its plan. Exits with 1 where it does not.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

RUN = """
model: {family: llama, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 64, vocab_size: 260, init: random}
task: sft
data: {train: rows.jsonl, eval_split: 0.05, max_length: 32, tokenizer: tokenizer}
batch: {sequences: 4}
optimizer: {name: adamw, lr: 1e-3}
"""
GROWTH_MAX, SLOWER_MAX = 1 << 20, 1.15


def tenths(steps, value):
    size = len(steps) // 10
    return [value(steps[at * size:(at + 1) * size]) for at in range(10)]


def quick(steps):
    return sorted(step["step_ms"] for step in steps)[len(steps) // 4]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("plimsoll", type=pathlib.Path)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    here = pathlib.Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run([sys.executable, here / "../examples/small/make_tokenizer.py", folder / "tokenizer"], check=True)
        row = lambda i: {"prompt": f"{i} and {i % 7}?", "response": str(i + i % 7)}
        (folder / "rows.jsonl").write_text("".join(json.dumps(row(i)) + "\n" for i in range(2000)))
        (folder / "run.yaml").write_text(RUN)
        every = args.updates // 20
        settings = [f"eval.every={every}", f"save.every={every}", "eval.samples=4", *args.set]
        command = [args.plimsoll.resolve(), "train", "run.yaml", "--out", "out", "--device", "cpu", "--json", "--quiet"]
        command += ["--steps", str(args.updates), *(part for setting in settings for part in ["--set", setting])]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        host = json.loads(done.stdout)["host"]
        lines = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == args.updates
    resident, speed = tenths(steps, lambda part: max(step["host_rss_bytes"] for step in part)), tenths(steps, quick)
    growth, slower = max(resident[2:]) - resident[1], max(speed[2:]) / speed[1]
    print("tenth  resident KiB  quick update ms")
    for at, (held, took) in enumerate(zip(resident, speed)):
        print(f"{at + 1:>5} {held / 1024:>13.0f} {took:>16.3f}")
    print(f"growth behind the second tenth {growth / 1024:.0f} KiB, slowest tenth {slower:.3f} of its time")
    print(f"peak {host['used_bytes'] / 2**20:.1f} of {host['planned_bytes'] / 2**20:.1f} MiB planned")
    bad = growth >= GROWTH_MAX or slower > SLOWER_MAX or host["used_bytes"] > host["planned_bytes"]
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
