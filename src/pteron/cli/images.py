"""Pictures as inputs. Needs Pillow."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from pteron.errors import (
    AccessFailedError,
    InvalidArgumentError,
    NotSupportedError,
    missing_package,
)
from pteron.executor.signature import ValueInfo

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")

_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}
_IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
_IMAGENET_DEVIATION: Final = (0.229, 0.224, 0.225)


class Layout(NamedTuple):
    """How an input takes a picture."""

    channels: int
    height: int
    width: int
    channels_first: bool
    dynamic: bool


def load_image(path: Path, info: ValueInfo, scale: str | None) -> torch.Tensor:
    """Return a picture in the shape and element type of an input.

    Converted to grey (1 channel), RGB (3) or RGBA (4), turned as its EXIF data say, and resized
    (bilinear) if the input's height and width are others. Values become, by ``scale``: ``unit`` 0
    to 1, ``signed`` -1 to 1, ``imagenet`` normalised, ``byte`` 0 to 255; None is ``unit`` for float
    inputs, and ``byte`` for integers, less 128 for int8.
    """
    layout = layout_of(info)
    dtype = info.dtype
    if dtype is None:
        raise _takes_none(info)
    _check_scale(scale, dtype, layout, info)
    image = _open(path, _MODES[layout.channels])
    room = (layout.width, layout.height)
    fits = layout.dynamic and image.width <= layout.width and image.height <= layout.height
    if image.size != room and not fits:
        from PIL.Image import Resampling

        image = image.resize(room, Resampling.BILINEAR)
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    pixels = pixels.reshape(image.height, image.width, layout.channels)
    scaled = _scale(pixels, scale, dtype)
    if layout.channels_first:
        scaled = scaled.permute(2, 0, 1)
    rank = len(info.shape or ())
    return (scaled.squeeze() if rank == 2 else scaled[(None,) * (rank - 3)]).contiguous()


def layout_of(info: ValueInfo) -> Layout:
    """Return how an input takes a picture, or raise InvalidArgumentError if it cannot."""
    sizes = info.shape or ()
    dynamic = info.is_dynamic
    shape = sizes[1:] if len(sizes) == 4 and (sizes[0] == 1 or dynamic) else sizes
    if len(shape) == 2:
        return Layout(1, shape[0], shape[1], channels_first=False, dynamic=dynamic)
    if len(shape) == 3 and shape[0] in _MODES:
        return Layout(shape[0], shape[1], shape[2], channels_first=True, dynamic=dynamic)
    if len(shape) == 3 and shape[2] in _MODES:
        return Layout(shape[2], shape[0], shape[1], channels_first=False, dynamic=dynamic)
    raise _takes_none(info)


def _takes_none(info: ValueInfo) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{info.label} is {info.type_text}, which does not take a picture",
        hint="shapes such as 1 x 3 x H x W, 1 x H x W x 1 or H x W take one",
    )


def _check_scale(scale: str | None, dtype: torch.dtype, layout: Layout, info: ValueInfo) -> None:
    if dtype.is_complex or dtype == torch.bool:
        raise _takes_none(info)
    if scale not in (None, "byte") and not dtype.is_floating_point:
        raise InvalidArgumentError(
            f"--image-scale {scale} makes fractions; {info.label} is {info.type_text}"
        )
    if scale == "imagenet" and layout.channels != 3:
        raise InvalidArgumentError(
            f"--image-scale imagenet is for 3 channels; {info.label} has {layout.channels}"
        )


def _scale(pixels: torch.Tensor, scale: str | None, dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point:
        return (pixels.to(torch.int16) - 128).to(dtype) if dtype == torch.int8 else pixels.to(dtype)
    if scale == "byte":
        return pixels.to(dtype)
    unit = pixels.to(torch.float32) / 255
    if scale == "signed":
        unit = unit * 2 - 1
    elif scale == "imagenet":
        unit = (unit - torch.tensor(_IMAGENET_MEAN)) / torch.tensor(_IMAGENET_DEVIATION)
    return unit.to(dtype)


def _open(path: Path, mode: str) -> Image:
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as error:
        raise missing_package(error, f"reading {path}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                if image.mode.startswith(("I", "F")):
                    raise NotSupportedError(
                        f"{path} has more than 8 bits a channel (mode {image.mode})",
                        hint="save it with 8 bits a channel, or give an array (.npy)",
                    )
                return ImageOps.exif_transpose(image).convert(mode)
    except FileNotFoundError:
        raise AccessFailedError(f"input file {path} does not exist", filename=str(path)) from None
    except IsADirectoryError:
        raise AccessFailedError(
            f"input file {path} is a folder; give a file", filename=str(path)
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise AccessFailedError(
            f"input file {path} has more pixels than Pillow reads (it guards against decompression "
            "bombs)",
            filename=str(path),
        ) from error
    except (OSError, ValueError, SyntaxError) as error:
        empty = path.stat().st_size == 0
        raise AccessFailedError(
            f"input file {path} {'is empty' if empty else 'is not a picture, or is cut short'}",
            filename=str(path),
        ) from error
