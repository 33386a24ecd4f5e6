"""Trains the small examples one after another and checks what each has learnt: check.py PLIMSOLL [NAME ...]

What an evaluation must show in the end, the one before the first update must not: a check that anything passes says nothing.
"""

import collections
import json
import math
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def unigram_bits_per_byte():
    """Of a model that knows how often each byte comes and nothing else, an end of text counted as the model's is."""
    rows = lambda name: [json.loads(line)["text"].encode() for line in (HERE / "data" / name).read_text().splitlines()]
    counts = collections.Counter(byte for text in rows("text-train.jsonl") for byte in [*text, None])
    total, held_out = sum(counts.values()), rows("text-eval.jsonl")
    bits = sum(-math.log2(counts[byte] / total) for text in held_out for byte in text)
    return bits / sum(map(len, held_out))


# A unigram model knows letters and no order. At a loss of 0.05 per token, nearly every letter is known; with a BLEU above 60, most
# runs of four words are there.
CHECKS = {
    "r0-nanochat": lambda result: result["eval"]["bits_per_byte"] < unigram_bits_per_byte() / 2,
    "r1-t5-chat": lambda result: result["eval"]["bleu"] > 60,
    "r2-t5-low-host": lambda result: result["eval"]["loss"] < 0.05
    and result["host"]["used_bytes"] <= result["host"]["planned_bytes"],
    "r3-ranking": lambda result: result["eval"]["ndcg"] > 0.95,
    "r4-reward": lambda result: result["eval"]["accuracy"] > 0.95,
    "dpo": lambda result: result["eval"]["accuracy"] > 0.95,
}


def evaluations(run):
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line["eval"] for line in lines if "eval" in line]


def main(program, names):
    subprocess.run(["sh", HERE / "make_data.sh"], check=True)
    failed = []
    for name in names or CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            command = [program, "train", HERE / f"{name}.yaml", "--device", "cpu", "--out", f"{folder}/run"]
            done = subprocess.run([*command, "--json", "--quiet"], capture_output=True, text=True, check=False)
            found = evaluations(pathlib.Path(folder) / "run") if done.returncode == 0 else []
        if not found:
            print(f"{name}: {done.stderr}", flush=True)
            failed.append(name)
            continue
        host = json.loads(done.stdout)["host"]
        before, after = ({"eval": evaluation, "host": host} for evaluation in (found[0], found[-1]))
        learnt, known = CHECKS[name](after), CHECKS[name](before)
        verdict = "PASSES UNTRAINED" if known else "learnt" if learnt else "NOT LEARNT"
        shown = {key: value for key, value in after["eval"].items() if key not in ("tokens", "sequences", "ms")}
        print(f"{name}: {verdict}: {shown}", flush=True)
        failed += [] if learnt and not known else [name]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
