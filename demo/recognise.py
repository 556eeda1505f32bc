"""Recognise the handwritten digits in PNG files: ``python recognise.py digits/*.png``.

The first character of a file's name is the right answer; it is printed beside what was seen.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import torch
from PIL import Image

from pteron import Runtime

PROGRAM = Path(__file__).with_name("digits.pte")


def read_pixels(path: Path) -> torch.Tensor:
    """Return the image as the network wants it: ``(1, 1, 8, 8)``, numbers from 0 to 1."""
    grey = numpy.array(Image.open(path).convert("L"))
    return torch.from_numpy(grey).reshape(1, 1, 8, 8).float() / 255


def main(paths: list[Path]) -> int:
    right = 0
    with Runtime.get().load_program(PROGRAM) as program:
        method = program.load_method("forward")
        print("image    recognised    sure  right answer")
        for path in paths:
            (probabilities,) = method.execute([read_pixels(path)])
            seen, answer = int(probabilities.argmax()), int(path.stem[0])
            right += seen == answer
            sure = float(probabilities.max())
            mark = "" if seen == answer else "  wrong"
            print(f"{path.name:<8} {seen:>10}  {sure:6.1%}  {answer:>12}{mark}")
    print(f"{right} of {len(paths)} right")
    return 0 if right == len(paths) else 1


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    raise SystemExit(main(given or sorted(PROGRAM.with_name("digits").glob("*.png"))))
