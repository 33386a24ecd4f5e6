"""The runs of docs/measurements.md, alone on the card: speed, used against planned, predicted against measured."""

import statistics
from typing import NamedTuple, Optional

from program import GIB, MIB, REPOSITORY, Bench, Check, Stage, overrun, say

COLUMNS = [["tok/s", "tokens_per_s", "count"], ["ms", "step_ms", "ms"], ["micro-batch", "micro_batch_tokens", "text"],
           ["card used GiB", "card_used_bytes", "gib"], ["card used / planned", "card_ratio", "fine"],
           ["host used GiB", "host_used_bytes", "gib"], ["host used / planned", "host_ratio", "fine"],
           ["predicted / measured", "predicted_ratio", "ratio"], ["first update s", "first_step_s", "seconds"],
           ["loss", "loss", "loss"]]
COLUMNS_BEFORE = [["before tok/s", "before_tokens_per_s", "count"], ["after / before", "gained", "fine"],
                  ["before card GiB", "before_card_used_bytes", "gib"], ["same loss as before", "same_loss", "text"]]
# Runs of one plan differ by up to 2 % on a card at its limit of power.
SLOWER_MAX = 0.97
# Beyond this, the plan chose between strategies with wrong times.
PREDICTED_MIN, PREDICTED_MAX = 0.80, 1.20


class Row(NamedTuple):
    run: str
    file: str
    budget: Optional[str]
    # Part of the short list, too.
    short: bool
    steps: Optional[int] = None
    mode: Optional[str] = None

    @property
    def name(self) -> str:
        """The letter and the budget."""
        return f"{self.run.split(':')[0]} at {self.budget_words}"

    @property
    def budget_words(self) -> str:
        size = self.budget.replace("GiB", " GiB").replace("MiB", " MiB") if self.budget else "free"
        return f"{size}, `--mode {self.mode}`" if self.mode else size

    @property
    def budget_bytes(self) -> Optional[int]:
        if self.budget is None:
            return None
        return int(float(self.budget[:-3]) * (GIB if self.budget.endswith("GiB") else MIB))


A = "A: Mistral-7B reward, LoRA r16, dropout 0.1, 8 × 512"
B = "B: Mistral-7B SFT, LoRA r16, 4 × 2048"
A8 = "A8: Mistral-7B reward, `base: fp8`, LoRA r16, dropout 0.1, 8 × 512"
B8 = "B8: Mistral-7B SFT, `base: fp8`, LoRA r16, 4 × 2048"
C = "C: Mistral-7B SFT, `base: nf4`, LoRA r16, 4 × 2048"
D = "D: Mistral-7B reward, full, AdamW with bf16 states, 2 × 384 (`--steps 20`)"
D8 = "D8: Mistral-7B reward, full, AdamW with int8 states, updates in the backward pass, 2 × 384 (`--steps 20`)"
E = "E: T5 of 10 + 10 layers, dim 768, full, 32 × 256 on both sides"
F = "F: nanochat of 16 layers, dim 1024, full, AdamW, 8 × 2048"
E16 = "E16: E with sixteen-bit AdamW states and no masters, as PyTorch trains a bf16 model"
F16 = "F16: F with sixteen-bit AdamW states and no masters, as PyTorch trains a bf16 model"
R3 = "R3: Qwen2.5-1.5B ranking, LoRA, 4 × 2048"
R3N = "R3N: Qwen2.5-1.5B SFT, `base: nf4`, LoRA r8, dropout 0.1, 4 × 2048"
G = "G: Qwen2.5-1.5B SFT, LoRA r8, dropout 0.1, 4 × 2048"
L = "L: Llama-3.1-8B SFT, `base: nf4`, LoRA r32, AdamW with int8 states, 1 × 16384"
ON_CARD = [
    Row(A, "mistral-reward", None, short=True),
    Row(A, "mistral-reward", "27GiB", short=True),
    Row(A, "mistral-reward", "24GiB", short=False),
    Row(A, "mistral-reward", "20GiB", short=False),
    Row(A, "mistral-reward", "18GiB", short=False),
    Row(A, "mistral-reward", "16GiB", short=True),
    Row(B, "mistral-sft", "34GiB", short=True),
    Row(B, "mistral-sft", "17GiB", short=True),
    Row(A8, "mistral-reward-fp8", None, short=True),
    Row(B8, "mistral-sft-fp8", "25.1GiB", short=True),
    Row(B8, "mistral-sft-fp8", "11GiB", short=True),
    Row(C, "mistral-sft-nf4", "6.98GiB", short=True),
    Row(D, "mistral-full", None, short=True, steps=20),
    Row(D8, "mistral-full-int8", "30GiB", short=True, steps=20),
    Row(E, "t5-chat", None, short=True),
    Row(E, "t5-chat", "5.5GiB", short=True),
    Row(E16, "t5-chat-bf16", None, short=True),
    Row(E16, "t5-chat-bf16", "6.4GiB", short=True),
    Row(F16, "nanochat-bf16", None, short=True),
    Row(F, "nanochat", None, short=True),
    Row(F, "nanochat", "9GiB", short=True),
    Row(R3, "qwen-ranking", "12GiB", short=True),
    Row(R3N, "qwen-sft-nf4", "3.7GiB", short=True),
    Row(L, "llama-8b-long", "12GiB", short=True),
    Row(G, "qwen-sft", "40GiB", short=False),
    Row(G, "qwen-sft", "24GiB", short=False),
    Row(G, "qwen-sft", "20GiB", short=True),
    Row(G, "qwen-sft", "18GiB", short=False),
    Row(G, "qwen-sft", "16GiB", short=False),
    Row(G, "qwen-sft", "12GiB", short=False),
    Row(G, "qwen-sft", "8GiB", short=True),
    Row(G, "qwen-sft", "8GiB", short=False, mode="eager"),
    Row(G, "qwen-sft", "6GiB", short=True),
]
S = "S: Llama of 6 layers, dim 384, 8 × 256"
M = "M: Llama of 8 layers, dim 768, 4 × 256"
ON_CPU = [Row(S, "llama-s", "600MiB", short=True), Row(M, "llama-m", "1300MiB", short=True)]


