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

COLUMNS = [["kills", "kills", "count"], ["in a save", "saving", "count"], ["in an evaluation", "evaluating", "count"],
           ["seconds", "seconds", "seconds"], ["updates", "updates", "count"], ["host grew MiB", "host_grew_mib", "fine"],
           ["card grew MiB", "card_grew_mib", "fine"], ["last / second tenth, updates/s", "speed_ratio", "ratio"]]
# At any moment, while a checkpoint is being written, and in an evaluation.
KILLS = ["any", "saving", "any", "evaluating"] * 5
# Of the kills, so many must have met a save, and as many an evaluation.
MET_MIN = 3
KILLED_UPDATES, SAVE_EVERY, EVAL_EVERY = 1200, 60, 90
KILLED_SECONDS_MAX = 60
# The same on a CPU, where updates take longer than starts.
KILLED_UPDATES_CPU, KILLED_SECONDS_MAX_CPU = 180, 240
# More than any two lines of the metrics.
LINES_BYTES = 4096
# Of the time that all updates take, how much a run has at most behind its first before it is killed.
KILLED_WITHIN_SHARE = 0.8
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


class Watched:
    """A training process, and what its folder says of it."""

    def __init__(self, arguments: list, out: Path):
        self.out, self.child = out, start(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL)

    def wait(self, happened, until: float) -> bool:
        """Until it has happened, the process is done or the time is up; whether it has happened."""
        while self.child.poll() is None and time.monotonic() < until:
            if happened():
                return True
            time.sleep(0.0005)
        return False

    def newest_line(self) -> dict:
        """The last complete line of the metrics."""
        path = self.out / "metrics.jsonl"
        if not path.exists():
            return {}
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LINES_BYTES))
            lines = file.read().split(b"\n")[1:-1]
        return json.loads(lines[-1]) if lines else {}

    def is_saving(self) -> bool:
        return any((self.out / "checkpoints").glob("*.partial"))

    def is_evaluating(self) -> bool:
        """The newest line is of an update behind which there is an evaluation."""
        last = self.newest_line()
        return "lr" in last and last["step"] % EVAL_EVERY == 0

    def kill(self, moment: str, rng: random.Random, within_s: float, until: float) -> bool:
        """Kills it at such a moment; whether it was still running."""
        seen = self.newest_line()
        self.wait(lambda: self.newest_line() != seen, until)
        if moment == "any":
            time.sleep(rng.uniform(0, within_s))
        else:
            self.wait(self.is_saving if moment == "saving" else self.is_evaluating, until)
            time.sleep(rng.uniform(0, 0.003))
        was_running = self.child.poll() is None
        end(self.child, signal.SIGKILL)
        return was_running


def killed(bench: Bench) -> tuple:
    """What comes out after SIGKILLs at random moments is what an undisturbed run has, to the last bit."""
    rng, began = random.Random(4711), time.monotonic()
    undisturbed, out, runs = bench.scratch / "undisturbed", bench.scratch / "killed-often", 0
    size, updates, seconds_max = (128, KILLED_UPDATES, KILLED_SECONDS_MAX) if bench.on_card else (
        32, KILLED_UPDATES_CPU, KILLED_SECONDS_MAX_CPU)
    file = run_file(bench, "killed-often", size)
    settings = [f"save.every={SAVE_EVERY}", f"eval.every={EVAL_EVERY}", "data.eval_split=0.1"]
    flags = [part for setting in settings for part in ("--set", setting)]
    if why := finish(bench, command(bench, file, undisturbed, updates, *flags)):
        return why, {}
    figures = {"kills": 0, "saving": 0, "evaluating": 0, "updates": updates}
    # What is left of the time is for the last run, which nobody disturbs.
    until = began + seconds_max - 1.5 * (time.monotonic() - began)
    within_s = KILLED_WITHIN_SHARE * sum(line["step_ms"] for line in metrics(undisturbed)) / 1e3
    moments = iter(KILLS)
    moment = next(moments)
    while moment and time.monotonic() < until and bench.clock.left_s() > 20:
        watched = Watched(command(bench, file, out, updates, *flags), out)
        if watched.kill(moment, rng, within_s, until):
            figures["kills"] += 1
            figures["saving"] += watched.is_saving()
            figures["evaluating"] += watched.is_evaluating()
            moment = next(moments, None)
        if (out / "final").exists():
            if losses(out) != losses(undisturbed):
                return f"other losses after {figures['kills']} kills", figures
            runs += 1
            out = bench.scratch / f"killed-often-{runs}"
    if why := finish(bench, command(bench, file, out, updates, *flags)):
        return why, figures
    figures["seconds"] = time.monotonic() - began
    faults = [] if losses(out) == losses(undisturbed) else [f"other losses after {figures['kills']} kills"]
    faults += [f"only {figures['kills']} kills in {seconds_max} s"] if moment else []
    for met in ("saving", "evaluating"):
        faults += [f"only {figures[met]} kills {met}"] if figures[met] < MET_MIN else []
    return "; ".join(faults), figures


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
