"""What saving costs a run of 1.1 billion parameters; memory of save, resume, evaluation and merge against their plans."""

import json
import random
import shutil
import statistics
from pathlib import Path

import rows
from program import Bench, Stage, call, checked, overrun

COLUMNS = [["update ms", "step_ms", "ms"], ["written s", "wrote_s", "fine"], ["waited s", "waited_s", "fine"],
           ["slower updates s", "slower_s", "fine"], ["share of 100 updates", "share", "fine"],
           ["disk GB/s", "disk_gb_per_s", "ratio"], ["card used GiB", "card_used_bytes", "gib"],
           ["card used / planned", "card_ratio", "fine"], ["host used GiB", "host_used_bytes", "gib"],
           ["host used / planned", "host_ratio", "fine"]]
# Of the time of so many updates, a save may cost so much.
UPDATES, SHARE_MAX = 100, 0.02
# Half a million tokens an update, as models of this size are trained.
LENGTH, SEQUENCES = 2048, 256
# The first checkpoint of a run that ends two updates later; the last update leaves weights only.
SAVE_AT, STEPS = 3, 5
# Five updates of some eight seconds, and 15 GB written.
TRAINING_SECONDS_MAX = 240
SYLLABLES = ["ba", "co", "du", "el", "fi", "go", "ha", "in", "jo", "ka", "lu", "me", "no", "or", "pi"]


class Subject:
    """The run that is saved, resumed, evaluated and merged into."""

    def __init__(self, bench: Bench):
        self.bench, self.folder = bench, bench.scratch / "saving"
        self.folder.mkdir(exist_ok=True)
        card = bench.on_card
        self.length, self.sequences = (LENGTH, SEQUENCES) if card else (64, 16)
        self.budget = ["--gpu", "44GiB", "--host", "40GiB"] if card else ["--host", "600MiB"]
        shape = {"family": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
                 "intermediate_size": 512, "vocab_size": 4096}
        self.settings = {
            "model": "tinyllama-1.1b" if card else shape, "init": "random", "task": "pretrain",
            "precision": "bf16" if card else "fp32",
            "data": {"train": str(self.texts()), "tokenizer": str(rows.make(bench) / "tokenizer"), "eval_split": 0.02,
                     "max_length": self.length, "overlong": "truncate", "cache": str(self.folder / "cache")},
            "batch": {"sequences": self.sequences}, "optimizer": {"lr": 1e-4},
            "schedule": {"name": "constant", "steps": STEPS}}

    def texts(self) -> Path:
        """Texts that fill every sequence."""
        path, rng = self.folder / "texts.jsonl", random.Random("texts to be saved")
        with path.open("w") as out:
            for _ in range(self.sequences + 40):
                words = ("".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(2 * self.length))
                out.write(json.dumps({"text": " ".join(words)}) + "\n")
        return path

    def train(self, name: str, out: Path, settings: dict, *arguments) -> dict:
        file = self.bench.write(name, settings)
        flags = ["--device", self.bench.device, "--out", out, "--json", "--quiet"]
        command = [self.bench.program, "train", file, *flags, *self.budget, *arguments]
        said = call(command, self.bench.clock, seconds_max=TRAINING_SECONDS_MAX)
        if said.code != 0:
            raise RuntimeError(said.error())
        return said.json()

    def saved(self, way: str) -> Path:
        return self.folder / way


def memory(bench: Bench, report: dict) -> dict:
    """Used and planned as columns; a process that has no card says nothing of one."""
    figures = {"host_used_bytes": report["host"]["used_bytes"],
               "host_ratio": report["host"]["used_bytes"] / report["host"]["planned_bytes"]}
    if bench.on_card and report.get("gpu", {}).get("planned_bytes"):
        figures |= {"card_used_bytes": report["gpu"]["used_bytes"],
                    "card_ratio": report["gpu"]["used_bytes"] / report["gpu"]["planned_bytes"]}
    return figures


def within(bench: Bench, report: dict) -> tuple:
    report = {"gpu": {"used_bytes": 0, "planned_bytes": 0}, **report}
    return overrun(report, None, bench.memory), memory(bench, report)


def updates(out: Path) -> list:
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line["step_ms"] for line in lines if "lr" in line]


