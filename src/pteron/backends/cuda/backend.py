"""Runs delegates of ExecuTorch's CUDA backend: shared objects that AOTInductor compiled."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from pteron.backends.cuda.container import Container
from pteron.backends.cuda.describe import CheckedDelegate, check_delegate, method_name_of
from pteron.backends.cuda.weights import Constants, may_be_written, place_constants
from pteron.backends.interface import Backend, BackendInitContext, DelegateHandle
from pteron.errors import (
    DelegateInvalidCompatibilityError,
    DelegateInvalidHandleError,
    InternalError,
    InvalidArgumentError,
    InvalidProgramError,
    NotFoundError,
    NotSupportedError,
    PteronError,
)
from pteron.format.schema import Tensor
from pteron.memory.hierarchical_allocator import dense_strides, on_device

if TYPE_CHECKING:
    from pteron.backends.cuda.shared_object import SharedObject

INPUT_ALIGNMENT = 16
"""Bytes. Compiled kernels assume it of every input; AOTInductor's own code warns on stderr."""


class CudaBackend(Backend):
    """Makes handles for ``CudaBackend`` delegates."""

    id: ClassVar[str] = "CudaBackend"
    device_type: ClassVar[str] = "cuda"
    """The kind of device that the compiled code is for."""

    @property
    def is_available(self) -> bool:
        """Whether torch sees a CUDA device."""
        return torch.cuda.is_available()

    @property
    def runs_native_code(self) -> bool:
        """A delegate is a shared object that runs in this process."""
        return True

    def init(self, context: BackendInitContext) -> CudaDelegate:
        """Check the delegate, load its code, place its constants.

        Everything that can be told without a device is checked first, so that a damaged file is
        called damaged on every machine.
        """
        where = context.blob.where
        delegate = check_delegate(
            context.processed,
            context.named_data,
            method_name=method_name_of(context.blob),
            where=where,
        )
        if not context.native_code:
            raise NotSupportedError(
                f"{where} carries native code (sha256 {delegate.digest}), "
                "which this process does not allow",
                hint='load the program with native_code="allow", and without '
                "PTERON_NATIVE_CODE=refuse, if you trust the file",
            )
        self._check_device(context, delegate, where)
        from pteron.backends.cuda.shared_object import load_shared_object  # Linux only

        code = load_shared_object(delegate, where=where)
        return CudaDelegate(context, delegate, code, where)

    def _check_device(
        self, context: BackendInitContext, delegate: CheckedDelegate, where: str
    ) -> None:
        device = context.device
        if device.type != self.device_type:
            raise NotSupportedError(
                f"{where} is compiled for CUDA and was sent to {device}",
                hint="a device map moves a compiled delegate only from one CUDA device to another",
            )
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            have = f"torch {torch.__version__} sees {count} CUDA device{'s' * (count != 1)} here"
            raise NotFoundError(
                f"{where} runs on {device}, and there is none: {have}",
                hint=_no_device_hint(count),
            )
        _check_architecture(delegate, device, where)


