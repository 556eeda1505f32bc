"""``pteron run``: a method on inputs from files."""

from __future__ import annotations

import argparse
import logging
import time
from typing import TYPE_CHECKING, Any

from pteron.cli.arguments import positive, whole
from pteron.cli.files import add_data, add_file, find_plan
from pteron.cli.page import show_json
from pteron.cli.progress import steps
from pteron.errors import NotFoundError, PteronError

if TYPE_CHECKING:
    from pteron.executor.method import Method
    from pteron.runtime import Program

logger = logging.getLogger("pteron")

HELP = """\
Run a method of a program and show its outputs.

Give each input with --input, by name or in the program's order (`pteron inspect` lists them):
  NAME=photo.png        the input NAME; without NAME= the first input that has no value yet
  photo.png             a picture: .png .jpg .bmp .gif .webp .tif (see --image-scale)
  x.npy, x.npz          a numpy array, or several
  x.pt                  a tensor, or a list or dict of tensors, saved by torch.save
  x.safetensors         tensors
  x.npz:mask            one entry of a file that holds several
  3  -0.5  true  none   a number, truth value or None
  [1,2,3]               a small tensor, of the element type that the input has
  hello                 a string, where the input is one

The entries of .npz, .pt and .safetensors files go to the inputs of the same names. If the program
has no names, and no entry is called input_0, input_1 and so on, they go in their order. A name that
fits no input is an error.

A picture becomes grey or RGB as the input's channels ask, is resized to the input's height and
width if its own differ, and its values are scaled. An input shape of 1 x C x H x W, 1 x H x W x C,
C x H x W, H x W x C or H x W can take one, where C is 1, 3 or 4.
"""

