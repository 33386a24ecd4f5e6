"""The first start on a machine: it measures the card and compiles kernels, which later processes share.

Kernels of attention and of adapters are compiled when a run first needs them, in its own process, where the compiler's
memory would count as the run's. So every kind is used once before anything is measured.
"""

from functools import partial

from program import Bench, Check, Stage, say, side_by_side

COLUMNS = [["seconds", "seconds", "seconds"], ["first update after s", "first_step_s", "seconds"],
           ["memory counted by", "counted", "text"]]
LORA = {"lora": {"r": 8}}


def tiny(head_dim: int, precision: str, method="full") -> dict:
    shape = {"family": "llama", "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 1, "head_dim": head_dim, "intermediate_size": 256, "vocab_size": 333, "init": "random"}
    return {"model": shape, "task": "pretrain", "method": method, "precision": precision, "data": {"max_length": 64},
            "batch": {"sequences": 2}}


def start(bench: Bench, name: str, run: dict) -> Check:
    file = bench.write(f"start-{name.replace(' ', '-')}", run)
    said = bench.plimsoll("bench", file, "--steps", 1, "--json")
    report = said.json() if said.code == 0 else {}
    figures = {"seconds": said.seconds, "first_step_s": report.get("first_step_s"), "counted": report.get("gpu_counted")}
    check = Check(name, said.code == 0, "" if said.code == 0 else said.error(), figures)
    say(f"{name}: {said.seconds:.1f} s{'' if check.passed else ' FAILED ' + check.why}")
    return check


def run(bench: Bench) -> Stage:
    stage = Stage("first start", COLUMNS)
    precision = "bf16" if bench.on_card else "fp32"
    # Alone: it measures the card.
    stage.checks.append(start(bench, "first start", tiny(64, precision)))
    if bench.on_card and stage.checks[0].passed:
        kinds = {f"head dim {size}": tiny(size, "bf16") for size in (32, 80, 96, 128)}
        kinds |= {"LoRA": tiny(64, "bf16", LORA), "LoRA in float32": tiny(64, "fp32", LORA)}
        stage.checks += side_by_side([partial(start, bench, name, run) for name, run in kinds.items()], bench.workers)
    stage.checks.append(start(bench, "later start", tiny(64, precision)))
    return stage
