"""What goes wrong on a machine with a card: too small budgets, a busy card, killed runs, libraries that are none."""

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import rows
from program import GIB, MIB, REPOSITORY, Bench, Said, Stage, card_memory, checked, end, overrun, say, start

COLUMNS = [["exit", "code", "text"], ["card used / planned", "card_ratio", "fine"], ["details", "details", "text"]]
FITS_NOT, USAGE, INTERRUPTED = 3, 2, 130
# Files of a whole checkpoint of a full model.
WHOLE = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
         "manifest.json", "state.safetensors", "training.json"}


def small(bench: Bench) -> Path:
    size = 512 if bench.on_card else 64
    return bench.write("faults", {
        "model": {"family": "llama", "hidden_size": size, "num_hidden_layers": 4, "num_attention_heads": 8,
                  "num_key_value_heads": 4, "intermediate_size": 2 * size, "vocab_size": rows.VOCABULARY, "init": "random"},
        "task": "sft", "data": {"max_length": 128}, "batch": {"sequences": 8}, "optimizer": {"lr": 1e-4}})


def ended(said: Said, code: int, details: str = "") -> tuple:
    """(why, figures) for a run that must end with that code; a refusal is an error with a hint and nothing else."""
    figures = {"code": said.code, "details": details}
    if said.code != code:
        return f"{said.error()} instead of {code}", figures
    if code in (FITS_NOT, USAGE) and (said.stdout.strip() or "error: " not in said.stderr or "hint: " not in said.stderr):
        return f"a refusal without error and hint: {said.stderr[:200]}", figures
    return "", figures


def ran(bench: Bench, said: Said, budget_bytes=None, device: str = "") -> tuple:
    """(why, figures) for a bench that must have run within its plan."""
    why, figures = ended(said, 0)
    if why:
        return why, figures
    report = said.json()
    if report["gpu"]["planned_bytes"]:
        figures["card_ratio"] = report["gpu"]["used_bytes"] / report["gpu"]["planned_bytes"]
    if device and not report["device"].startswith(device):
        return f"ran on {report['device']}", figures
    return overrun(report, budget_bytes, bench.memory), figures


def smallest_budget(bench: Bench, file: Path) -> tuple:
    """Refused below the smallest plan; the budget that the hint names works, and less does not."""
    refused = bench.plimsoll("bench", file, f"--{bench.memory}", "8MiB", "--steps", 1, "--json")
    why, figures = ended(refused, FITS_NOT)
    found = re.search(rf"--{bench.memory} (\d+)MiB", refused.stderr)
    if why or not found:
        return why or f"no budget is named: {refused.stderr[:200]}", figures
    smallest = int(found[1])
    figures["details"] = f"the smallest is {smallest} MiB"
    below = bench.plimsoll("bench", file, f"--{bench.memory}", f"{smallest - 4}MiB", "--steps", 1, "--json")
    why = ended(below, FITS_NOT)[0]
    if why:
        return f"4 MiB below the smallest budget: {why}", figures
    there = bench.plimsoll("bench", file, f"--{bench.memory}", f"{smallest}MiB", "--steps", 1, "--json")
    why, more = ran(bench, there, smallest * MIB)
    return why, {**figures, **more, "code": "3, 3, 0", "details": figures["details"]}


def refused_for_host(bench: Bench, file: Path) -> tuple:
    return ended(bench.plimsoll("bench", file, "--host", "4MiB", "--steps", 1, "--json"), FITS_NOT)


def more_than_there_is(bench: Bench, file: Path) -> tuple:
    """A budget is a ceiling, whatever the card has."""
    return ran(bench, bench.plimsoll("bench", file, f"--{bench.memory}", "4000GiB", "--steps", 1, "--json"))


def no_such_card(bench: Bench, file: Path) -> tuple:
    return ended(bench.plimsoll("bench", file, "--steps", 1, "--json", device="cuda:99"), USAGE)


