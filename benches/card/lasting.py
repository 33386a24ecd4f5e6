"""Runs that last: killed again and again on the card, and many updates with memory that stays where it was."""

import json
import random
import signal
import statistics
import subprocess
import time
from pathlib import Path

import rows
from program import MIB, Bench, Stage, call, checked, end, start

COLUMNS = [["kills", "kills", "count"], ["updates", "updates", "count"], ["host grew MiB", "host_grew_mib", "fine"],
           ["card grew MiB", "card_grew_mib", "fine"], ["last / second tenth, updates/s", "speed_ratio", "ratio"]]
KILLS = 20
KILLED_UPDATES = 600
LONG_UPDATES = 20_000
# Behind this share of the updates everything has run, and memory may not grow by more than this.
SETTLED_SHARE = 0.1
HOST_GROWTH_MAX = 4 * MIB


def run_file(bench: Bench, name: str, size: int) -> Path:
    return bench.write(name, {
        "model": {"family": "llama", "hidden_size": size, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "intermediate_size": 2 * size, "vocab_size": rows.VOCABULARY, "init": "random"},
        "task": "sft", "data": {"max_length": 64, "overlong": "truncate"}, "batch": {"sequences": 8},
        "optimizer": {"lr": 1e-4}})


def command(bench: Bench, file: Path, out: Path, updates: int, *more) -> list:
    data = rows.make(bench)
    return [bench.program, "train", file, "--device", bench.device, "--out", out, "--steps", updates, "--quiet",
            "--set", f"data.train={data / rows.FILES['sft']}", "--set", f"data.tokenizer={data / 'tokenizer'}", *more]


def metrics(out: Path) -> list:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "lr" in line]


def losses(out: Path) -> list:
    return [(line["step"], line["loss"], line["grad_norm"]) for line in metrics(out)]


def finish(bench: Bench, arguments: list) -> str:
    said = call(arguments, bench.clock)
    return said.error() if said.code != 0 else ""


def killed(bench: Bench) -> tuple:
    """What comes out after SIGKILLs at random moments is what an undisturbed run has, to the last bit."""
    file, rng = run_file(bench, "killed-often", 128), random.Random(4711)
    undisturbed, out = bench.scratch / "undisturbed", bench.scratch / "killed-often"
    began = time.monotonic()
    if why := finish(bench, command(bench, file, undisturbed, KILLED_UPDATES, "--set", "save.every=40")):
        return why, {}
    whole_s, kills, runs = time.monotonic() - began, 0, 1
    while kills < KILLS and not (out / "final").exists() and bench.clock.left_s() > 20:
        child = start(command(bench, file, out, KILLED_UPDATES, "--set", "save.every=40"),
                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.5, 1.1) * whole_s)
        kills += child.poll() is None
        end(child, signal.SIGKILL)
        if (out / "final").exists() and kills < KILLS:
            if losses(out) != losses(undisturbed):
                return f"other losses after {kills} kills", {"kills": kills}
            out, runs = out.with_name(f"killed-often-{runs}"), runs + 1
    figures = {"kills": kills, "updates": KILLED_UPDATES}
    if why := "" if (out / "final").exists() else finish(bench, command(bench, file, out, KILLED_UPDATES,
                                                                         "--set", "save.every=40")):
        return why, figures
    if losses(out) != losses(undisturbed):
        return f"other losses after {kills} kills", figures
    return ("" if kills == KILLS else f"only {kills} kills in the time there was"), figures


def long(bench: Bench) -> tuple:
    """Memory and speed of the last updates are those of the first ones that count."""
    out = bench.scratch / "long"
    if why := finish(bench, command(bench, run_file(bench, "long", 64), out, LONG_UPDATES)):
        return why, {}
    lines = metrics(out)
    settled = lines[int(SETTLED_SHARE * len(lines)):]
    tenth = len(lines) // 10
    speed = lambda part: 1 / statistics.median(line["step_ms"] for line in part)
    grew = lambda key: settled[-1][key] - settled[0][key]
    host, card, ratio = grew("host_rss_bytes"), grew("gpu_used_bytes"), speed(settled[-tenth:]) / speed(settled[:tenth])
    figures = {"updates": len(lines), "host_grew_mib": host / MIB, "card_grew_mib": card / MIB, "speed_ratio": ratio}
    faults = [f"the host's memory grew by {host / MIB:.1f} MiB"] if host > HOST_GROWTH_MAX else []
    faults += [f"the card's memory grew by {card / MIB:.1f} MiB"] if card > 0 else []
    faults += [f"the last updates ran at {ratio:.2f} of the speed"] if ratio < 0.9 else []
    return "; ".join(faults), figures


def run(bench: Bench) -> Stage:
    stage = Stage("lasting", COLUMNS)
    stage.checks = [checked("killed at random moments", lambda: killed(bench)), checked("many updates", lambda: long(bench))]
    return stage
