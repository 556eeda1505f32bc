"""Random programs, compared with eager torch: what a person would not think of.

    PYTHONPATH=src:tests python -m differential.random_programs --seeds 0..999
    PYTHONPATH=src:tests python -m differential.random_programs --seeds 17 --show
    PYTHONPATH=src:tests python -m differential.random_programs --seeds 0..99999 --jobs 2 \
        --minutes 60 --keep /tmp/found --wheel

A seed gives a program, always the same one. It is run with the executor's passes on and off, with
outputs that are owned or borrowed, on strided inputs, several times in a row, in a second instance
and on a device that stands in for an accelerator. Every result is compared with the oracle's. A
difference, an exception that is no PteronError, and a refusal are findings; a program that
fails is made as small as it can be and printed in pteron's notation.

| file | what it does |
|---|---|
| `recipe.py` | a program as data: values, steps, the inputs of its calls |
| `table.py`, `rows_*.py`, `own_*.py` | operators and delegates: **to add one, add a row** |
| `draws.py` | how arguments are drawn |
| `sketch.py`, `generator.py` | from a seed to a recipe |
| `planning.py`, `assemble.py` | from a recipe to a file, with a memory plan drawn by chance |
| `eager.py` | the oracle: every value in dense memory of its own, operators by eager torch |
| `exported.py` | the same recipes as torch modules, exported; the oracle is the module |
| `wheel.py` | the second oracle: the executorch wheel, in a process of its own |
| `running.py` | the ways to run a program on pteron |
| `checking.py` | comparing, and what counts as a finding |
| `shrinking.py`, `notation.py` | smaller programs, and how they are printed |
| `campaign.py`, `__main__.py` | many seeds, by command |

The generator and the oracles know nothing of pteron; only `running`, `checking` and `notation` do,
and `own_kernels` and `own_delegates` where they hand theirs to it.
"""