def no_visible_card(bench: Bench, file: Path) -> tuple:
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    said = bench.plimsoll("bench", file, "--steps", 1, "--json", device="cuda:0", environment=hidden)
    why, figures = ended(said, USAGE)
    if why:
        return why, figures
    said = bench.plimsoll("bench", file, "--steps", 1, "--json", device="auto", environment=hidden)
    return ran(bench, said, device="cpu")[0], {"code": "2, 0", "details": "auto takes the CPU"}


def libraries_that_are_none(bench: Bench, file: Path, path: Path) -> tuple:
    """Where PLIMSOLL_CUDA_PATH holds no libraries, those of the system are taken."""
    said = bench.plimsoll("bench", file, "--steps", 1, "--json", environment={"PLIMSOLL_CUDA_PATH": str(path)})
    why, figures = ran(bench, said)
    if not why and said.json()["device"] == "cpu":
        why = "ran on the CPU"
    return why, figures


def fake_libraries(bench: Bench) -> Path:
    folder = bench.scratch / "fakes"
    folder.mkdir()
    for name in ["libcuda.so.1", "libnvrtc.so.13", "libnvrtc.so.12", "libcublasLt.so.13", "libcublasLt.so.12"]:
        (folder / name).write_text("no library at all")
    return folder


@contextmanager
def busy(bench: Bench, left_bytes: int):
    """Another process holds the card's memory but for so much."""
    ordinal = bench.device.partition(":")[2] or "0"
    holder = start([sys.executable, Path(__file__).with_name("hold.py"), ordinal, left_bytes],
                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        line = holder.stdout.readline()
        if not line.startswith("holding"):
            raise RuntimeError(f"hold.py: {holder.stderr.read()[:200]}")
        say(f"another process is {line.strip()}")
        yield
    finally:
        end(holder)


def busy_but_enough(bench: Bench, file: Path) -> tuple:
    # What the driver keeps for itself is counted differently from inside and from outside of a context.
    with busy(bench, 4 * GIB):
        return ran(bench, bench.plimsoll("bench", file, "--steps", 1, "--json"), 4 * GIB + 64 * MIB)


def busy_and_refused(bench: Bench) -> tuple:
    with busy(bench, 4 * GIB):
        large = REPOSITORY / "benches/mistral-full.yaml"
        return ended(bench.plimsoll("bench", large, "--gpu", "64GiB", "--steps", 1, "--json"), FITS_NOT)


def full(bench: Bench, file: Path) -> tuple:
    """Not even a context fits."""
    with busy(bench, 64 * MIB):
        why, figures = ended(bench.plimsoll("bench", file, "--steps", 1, "--json"), FITS_NOT)
        if why:
            return why, figures
        said = bench.plimsoll("bench", file, "--steps", 1, "--json", device="auto")
        return ran(bench, said, device="cpu")[0], {"code": "3, 0", "details": "auto takes the CPU"}


def under_way(bench: Bench, file: Path, out: Path):
    """A run that saves after every update, seen to be past its second one."""
    data = rows.make(bench)
    command = [bench.program, "train", file, "--device", bench.device, "--out", out, "--steps", 1_000_000, "--quiet",
               "--set", f"data.train={data / rows.FILES['sft']}", "--set", f"data.tokenizer={data / 'tokenizer'}",
               "--set", "data.overlong=truncate", "--set", "save.every=1"]
    child = start(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    give_up = time.monotonic() + min(60, bench.clock.left_s())
    while not (out / "metrics.jsonl").exists() or len((out / "metrics.jsonl").read_text().splitlines()) < 3:
        if child.poll() is not None or time.monotonic() > give_up:
            end(child)
            raise RuntimeError(f"the run did not get under way: {child.stderr.read()[:300]}")
        time.sleep(0.02)
    return child


def usable(bench: Bench, file: Path, checkpoint: Path) -> str:
    """Why a checkpoint cannot be trained on."""
    names = {path.name for path in checkpoint.iterdir()}
    if not WHOLE <= names:
        return f"{checkpoint.name} lacks {', '.join(sorted(WHOLE - names))}"
    data = rows.make(bench)
    said = bench.plimsoll("train", file, "--out", f"{checkpoint}-again", "--steps", 1, "--quiet", "--set",
                          f"model={checkpoint}", "--set", f"data.train={data / rows.FILES['sft']}", "--set",
                          "data.overlong=truncate")
    return "" if said.code == 0 else f"{checkpoint.name}: {said.error()}"


def killed(bench: Bench, file: Path) -> tuple:
    """Only whole checkpoints are left, the card is free again, and no other run is written into the folder."""
    before, out = card_memory(bench.device) if bench.on_card else None, bench.scratch / "killed"
    end(under_way(bench, file, out), signal.SIGKILL)
    names = sorted(path.name for path in (out / "checkpoints").iterdir())
    whole = [name for name in names if re.fullmatch(r"step-\d+", name)]
    figures = {"code": "killed", "details": f"left {', '.join(names)}"}
    odd = [name for name in names if name not in whole and name != "latest" and not name.endswith(".partial")]
    if odd or not whole or (out / "final").exists():
        return f"left {', '.join(names)}", figures
    why = next((why for name in whole if (why := usable(bench, file, out / "checkpoints" / name))), "")
    data = rows.make(bench)
    again = bench.plimsoll("train", file, "--out", out, "--steps", 1, "--quiet", "--seed", 4711,
                           "--set", f"data.train={data / rows.FILES['sft']}",
                           "--set", f"data.tokenizer={data / 'tokenizer'}", "--set", "data.overlong=truncate")
    why = why or ended(again, USAGE)[0]
    if before and not why:
        held = card_memory(bench.device)["used_bytes"] - before["used_bytes"]
        why = f"{held / MIB:.0f} MiB of the card are still held" if held > 64 * MIB else ""
    return why, figures


def interrupted(bench: Bench, file: Path, number: int) -> tuple:
    """A signal that asks to end: the weights are saved first."""
    out = bench.scratch / f"interrupted-{number}"
    code = end(under_way(bench, file, out), number)
    saved = sorted((out / "checkpoints").glob("step-*"), key=lambda path: path.stat().st_mtime)
    figures = {"code": code, "details": f"saved {saved[-1].name}" if saved else ""}
    if code != INTERRUPTED or not saved:
        return f"exit {code}, {len(saved)} checkpoints", figures
    return usable(bench, file, saved[-1]), figures


def run(bench: Bench) -> Stage:
    stage = Stage("faults", COLUMNS)
    file = small(bench)
    tests = {
        "budget below the smallest plan": partial(smallest_budget, bench, file),
        "host budget too small": partial(refused_for_host, bench, file),
        "budget above what there is": partial(more_than_there_is, bench, file),
        "card that does not exist": partial(no_such_card, bench, file),
        "no card visible": partial(no_visible_card, bench, file),
        "killed while saving": partial(killed, bench, file),
        "SIGINT": partial(interrupted, bench, file, signal.SIGINT),
        "SIGTERM": partial(interrupted, bench, file, signal.SIGTERM),
    }
    if bench.on_card:
        tests |= {
            "PLIMSOLL_CUDA_PATH to nowhere": partial(libraries_that_are_none, bench, file, Path("/nonexistent/cuda")),
            "PLIMSOLL_CUDA_PATH with files that are no libraries":
                partial(libraries_that_are_none, bench, file, fake_libraries(bench)),
            "busy card, enough left": partial(busy_but_enough, bench, file),
            "busy card, too little left": partial(busy_and_refused, bench),
            "full card": partial(full, bench, file),
        }
    stage.checks = [checked(name, test) for name, test in tests.items()]
    return stage
