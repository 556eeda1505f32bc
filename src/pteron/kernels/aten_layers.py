"""ATen layers and transforms whose own kernels trust their arguments too far, warn, or copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pteron.errors import InvalidArgumentError
from pteron.kernels.write import write

_F: Any = torch._C._VariableFunctions
_NN: Any = torch._C._nn
_aten: Any = torch.ops.aten


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> Tensor:  # noqa: A002
    """Apply a layer; torch resizes the result of a single vector, with a warning."""
    if input.dim() > 1:
        result: Tensor = _NN.linear(input, weight, bias, out=out)
        return result
    return write(out, _NN.linear(input, weight, bias))


def pdist_forward(self: Tensor, p: float = 2.0) -> Tensor:
    """Return the distances between the rows; torch trusts that there are rows."""
    if self.dim() != 2:
        raise InvalidArgumentError(
            f"_pdist_forward of shape {tuple(self.shape)}; expected two dimensions"
        )
    result: Tensor = _aten._pdist_forward.default._op(self.contiguous(), p)
    return result


def group_norm(
    input: Tensor,  # noqa: A002 - the schema's name
    weight: Tensor | None,
    bias: Tensor | None,
    *sizes: Any,
) -> Sequence[Tensor]:
    """Normalise groups of channels; torch trusts that all of its arguments are dense."""
    order = torch.channels_last if input.dim() == 4 else torch.contiguous_format
    if not (input.is_contiguous() or input.is_contiguous(memory_format=order)):
        input = input.contiguous()  # noqa: A001
    weight = None if weight is None else weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    results: Sequence[Tensor] = _F.native_group_norm(input, weight, bias, *sizes)
    return results


def dense_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, with its tensors made contiguous, as torch trusts them to be."""

    def kernel(*args: Any) -> Any:
        return function(*(a.contiguous() if isinstance(a, Tensor) else a for a in args))

    return kernel


# Fourier transforms.


def fft_r2c(
    self: Tensor, dim: Sequence[int], normalization: int, onesided: bool, *, out: Tensor
) -> Tensor:
    """Transform real numbers; torch trusts the dimensions."""
    dims = _fft_dims(self, dim, normalization)
    return write(out, _F._fft_r2c(self, dims, normalization, onesided))


def fft_c2r(
    self: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int, *, out: Tensor
) -> Tensor:
    """Transform to real numbers; torch trusts the dimensions and the size."""
    dims = _fft_dims(self, dim, normalization)
    if last_dim_size < 1 or self.size(dims[-1]) != last_dim_size // 2 + 1:
        raise InvalidArgumentError(
            f"_fft_c2r of shape {tuple(self.shape)} to {last_dim_size} entries of dimension "
            f"{dims[-1]}; expected {last_dim_size // 2 + 1} coefficients"
        )
    return write(out, _F._fft_c2r(self, dims, normalization, last_dim_size))


def _fft_dims(self: Tensor, dim: Sequence[int], normalization: int) -> list[int]:
    rank = self.dim()
    dims = [d + rank if d < 0 else d for d in dim]
    if (
        not dims
        or len(set(dims)) != len(dims)
        or not all(0 <= d < rank and self.size(d) for d in dims)
        or normalization not in (0, 1, 2)
    ):
        raise InvalidArgumentError(
            f"a Fourier transform over the dimensions {list(dim)} of shape {tuple(self.shape)} "
            f"with normalization {normalization}; expected distinct dimensions that are not empty"
        )
    return dims


# Normalisation: torch's kernels trust that statistics have one entry per channel.


def batch_norm_legit(
    input: Tensor,  # noqa: A002 - the schema's name
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    **outs: Tensor,
) -> None:
    """Normalise over the batch, or by running statistics, which training updates."""
    _check_channels(input, (weight, bias, running_mean, running_var))
    args = (input, weight, bias, running_mean, running_var, training, momentum, eps)
    _write_statistics(outs.values(), _F._native_batch_norm_legit(*args))


def batch_norm_no_stats(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    **outs: Tensor,
) -> None:
    """Normalise over the batch; torch reads statistics that are not there if not in training."""
    _check_channels(input, (weight, bias))
    if not training:
        raise InvalidArgumentError("a batch norm without statistics has to be in training")
    args = (input, weight, bias, training, momentum, eps)
    _write_statistics(outs.values(), _F._native_batch_norm_legit(*args))


