"""Architectures delegated to XNNPACK: as floats, and quantized in three ways.

Exporting all of them takes long, so they are kept in ``tests/fixtures/xnnpack/models.tar.xz``.
``PYTHONPATH=src:tests python -m support.xnnpack_variants`` writes that file anew, from the text of
the models as it is.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import nn

from support.exporting import (
    ExportedFile,
    cache_root,
    export_xnnpack,
    exported_once,
    write_program,
)
from support.models import ARCHITECTURES, Architecture

PACK = Path(__file__).parents[1] / "fixtures" / "xnnpack" / "models.tar.xz"

WITHOUT = {
    "scan": ("static_int8", "dynamic_int8"),
    "bfloat16": ("static_int8", "dynamic_int8", "rows_by_4_bits"),
}
"""What cannot be exported: torch traces no scan that the quantizer has prepared; XNNPACK has no
quantized values beside bfloat16 ones, and what is left outside has no out variant."""


def is_float(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.is_floating_point()


def symmetric(*, dynamic: bool) -> Any:
    """Return a quantizer of 8 bits, its weights per channel.

    XNNPACKQuantizer makes a float of every number that is added, also to positions and masks;
    this one leaves integers alone.
    """
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    class FloatsOnly(XNNPACKQuantizer):
        def transform_for_annotation(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            integers = [(n, n.args) for n in model.graph.nodes if not is_float(n.meta.get("val"))]
            model = super().transform_for_annotation(model)
            for node, args in integers:
                node.args = args
            return model

    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    return FloatsOnly().set_global(config)


def dynamic_partitioners() -> list[Any]:
    """Return one partitioner for what is quantized at run time, and one for the rest."""
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    rows = XnnpackPartitioner(config_precisions=ConfigPrecisionType.DYNAMIC_QUANT)
    return [rows, XnnpackPartitioner()]


def floats(entry: Architecture, *, full: bool = False) -> ExportedFile:
    """Return the architecture as it is."""
    return export_xnnpack(entry, full=full)


def static_int8(entry: Architecture, *, full: bool = False) -> ExportedFile:
    """Return the architecture with 8-bit weights and activations, calibrated on its inputs."""
    return export_xnnpack(
        entry, full=full, variant="static_int8", quantizer=lambda: symmetric(dynamic=False)
    )


def dynamic_int8(entry: Architecture, *, full: bool = False) -> ExportedFile:
    """Return the architecture with 8-bit weights, its activations quantized at run time."""
    return export_xnnpack(
        entry,
        full=full,
        variant="dynamic_int8",
        quantizer=lambda: symmetric(dynamic=True),
        partitioner=dynamic_partitioners,
    )


def rows_by_4_bits(entry: Architecture, *, full: bool = False) -> ExportedFile:
    """Return the architecture with linear layers of 4-bit weights (8da4w), in blocks of 32."""

    def export(folder: Path) -> None:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        methods = entry.build(full=full)
        for module in {id(spec.module): spec.module for spec in methods.values()}.values():
            quantize_linear(module)
        write_program(entry, methods, folder, partitioner=[XnnpackPartitioner()])

    return exported_once(f"{entry.name}{'_full' if full else ''}_xnnpack_8da4w", export)


def quantize_linear(module: nn.Module) -> None:
    """Quantize the linear layers into which blocks of 32 fit: XNNPACK takes no others."""
    from torchao.quantization import quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig

    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    )
    quantize_(
        module,
        config,
        filter_fn=lambda layer, _: isinstance(layer, nn.Linear) and layer.in_features % 32 == 0,
    )


VARIANTS = {
    "floats": floats,
    "static_int8": static_int8,
    "dynamic_int8": dynamic_int8,
    "rows_by_4_bits": rows_by_4_bits,
}


def names(variant: str) -> list[str]:
    """Return the architectures that a variant has."""
    return [name for name in ARCHITECTURES if variant not in WITHOUT.get(name, ())]


@cache
def _unpacked() -> Path:
    """Return a folder with what the pack holds."""
    stat = PACK.stat()
    folder = cache_root() / f"xnnpack-{stat.st_size}-{stat.st_mtime_ns}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if not folder.is_dir():
            part = folder.with_name(folder.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            with tarfile.open(PACK) as pack:
                pack.extractall(part, filter="data")
            part.rename(folder)
    return folder


def kept(name: str, variant: str) -> ExportedFile:
    """Return an architecture's program out of the pack."""
    folder = _unpacked() / f"{name}-{variant}"
    weights = sorted(folder.glob("*.ptd"))
    return ExportedFile(folder / "program.pte", weights[0] if weights else None)


def write_pack() -> None:
    """Export everything, and write the pack."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as pack:
        for variant, export in VARIANTS.items():
            for name in names(variant):
                for path in sorted(export(ARCHITECTURES[name]).pte.parent.iterdir()):
                    member = tarfile.TarInfo(f"{name}-{variant}/{path.name}")
                    member.size = path.stat().st_size
                    pack.addfile(member, io.BytesIO(path.read_bytes()))
    PACK.write_bytes(buffer.getvalue())


if __name__ == "__main__":
    write_pack()
