#!/bin/sh
# Makes the data of the small examples beside them, in data/: the same rows every time. Needs Python 3, nothing else.
set -eu
cd "$(dirname "$0")"
mkdir -p data/tokenizer
python3 make_pairs.py data
python3 make_ranking.py data
python3 make_text.py data
python3 make_tokenizer.py data/tokenizer
