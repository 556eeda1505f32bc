"""Export the larger models, portable, for ``bench/gpu/run.py`` to place on a GPU.

    PYTHONPATH=src:tests:. python -m bench.gpu.make_programs [FOLDER]

Needs executorch. FOLDER (default ``.bench``, which git ignores) is carried to the machine with the
GPU, where executorch need not be.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from bench.gpu.models import MODELS
from pteron import Runtime
from support.exporting import quiet


def main(folder: Path) -> None:
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    folder.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        module, inputs = model.build(), model.inputs()
        path = folder / f"{model.name}.pte"
        with quiet(), torch.no_grad():
            exported = torch.export.export(module, inputs)
            edge = to_edge_transform_and_lower(
                exported, compile_config=EdgeCompileConfig(_check_ir_validity=False)
            )
            path.write_bytes(edge.to_executorch().buffer)
            expected = module(*inputs)
        (got,) = Runtime.get().load_program(path).load_method("forward").execute(inputs)
        error = float((got - expected).abs().max() / expected.abs().max())
        print(f"{path}: {path.stat().st_size:,} bytes; off eager by {error:.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(".bench"))