def batch_norm_no_training(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    *,
    out0: Tensor,
    out1: Tensor,
    out2: Tensor,
) -> None:
    """Normalise by running statistics.

    torch writes straight into a result that lies as the input does; into another it writes wrongly.
    """
    _check_channels(input, (weight, bias, running_mean, running_var))
    args = (input, weight, bias, running_mean, running_var)
    if out0.shape == input.shape and out0.stride() == input.stride() and out1.numel() == 0:
        unused = (input.new_empty(0), input.new_empty(0))
        _F.native_batch_norm(*args, False, momentum, eps, out=(out0, *unused))
    else:
        results = _F._native_batch_norm_legit_no_training(*args, momentum, eps)
        _write_statistics((out0, out1, out2), results)


def _check_channels(input: Tensor, vectors: Sequence[Tensor | None]) -> None:  # noqa: A002
    channels = input.size(1) if input.dim() > 1 else -1
    for vector in vectors:
        if vector is not None and vector.numel() != channels:
            raise InvalidArgumentError(
                f"a batch norm of an input of shape {tuple(input.shape)} with a weight, bias or "
                f"statistic of shape {tuple(vector.shape)}; expected one entry per channel"
            )


def _write_statistics(outs: Iterable[Tensor], results: Iterable[Tensor | None]) -> None:
    """Write results, and the statistics that the program has room for.

    Without training, the host gives empty statistics and CUDA full ones: a slot that was planned
    for the other stays as it is. A dynamic slot comes empty, and has room for more.
    """
    for number, (out, result) in enumerate(zip(outs, results, strict=True)):
        if result is None:
            continue
        fits = result.shape == out.shape or (
            out.numel() == 0 and result.nbytes <= out.untyped_storage().nbytes()
        )
        if fits or number == 0:
            write(out, result)


def convolution_backward(*args: Any, **outs: Tensor) -> None:
    """Write the gradients that the mask, the last argument, asks for."""
    results = _aten.convolution_backward.default._op(*args)
    for out, result in zip(outs.values(), results, strict=True):
        if result is not None:
            write(out, result)


# Pooling and resampling.


def max_pool2d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
    *,
    grad_input: Tensor,
) -> Tensor:
    """Send each gradient to where its maximum was; torch writes to any place an index names."""
    if indices.numel():
        low, high = (int(bound) for bound in torch.aminmax(indices))
        if low < 0 or high >= self.size(-1) * self.size(-2):
            raise InvalidArgumentError(
                f"max_pool2d_with_indices_backward has indices from {low} to {high}; an image of "
                f"{self.size(-2)} by {self.size(-1)} has none of them"
            )
    args = (grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices)
    result: Tensor = _aten.max_pool2d_with_indices_backward.grad_input._op(
        *args, grad_input=grad_input
    )
    return result


def padding(function: Callable[..., Tensor], spatial: int) -> Callable[..., Tensor]:
    """Return ``function``, of padding by what is there, with a refusal of results without size.

    torch looks at one of the dimensions only, and takes its time over the other.
    """

    def kernel(self: Tensor, padding: Sequence[int], *, out: Tensor) -> Tensor:
        for i in range(min(spatial, self.dim(), len(padding) // 2)):
            if self.size(-1 - i) + padding[2 * i] + padding[2 * i + 1] < 1:
                raise InvalidArgumentError(
                    f"padding of shape {tuple(self.shape)} by {list(padding)} leaves nothing"
                )
        return function(self, padding, out=out)

    return kernel


def upsample(function: Callable[..., Tensor], spatial: int) -> Callable[..., Tensor]:
    """Return the ``vec`` form, with output size or scale factors, of ``function``'s plain one."""

    def kernel(
        input: Tensor,  # noqa: A002
        output_size: Sequence[int] | None,
        *options: Any,
        out: Tensor,
    ) -> Tensor:
        *flags, scales = options
        if (output_size is None) == (scales is None):
            raise InvalidArgumentError("upsampling needs either an output size or scale factors")
        factors: Sequence[float | None] = scales if scales is not None else (None,) * spatial
        if output_size is None:
            sizes = input.shape[-spatial:]
            output_size = [int(n * f) for n, f in zip(sizes, scales, strict=True)]
        return function(input, output_size, *flags, *factors, out=out)

    return kernel


upsample_nearest2d = upsample(_NN.upsample_nearest2d, 2)
upsample_bilinear2d = upsample(_NN.upsample_bilinear2d, 2)
reflection_pads = {n: padding(getattr(_NN, f"reflection_pad{n}d"), n) for n in (1, 2, 3)}
replication_pads = {n: padding(getattr(_NN, f"replication_pad{n}d"), n) for n in (1, 2, 3)}