def measure(bench: Bench, row: Row, program) -> dict:
    arguments = ["bench", REPOSITORY / "benches" / f"{row.file}.yaml", "--json"]
    for flag, value in [(f"--{bench.memory}", row.budget), ("--steps", row.steps), ("--mode", row.mode)]:
        arguments += [flag, value] if value is not None else []
    said = bench.plimsoll(*arguments, program=program)
    if said.code != 0:
        raise RuntimeError(said.error())
    return said.json()


def figures(row: Row, reports: list, memory: str) -> dict:
    """Every run of the row, in lists."""
    ratio = lambda report, of: report[of]["used_bytes"] / max(1, report[of]["planned_bytes"])
    return {
        "run": row.run, "file": row.file, "budget": row.budget_words,
        "tokens_per_s": [r["tokens_per_s"] for r in reports],
        "step_ms": [r["step_ms"] for r in reports],
        "predicted_ratio": [r["predicted_step_ms"] / r["step_ms"] for r in reports],
        "micro_batch_tokens": [r["micro_batch_tokens"] for r in reports],
        "card_used_bytes": [r["gpu"]["used_bytes"] for r in reports],
        "card_ratio": [ratio(r, memory) for r in reports],
        "host_used_bytes": [r["host"]["used_bytes"] for r in reports],
        "host_ratio": [ratio(r, "host") for r in reports],
        "first_step_s": [r["first_step_s"] for r in reports],
        "loss": [r["loss_last"] for r in reports],
    }


def compared(after: list, before: list) -> tuple:
    """(why it is worse, figures) of two builds."""
    speed = lambda reports: statistics.median(r["tokens_per_s"] for r in reports)
    gained = speed(after) / speed(before)
    same = {r["loss_last"] for r in after} == {r["loss_last"] for r in before}
    found = {"before_tokens_per_s": [r["tokens_per_s"] for r in before], "gained": gained,
             "before_card_used_bytes": [r["gpu"]["used_bytes"] for r in before], "same_loss": "yes" if same else "no"}
    return ("" if gained >= SLOWER_MAX else f"{gained:.3f} of the speed before"), found


def check(bench: Bench, row: Row, repeats: int) -> Check:
    after, before = [], []
    try:
        for turn in range(repeats):
            pair = [(bench.program, after)] + ([(bench.before, before)] if bench.before else [])
            # In turns, each first as often as the other.
            for program, reports in pair if turn % 2 else reversed(pair):
                reports.append(measure(bench, row, program))
    except (RuntimeError, ValueError) as error:
        return Check(row.name, False, str(error))
    faults = [why for report in after if (why := overrun(report, row.budget_bytes, bench.memory))]
    found = figures(row, after, bench.memory)
    predicted = statistics.median(found["predicted_ratio"])
    # Speeds of a CPU depend on what other processes leave of it: reported only.
    if bench.on_card and not PREDICTED_MIN <= predicted <= PREDICTED_MAX:
        faults.append(f"predicted {predicted:.2f} of the measured time")
    if before:
        why, more = compared(after, before)
        faults += [why] if why and bench.on_card else []
        found.update(more)
    return Check(row.name, not faults, "; ".join(dict.fromkeys(faults)), found)


def run(bench: Bench, every_row: bool, repeats: int) -> Stage:
    stage = Stage("timed", COLUMNS + (COLUMNS_BEFORE if bench.before else []))
    rows = [row for row in (ON_CARD if bench.on_card else ON_CPU) if row.short or every_row]
    for row in rows:
        result = check(bench, row, repeats)
        stage.checks.append(result)
        speeds = ", ".join(f"{speed:,.0f}" for speed in result.figures.get("tokens_per_s", []))
        say(f"{'passed' if result.passed else 'FAILED'}  {row.name}: {speeds} tokens/s {result.why}")
    return stage