class CudaDelegate(DelegateHandle):
    """Owns one delegate on one device: its container, and its share of the program's constants."""

    def __init__(
        self,
        context: BackendInitContext,
        delegate: CheckedDelegate,
        code: SharedObject,
        where: str,
    ) -> None:
        self.device = context.device
        self.digest = delegate.digest
        self._where = where
        self._code = code
        self._lock = threading.Lock()
        self._expected = tuple(context.args)
        self._constants = Constants()
        self._weights = _FlatWeights.of(context, delegate)
        self._container: Container | None = None
        with on_device(self.device):
            self._container = self._new_container()
            try:
                if self._weights is None:
                    self._place(context, delegate)
                self._check_argument_count()
            except BaseException:
                self.close()
                raise

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The buffers that the compiled code may write, by name. Views; writing them is allowed.

        Empty for files whose weights are one flat blob: their buffers are inside the container.
        """
        return self._constants.state

    @property
    def hides_state(self) -> bool:
        """Whether buffers are inside the container, where nobody can save them or put them back.

        So it is in files whose weights are one flat blob. Such a delegate cannot be captured into
        a CUDA graph: its buffers move when it is reset.
        """
        container = self._live_container()
        return self._weights is not None and any(map(may_be_written, container.constants))

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._container is None

    def state_tensors(self) -> list[torch.Tensor]:
        """Return the buffers that the compiled code may write, in place."""
        return list(self._constants.state.values())

    def bind(self, args: Sequence[Any]) -> Callable[[], None]:
        """Return a call that runs the delegate on these tensors, on the current stream.

        The call never waits for the device. An output whose storage can be resized (one that the
        plan has no place for) takes over the compiled code's own result; the others are copied to.
        """
        container = self._live_container()
        inputs = self._tensors(args[: container.num_inputs], 0)
        outputs = self._tensors(args[container.num_inputs :], container.num_inputs)
        if len(args) != container.num_inputs + container.num_outputs:
            raise InvalidProgramError(
                f"{self._where}: {len(args)} arguments for compiled code of "
                f"{container.num_inputs} inputs and {container.num_outputs} outputs"
            )
        expected = self._expected or (None,) * len(args)
        checks = tuple(
            _fixed
            if _is_fixed(tensor)
            else _Dense(expected[index], f"{self._where}: input {index}", self.device)
            for index, tensor in enumerate(inputs)
        )
        sinks = tuple(
            _sink(
                output,
                expected[container.num_inputs + index],
                f"{self._where}: output {index}",
                self._is_own_memory,
            )
            for index, output in enumerate(outputs)
        )
        device, lock = self.device, self._lock
        raw_stream = current_raw_stream(device)

        def call() -> None:
            with lock, on_device(device):
                live = self._container
                if live is None:
                    raise DelegateInvalidHandleError(f"{self._where}: the delegate is closed")
                given = [check(tensor) for check, tensor in zip(checks, inputs, strict=True)]
                try:
                    results = live.run(given, raw_stream())
                except InternalError as error:
                    _add_free_memory(error, device)
                    raise
                taken = [tensor.untyped_storage().data_ptr() for tensor in given]
                for sink, result in zip(sinks, results, strict=True):
                    sink(result, taken)

        return call

    def reset(self) -> None:
        """Bring the buffers back to their first values, at the same addresses.

        Where buffers are inside the container (``hides_state``), it is made anew.
        """
        with self._lock, on_device(self.device):
            if not self.hides_state:
                self._constants.reset()
                return
            fresh = self._new_container()
            self._synchronize()
            old, self._container = self._container, fresh
            if old is not None:
                old.close()

    def close(self) -> None:
        """Delete the container and give up the constants, once the device is done with both."""
        with self._lock:
            container, self._container = self._container, None
            if container is None:
                return
            with on_device(self.device):
                self._synchronize()
                container.close()
                self._constants.release()
                self._return_cached_memory()

    def __del__(self) -> None:
        """Delete the container of a delegate that was dropped without a close."""
        if not sys.is_finalizing():  # at exit, the driver takes all back
            with suppress(PteronError, RuntimeError, AttributeError):
                self.close()

    def _new_container(self) -> Container:
        container = Container(self._code, str(self.device), where=self._where)
        try:
            if self._weights is not None:
                self._weights.load_into(container)
        except BaseException:
            container.close()
            raise
        return container

    def _place(self, context: BackendInitContext, delegate: CheckedDelegate) -> None:
        container = self._live_container()
        self._constants = place_constants(
            context, container.constants, delegate.payload.entries, where=self._where
        )
        if self._constants.tensors:
            container.bind_constants(self._constants.tensors)

    def _live_container(self) -> Container:
        if self._container is None:
            raise DelegateInvalidHandleError(f"{self._where}: the delegate is closed")
        return self._container

    def _check_argument_count(self) -> None:
        container = self._live_container()
        if self._expected and len(self._expected) != container.num_inputs + container.num_outputs:
            raise InvalidProgramError(
                f"{self._where}: the program calls it with {len(self._expected)} arguments; the "
                f"compiled code has {container.num_inputs} inputs and "
                f"{container.num_outputs} outputs"
            )

    def _tensors(self, args: Sequence[Any], first: int) -> tuple[torch.Tensor, ...]:
        for index, arg in enumerate(args, start=first):
            if not isinstance(arg, torch.Tensor):
                raise NotSupportedError(
                    f"{self._where}: argument {index} is {arg!r}; compiled CUDA code takes tensors"
                )
            if arg.device != self.device:
                raise NotSupportedError(
                    f"{self._where}: argument {index} is on {arg.device}, the compiled code runs "
                    f"on {self.device}",
                    hint="map both devices to one with device_map",
                )
        return tuple(args)

    def _is_own_memory(self, pointer: int) -> bool:
        return any(
            tensor.untyped_storage().data_ptr() == pointer
            for tensor in self._constants.tensors.values()
        )

    def _return_cached_memory(self) -> None:
        """Give back what torch only caches, such as the compiled code's intermediates (P5)."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _add_free_memory(error: PteronError, device: torch.device) -> None:
    """Tell how much memory there is: what a failed run lacks most often, and does not say."""
    if device.type == "cuda":
        with suppress(RuntimeError):
            free, total = torch.cuda.mem_get_info(device)
            error.add_context(f"{device} has {free:,} of {total:,} bytes free")


def current_raw_stream(device: torch.device) -> Callable[[], int | None]:
    """Return a function that gives the address of the device's current stream."""
    if device.type != "cuda":
        return lambda: None
    index = device.index or 0
    raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return lambda: raw(index)
    return lambda: torch.cuda.current_stream(index).cuda_stream


def _no_device_hint(count: int) -> str:
    if count:
        return "move the program's tags with device_map, such as {'cuda:1': 'cuda:0'}"
    return "methods of the program that are planned on the host run without one"


