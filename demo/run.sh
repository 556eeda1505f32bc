#!/usr/bin/env bash
# Look into a real program, run it from the command line, then from Python. `make demo` calls this.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

show() {
    printf '\n$ %s\n' "$*"
    "$@"
}

show pteron inspect digits.pte
show pteron memory digits.pte
show pteron run digits.pte --input digits/7.png
show python recognise.py digits/*.png