EXAMPLES = """\
examples:
  pteron run digits.pte --input digits/7.png
  pteron run model.pte --random 0 --repeat 100            how fast is it
  pteron run model.pte --input image=photo.png --input temperature=0.5
  pteron run model.pte --input x.npy --output y.npz
  pteron run model.pte --input ids.pt --input '[[1,1,0]]' --method encode
  pteron run model.pte --data weights.ptd --random 0 --device-map cpu=cuda
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_file(parser)
    _add_input_arguments(parser)
    _add_output_arguments(parser)
    place = parser.add_argument_group("where and how it runs")
    add_data(place)
    place.add_argument(
        "--method",
        metavar="NAME",
        help="the method to run (default: forward, or the only one)",
    )
    place.add_argument(
        "--device-map",
        metavar="FROM=TO",
        type=device_move,
        action="append",
        default=[],
        help="put what the program plans on one device on another, such as cpu=cuda or "
        "cuda:0=cuda:1; may be given several times (default: as the program says)",
    )
    place.add_argument(
        "--native-code",
        choices=("allow", "refuse"),
        default="allow",
        help="whether delegates may run machine code that the file carries; `pteron inspect` "
        "shows it (default: allow)",
    )
    place.add_argument(
        "--no-optimize",
        action="store_true",
        help="run every instruction as the file has it: compute no constant at load, leave out no "
        "copy (default: optimize)",
    )
    place.add_argument(
        "--repeat",
        metavar="N",
        type=positive,
        default=1,
        help="run N times on the same inputs and state, and show how long it takes (default: 1)",
    )
    place.add_argument(
        "--verbose",
        action="store_true",
        help="say on stderr what happens: files, checks, kernels, delegates, bytes, milliseconds "
        "(default: no)",
    )


def _add_input_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("inputs")
    group.add_argument(
        "--input",
        metavar="WHAT",
        action="append",
        default=[],
        help="a file or a value, as above; once for each input, or a file with several "
        "(default: none)",
    )
    group.add_argument(
        "--random",
        metavar="SEED",
        type=int,
        help="fill the inputs that are not given with random numbers, the same for the same "
        "seed: normal floats, 8-bit integers over their range, other integers 0 or 1; dynamic "
        "shapes at their upper bound (default: all inputs have to be given)",
    )
    group.add_argument(
        "--cast",
        action="store_true",
        help="convert tensors to the element types that the program takes (default: refuse others)",
    )
    group.add_argument(
        "--image-scale",
        choices=("unit", "signed", "imagenet", "byte"),
        help="the values of a picture: unit 0 to 1; signed -1 to 1; imagenet unit, less mean, by "
        "deviation of ImageNet's channels; byte 0 to 255 (default: unit for float inputs; byte "
        "for integer ones, less 128 for int8)",
    )


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("outputs")
    group.add_argument(
        "--output",
        metavar="PATH",
        help="also save the outputs by name (output_0, output_1, ... where the program has no "
        "names): .npz, .safetensors, .pt (a dict), or .npy (of a single output) (default: only "
        "show them)",
    )
    group.add_argument(
        "--select",
        metavar="NAME",
        action="append",
        default=[],
        help="show and save this output only, by name or position; may be given several times "
        "(default: all outputs)",
    )
    group.add_argument(
        "--top",
        metavar="K",
        type=whole,
        help="show the K largest values of every float output of shape 1 x N; 0 shows none "
        "(default: 5, of the first such output)",
    )
    group.add_argument(
        "--labels",
        metavar="PATH",
        help="a text file with one label a line, one for each value of the scores, shown beside "
        "the largest values (default: none)",
    )
    group.add_argument(
        "--json", action="store_true", help="write the summary as JSON (default: text)"
    )


def device_move(text: str) -> tuple[str, str]:
    """Return (from, to) of ``cpu=cuda``."""
    source, equals, target = text.partition("=")
    if not (source and equals and target):
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM=TO, such as cpu=cuda")
    return source, target


def run(args: argparse.Namespace) -> int:
    """Load, run, show and save."""
    from pteron.cli.run_inputs import collect_inputs
    from pteron.cli.run_outputs import (
        check_labels,
        read_labels,
        save,
        show,
        summarise,
        writer_for,
    )
    from pteron.executor.signature import Signature
    from pteron.runtime import Runtime

    _set_up_log(verbose=args.verbose)
    labels = read_labels(args.labels) if args.labels is not None else None
    if args.output is not None:
        writer_for(args.output)
    with Runtime.get().load_program(
        args.file,
        data_path=args.data,
        device_map=dict(args.device_map),
        native_code=args.native_code,
        optimize=not args.no_optimize,
    ) as program:
        name = choose_method(program, args.method)
        signature = Signature(find_plan(program.pte, name))
        names = {info.name for info in signature.outputs}
        chosen = [int(one) if one.isdecimal() and one not in names else one for one in args.select]
        positions = signature.choose(chosen or range(len(signature.outputs)))
        facts = [signature.outputs[position] for position in positions]
        if labels is not None:
            check_labels(labels, args.labels, facts)
        inputs = collect_inputs(
            args.input,
            signature.inputs,
            seed=args.random,
            cast=args.cast,
            image_scale=args.image_scale,
        )
        begin = time.perf_counter()
        method = program.load_method(name)
        load_ms = 1e3 * (time.perf_counter() - begin)
        outputs, times_ms = _run(method, inputs, args.repeat)
        outputs = [outputs[position] for position in positions]
        summary = summarise(outputs, facts, top=args.top, labels=labels, method=name)
        if args.repeat > 1:
            summary["load_ms"], summary["run_ms"] = load_ms, times_ms
        if args.output is not None:
            try:
                save(outputs, facts, args.output)
            except PteronError:
                if not args.json:
                    show(summary).show()
                raise
            summary["saved_as"] = args.output
    if args.json:
        show_json(summary)
    else:
        show(summary).show()
    return 0


def choose_method(program: Program, name: str | None) -> str:
    """Return the method to run: the one asked for, ``forward``, or the only one."""
    names = [plan.name for plan in program.pte.program.execution_plan]
    if name is not None:
        program.metadata(name)
        return name
    if "forward" in names or len(names) == 1:
        return "forward" if "forward" in names else names[0]
    raise NotFoundError(
        f"the program has no method 'forward'; it has: {', '.join(names)}",
        hint="choose one with --method",
    )


def _run(method: Method, inputs: list[Any], repeat: int) -> tuple[list[Any], list[float]]:
    """Run several times from the same state; return the outputs and each run's milliseconds."""
    import torch

    times_ms: list[float] = []
    outputs: list[Any] = []
    with steps(repeat, "running") as rounds:
        for number in rounds:
            if number:
                method.reset()
            begin = time.perf_counter()
            outputs = method.execute(inputs)
            for output in outputs:
                if isinstance(output, torch.Tensor) and output.is_cuda:
                    torch.cuda.synchronize(output.device)
            times_ms.append(1e3 * (time.perf_counter() - begin))
            logger.info("ran method %r in %.3g ms", method.name, times_ms[-1])
    return outputs, times_ms


def _set_up_log(*, verbose: bool) -> None:
    for handler in [*logger.handlers]:  # of an earlier command in this process
        if isinstance(handler, _Stderr):
            logger.removeHandler(handler)
    if verbose:
        logger.addHandler(_Stderr())
        logger.setLevel(logging.INFO)
    else:
        logger.addHandler(logging.NullHandler())
        logger.setLevel(logging.NOTSET)


class _Stderr(logging.StreamHandler[Any]):
    """Writes the log to what stderr is when the command runs."""