def _check_architecture(delegate: CheckedDelegate, device: torch.device, where: str) -> None:
    """Refuse code that holds no kernel for the device; what is not known is left to the driver."""
    capability = torch.cuda.get_device_capability(device)
    lacking = [
        kernel
        for kernel in {image.kernel for image in delegate.info.images}
        if not any(
            image.runs_on(capability) for image in delegate.info.images if image.kernel == kernel
        )
    ]
    if lacking:
        raise DelegateInvalidCompatibilityError(
            f"{where} is compiled for {', '.join(delegate.info.architectures)}; {device} "
            f"({torch.cuda.get_device_name(device)}) has compute capability "
            f"{capability[0]}.{capability[1]}",
            hint="export the program for this GPU",
        )


class _FlatWeights:
    """Views the flat blob of weights of an older file, or knows that they are inside the code."""

    def __init__(self, context: BackendInitContext, key: str, *, embedded: bool) -> None:
        self._named_data = context.named_data
        self._key = key
        self._embedded = embedded

    @classmethod
    def of(cls, context: BackendInitContext, delegate: CheckedDelegate) -> _FlatWeights | None:
        """Return the flat weights of a delegate, or None if its weights are named."""
        key = delegate.payload.weights_key
        if key is None:
            return None
        return cls(context, key, embedded=delegate.info.embeds_constants)

    def load_into(self, container: Container) -> None:
        """Copy the weights into a container that asks for any; a missing blob is named."""
        from pteron.memory.host_view import address_of

        if all(constant.folded for constant in container.constants):
            return
        if self._embedded and self._key not in self._named_data:
            return
        blob = self._named_data.get(self._key).data
        container.load_flat_blob(address_of(blob), blob.nbytes)


def _is_fixed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a planned slot, whose address and layout the loader answers for."""
    return (
        not tensor.untyped_storage().resizable()
        and tensor.is_contiguous()
        and tensor.data_ptr() % INPUT_ALIGNMENT == 0
    )


def _fixed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Dense:
    """Makes an input what the compiled code assumes: on its device, in its layout, aligned."""

    __slots__ = ("_device", "_order", "_where")

    def __init__(self, arg: Any, where: str, device: torch.device) -> None:
        order = arg.dim_order if isinstance(arg, Tensor) else ()
        self._order = tuple(order) if tuple(order) != tuple(range(len(order))) else ()
        self._where = where
        self._device = device

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device != self._device:
            raise InvalidArgumentError(
                f"{self._where} is on {tensor.device}, the compiled code runs on {self._device}"
            )
        if self._order:
            permuted = tensor.permute(self._order)
            if not permuted.is_contiguous():
                inverse = sorted(range(len(self._order)), key=self._order.__getitem__)
                tensor = permuted.contiguous().permute(inverse)
        elif not tensor.is_contiguous():
            tensor = tensor.contiguous()
        if tensor.data_ptr() % INPUT_ALIGNMENT:
            tensor = tensor.clone()
        return tensor


def _sink(
    output: torch.Tensor, arg: Any, where: str, is_own_memory: Callable[[int], bool]
) -> Callable[[torch.Tensor, list[int]], None]:
    """Return what takes one result: a copy into a planned slot, or a change of storage."""
    order = tuple(arg.dim_order) if isinstance(arg, Tensor) else ()

    def check(result: torch.Tensor) -> None:
        if result.dtype is not output.dtype:
            raise DelegateInvalidCompatibilityError(
                f"{where} is {output.dtype} in the program; the compiled code returns "
                f"{result.dtype}"
            )

    def copy(result: torch.Tensor, taken: list[int]) -> None:
        check(result)
        if output.shape != result.shape:
            _resize(output, result.shape, order)
        output.copy_(result)

    def take(result: torch.Tensor, taken: list[int]) -> None:
        if not output.untyped_storage().resizable():  # the executor has fixed its place since
            copy(result, taken)
            return
        check(result)
        pointer = result.untyped_storage().data_ptr()
        if pointer in taken or is_own_memory(pointer):
            result = result.clone()
            pointer = result.untyped_storage().data_ptr()
        taken.append(pointer)
        if not _has_order(result, order):
            _resize(output, result.shape, order)
            output.copy_(result)
            return
        output.set_(
            result.untyped_storage(), result.storage_offset(), result.size(), result.stride()
        )

    return take if output.untyped_storage().resizable() else copy


def _has_order(tensor: torch.Tensor, order: tuple[int, ...]) -> bool:
    return not order or tensor.permute(order).is_contiguous()


def _resize(tensor: torch.Tensor, shape: torch.Size, order: tuple[int, ...]) -> None:
    """Give a tensor another shape, keeping its dim order; a slot that is too small refuses."""
    tensor.resize_(shape)
    if order:
        tensor.as_strided_(shape, dense_strides(shape, order))
