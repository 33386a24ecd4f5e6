"""Trains the small examples one after another and checks what each has learnt: check.py PLIMSOLL [NAME ...]"""

import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

# What an evaluation must show in the end. Below half a bit per byte, the order of the words is known; at a loss of 0.05 per
# token, nearly every letter is; with a BLEU above 60, most runs of four words are there.
CHECKS = {
    "r0-nanochat": lambda result: result["eval"]["bits_per_byte"] < 0.5,
    "r1-t5-chat": lambda result: result["eval"]["bleu"] > 60,
    "r2-t5-low-host": lambda result: result["eval_last"] < 0.05
    and result["host"]["used_bytes"] <= result["host"]["planned_bytes"],
    "r3-ranking": lambda result: result["eval"]["ndcg"] > 0.95,
    "r4-reward": lambda result: result["eval"]["accuracy"] > 0.95,
}


def main(program, names):
    subprocess.run(["sh", HERE / "make_data.sh"], check=True)
    failed = []
    for name in names or CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            command = [program, "train", HERE / f"{name}.yaml", "--device", "cpu", "--out", f"{folder}/run"]
            done = subprocess.run([*command, "--json", "--quiet"], capture_output=True, text=True, check=False)
        result = json.loads(done.stdout) if done.returncode == 0 else {}
        learnt = bool(result) and CHECKS[name](result)
        shown = {"evaluation loss": result.get("eval_last"), **result.get("eval", {})} if result else done.stderr
        print(f"{name}: {'learnt' if learnt else 'NOT LEARNT'}: {shown}", flush=True)
        failed += [] if learnt else [name]
    sys.exit(1 if failed else 0)


main(sys.argv[1], sys.argv[2:])