def cost(subject: Subject, way: str) -> tuple:
    """A run with one checkpoint, which is written `beside` training or `between` two updates."""
    bench, out = subject.bench, subject.saved(way)
    settings = {**subject.settings, "save": {"every": SAVE_AT, "keep": 1}, "plan": {"save": way}}
    report = subject.train(f"saving-{way}", out, settings)
    why, figures = within(bench, report)
    saving, times = report["saving"], updates(out)
    # The first update is none like the others; those behind the checkpoint are slower while it is written.
    usual = statistics.median(times[1:SAVE_AT])
    slower_s = sum(max(0.0, took - usual) for took in times[SAVE_AT:]) / 1e3
    waited_s, wrote_s = saving["waited_ms"] / 1e3, saving["wrote_ms"] / 1e3
    share = (waited_s + slower_s) / (UPDATES * usual / 1e3)
    written = sum(file.stat().st_size for file in (out / "checkpoints").rglob("*") if file.is_file())
    figures |= {"step_ms": usual, "wrote_s": wrote_s, "waited_s": waited_s, "slower_s": slower_s, "share": share,
                "disk_gb_per_s": written / 1e9 / wrote_s if wrote_s else None}
    faults = [why] if why else []
    if saving["checkpoints"] != 1:
        faults.append(f"{saving['checkpoints']} checkpoints instead of one")
    # A small model's updates on a CPU are too short to hold a save against; what is written between updates takes what the disk
    # takes, which is why a plan with room writes beside them.
    if bench.on_card and way == "beside" and share > SHARE_MAX:
        faults.append(f"a save takes {share:.1%} of {UPDATES} updates, {SHARE_MAX:.0%} are allowed")
    return "; ".join(faults), figures


def resumed(subject: Subject) -> tuple:
    """The run goes on from its checkpoint for one update more than it had."""
    out = subject.saved("beside")
    settings = {**subject.settings, "save": {"every": 10 * STEPS, "keep": 1}, "plan": {"save": "between"}}
    shutil.rmtree(out / "final", ignore_errors=True)
    report = subject.train("saving-beside", out, settings, "--steps", STEPS + 1, "--resume")
    why, figures = within(subject.bench, report)
    done = len(updates(out))
    return why or ("" if done == STEPS + 1 else f"{done} updates are in the metrics instead of {STEPS + 1}"), figures


def evaluated(subject: Subject, model: Path) -> tuple:
    bench = subject.bench
    said = bench.plimsoll("eval", model, "--task", "pretrain", "--data", subject.folder / "texts.jsonl",
                          "--device", bench.device, "--json")
    return (said.error(), {}) if said.code != 0 else within(bench, said.json())


def adapted(subject: Subject, base: Path) -> tuple:
    """Adapters beside the model that was trained, for what is to be merged."""
    settings = {**subject.settings, "model": str(base), "method": {"lora": {"r": 16}}, "batch": {"sequences": 8}}
    del settings["init"]
    report = subject.train("saving-adapters", subject.saved("adapters"), settings, "--steps", 2)
    return within(subject.bench, report)


def merged(subject: Subject) -> tuple:
    bench = subject.bench
    adapters = subject.saved("adapters") / "final"
    said = bench.plimsoll("merge", adapters, "--out", subject.saved("merged"), "--json")
    if said.code != 0:
        return said.error(), {}
    report = said.json()
    return within(bench, {"host": report["host"]})


def leave_space(subject: Subject, *names: str) -> None:
    for name in names:
        shutil.rmtree(subject.saved(name), ignore_errors=True)


def run(bench: Bench) -> Stage:
    stage, subject = Stage("saving", COLUMNS), Subject(bench)
    add = lambda name, test: stage.checks.append(checked(name, test))
    add("a checkpoint between updates", lambda: cost(subject, "between"))
    leave_space(subject, "between")
    add("a checkpoint beside training", lambda: cost(subject, "beside"))
    add("resuming", lambda: resumed(subject))
    trained = subject.saved("beside") / "final"
    shutil.rmtree(subject.saved("beside") / "checkpoints", ignore_errors=True)
    add("evaluating the model", lambda: evaluated(subject, trained))
    add("training adapters beside it", lambda: adapted(subject, trained))
    add("evaluating them", lambda: evaluated(subject, subject.saved("adapters") / "final"))
    add("merging them", lambda: merged(subject))
    add("evaluating what was merged", lambda: evaluated(subject, subject.saved("merged")))
    leave_space(subject, "beside", "adapters", "merged")
    stage.notes.append(f"Updates of {subject.sequences} × {subject.length} tokens. Of a save: how long it was written, how "
                       f"long training waited for it, and what updates took longer meanwhile.")
    return stage
