#!/usr/bin/env bash
# Builds what benches/card/run.py needs on a machine without a Rust toolchain, into carry/card.tar.xz: the program
# (release) and the test executables that use a card (dev, as `cargo test` builds them), stripped.
#
#   benches/card/pack.sh [--program FILE] [--before FILE]
#
# --program: a release binary that is built already. --before: another build's, to be timed in turns with it.
set -euo pipefail
here="$PWD"
cd "$(dirname "$0")/../.."
root="$PWD"

program=""
before=""
while [ $# -gt 0 ]; do
    case "$1" in
        --program) program="$(cd "$here" && realpath "${2:?--program needs a file}")" ;;
        --before) before="$(cd "$here" && realpath "${2:?--before needs a file}")" ;;
        *) echo "usage: benches/card/pack.sh [--program FILE] [--before FILE]" >&2; exit 2 ;;
    esac
    shift 2
done

stage="$(mktemp -d)"
trap 'rm -rf "$stage"' EXIT
mkdir "$stage/tests"

# Cargo's messages name the executables it made.
executables() {
    python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        package = message["manifest_path"].split("/")[-2]
        print(package, message["target"]["name"], message["executable"])'
}

if [ -z "$program" ]; then
    echo "== the program" >&2
    program="$(cargo build --release -p plimsoll --message-format=json | executables | cut -d' ' -f3-)"
fi
cp "$program" "$stage/plimsoll"
[ -z "$before" ] || cp "$before" "$stage/plimsoll-before"

echo "== the tests" >&2
selection=()
for file in crates/{conformance,train}/tests/*.rs crates/{conformance,train}/tests/*/main.rs; do
    name="$(basename "${file%/main.rs}" .rs)"
    # These read sources, and one of them runs cargo; they need no card.
    case "$name" in tidy | structure | dependencies) continue ;; esac
    [ ! -e "$file" ] || selection+=(--test "$name")
done
# The whole workspace: with the features of a selection, every dependency would be built once more.
cargo test --workspace --no-run "${selection[@]}" --message-format=json | executables > "$stage/executables"
while read -r package name executable; do
    # Other packages may have tests of the same name.
    case "$package" in conformance | train) cp "$executable" "$stage/tests/$package.$name" ;; esac
done < "$stage/executables"
rm "$stage/executables"
strip "$stage/plimsoll"* "$stage/tests/"*

changed=false
[ -z "$(git status --porcelain --untracked-files=no)" ] || changed=true
cat > "$stage/build.json" <<JSON
{"commit": "$(git rev-parse --short=12 HEAD)", "changed": $changed, "root": "$root", "rustc": "$(rustc --version)"}
JSON

# One stream over all of them: the executables share most of their code.
mkdir -p carry
echo "== $(du -sm "$stage" | cut -f1) MiB to compress" >&2
tar -C "$stage" --sort=name --owner=0 --group=0 -cf - build.json $(cd "$stage" && ls -d plimsoll*) tests |
    xz --format=xz --check=crc64 --x86 --lzma2=preset=6,dict=192MiB > carry/card.tar.xz.part
mv carry/card.tar.xz.part carry/card.tar.xz
size="$(stat -c %s carry/card.tar.xz)"
echo "carry/card.tar.xz: $((size >> 20)) MiB" >&2
