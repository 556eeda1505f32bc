"""``pteron run``: numbers against eager torch, inputs from every kind of file, outputs to each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional

from pteron.cli.images import load_image
from pteron.cli.run_inputs import collect_inputs
from pteron.errors import AccessFailedError, InvalidArgumentError, NotSupportedError
from pteron.executor.signature import ValueInfo, example_value
from pteron.format.pte import read_pte
from pteron.format.schema import Tensor, TensorShapeDynamism
from pteron.format.source import open_source
from pteron.program.constants import constant_bytes
from support.commands import DIGITS, MODULES, ROOT, cli

ADD = MODULES / "ModuleAdd.pte"  # x + alpha * y, alpha exported as 1.0
X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
Y = torch.tensor([[0.5, -2.0], [0.25, 8.0]])


def run_json(*words: str | Path) -> Any:
    done = cli("run", *words, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def outputs_of(tmp_path: Path, *words: str | Path) -> list[Any]:
    saved = tmp_path / "outputs.pt"
    run_json(*words, "--output", saved)
    outputs: dict[str, Any] = torch.load(saved, weights_only=True)
    return list(outputs.values())


# -- numbers --------------------------------------------------------------------------------------


def eager_digits(pixels: torch.Tensor) -> torch.Tensor:
    """Run the demo's network in eager torch, with the weights that the file holds."""
    pte = read_pte(open_source(ROOT / DIGITS))
    (plan,) = pte.program.execution_plan
    weights = [
        torch.frombuffer(bytearray(constant_bytes(pte, None, value)), dtype=torch.float32).reshape(
            value.sizes
        )
        for value in plan.values
        if isinstance(value, Tensor) and value.is_constant
    ]
    first, first_bias, second, second_bias, head, head_bias = weights
    x = functional.conv2d(pixels, first, first_bias, padding=1)
    x = functional.max_pool2d(functional.relu(x), 2)
    x = functional.conv2d(x, second, second_bias, padding=1)
    x = functional.max_pool2d(functional.relu(x), 2)
    return torch.softmax(functional.linear(x.flatten(1), head, head_bias), -1)


@pytest.mark.parametrize("digit", range(10))
def test_the_demo_recognises_its_digits_as_eager_does(digit: int, tmp_path: Path) -> None:
    image = ROOT / "demo" / "digits" / f"{digit}.png"
    (scores,) = outputs_of(tmp_path, DIGITS, "--input", image)
    pixels = torch.from_numpy(np.array(Image.open(image))).reshape(1, 1, 8, 8) / 255
    torch.testing.assert_close(scores, eager_digits(pixels))
    assert scores.argmax().item() == digit


def test_the_summary_tells_the_numbers_of_the_outputs(tmp_path: Path) -> None:
    words = (DIGITS, "--random", "3")
    (scores,) = outputs_of(tmp_path, *words)
    (output,) = run_json(*words)["outputs"]
    assert (output["dtype"], output["sizes"], output["nonfinite"]) == ("float32", [1, 10], 0)
    assert output["mean"] == pytest.approx(scores.double().mean().item())
    assert (output["min"], output["max"]) == (scores.min().item(), scores.max().item())
    assert output["first"] == scores.flatten()[:6].tolist()
    values, indices = scores.flatten().topk(5)
    assert [score["index"] for score in output["top"]] == indices.tolist()
    assert [score["value"] for score in output["top"]] == values.tolist()


def test_infinity_is_counted_and_left_out_of_the_mean(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[np.inf, 1], [2, np.nan]], np.float32))
    words = (ADD, "--input", tmp_path / "x.npy", "--input", "[[0,0],[0,0]]", "--input", "1.0")
    (output,) = run_json(*words)["outputs"]
    assert (output["nonfinite"], output["mean"], output["max"]) == (2, 1.5, 2.0)
    assert output["first"] == ["inf", 1.0, 2.0, "nan"]
    assert "inf 1 2 nan" in cli("run", *words).out


def test_labels_stand_beside_the_largest_values(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("zero one two three four five six seven eight nine".replace(" ", "\n"))
    done = cli("run", DIGITS, "--input", "demo/digits/7.png", "--labels", labels, "--top", "2")
    lines = done.out.split("largest values of output 0\n")[1].splitlines()
    assert len(lines) == 3
    assert lines[0].split() == ["index", "value", "label"]
    assert [lines[1].split()[at] for at in (0, 2)] == ["7", "seven"]


def test_repeating_starts_from_the_same_state(tmp_path: Path) -> None:
    words = (MODULES / "ModuleSharedState.pte", "--input", "[5]")
    (once,) = outputs_of(tmp_path, *words)
    saved = tmp_path / "many.pt"
    summary = run_json(*words, "--repeat", "3", "--output", saved)
    assert torch.equal(torch.load(saved, weights_only=True)["output_0"], once)
    assert len(summary["run_ms"]) == 3
    assert summary["load_ms"] > 0
    assert "; 3 runs: first " in cli("run", *words, "--repeat", "3").out


def test_data_files_are_used(tmp_path: Path) -> None:
    words = (MODULES / "ModuleLinearProgram.pte", "--data", MODULES / "ModuleLinearProgram.ptd")
    saved = np.frombuffer((ROOT / words[2]).read_bytes(), np.uint8)
    weight = torch.from_numpy(saved[0x180 : 0x180 + 36].copy().view(np.float32)).reshape(3, 3)
    bias = torch.from_numpy(saved[0x200 : 0x200 + 12].copy().view(np.float32))
    (output,) = outputs_of(tmp_path, *words, "--input", "[1,2,3]")
    expected = functional.linear(torch.tensor([1.0, 2.0, 3.0]), weight, bias)
    torch.testing.assert_close(output, expected)


# -- inputs from files ----------------------------------------------------------------------------


def write_inputs(folder: Path) -> dict[str, list[str | Path]]:
    np.save(folder / "x.npy", X.numpy())
    np.save(folder / "y.npy", Y.numpy())
    np.savez(folder / "both.npz", X.numpy(), Y.numpy())
    np.savez(folder / "named.npz", input_1=Y.numpy(), input_0=X.numpy())
    np.savez(folder / "more.npz", other=Y.numpy(), a=X.numpy(), b=Y.numpy())
    torch.save([X, Y, 1.0], folder / "all.pt")
    torch.save({"x": X, "y": Y}, folder / "dict.pt")
    save_file({"a": X, "b": Y}, folder / "both.safetensors")
    return {
        "npy": ["--input", folder / "x.npy", "--input", folder / "y.npy", "--input", "1.0"],
        "npz in order": ["--input", folder / "both.npz", "--input", "1.0"],
        "npz by name": ["--input", folder / "named.npz", "--input", "1.0"],
        "one entry": [
            *("--input", f"{folder}/more.npz:a"),
            *("--input", f"{folder}/dict.pt:y", "--input", "1.0"),
        ],
        "pt list": ["--input", folder / "all.pt"],
        "pt dict": ["--input", folder / "dict.pt", "--input", "1.0"],
        "safetensors": ["--input", folder / "both.safetensors", "--input", "1.0"],
        "text": ["--input", "[[1,2],[3,4]]", "--input", "[[0.5,-2],[0.25,8]]", "--input", "1"],
    }


KINDS = (
    "npy",
    "npz in order",
    "npz by name",
    "one entry",
    "pt list",
    "pt dict",
    "safetensors",
    "text",
)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_come_from_every_kind_of_file(kind: str, tmp_path: Path) -> None:
    words = write_inputs(tmp_path)[kind]
    (output,) = outputs_of(tmp_path, ADD, *words)
    assert torch.equal(output, X + Y)


def refusal(*words: str | Path) -> str:
    done = cli("run", *words)
    assert (done.code, done.out) == (1, "")
    return done.err


def test_another_element_type_is_converted_only_if_asked(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.double().numpy())
    words = (ADD, "--input", tmp_path / "x.npy", "--input", "[[1,1],[1,1]]", "--input", "1.0")
    assert refusal(*words) == (
        f"error: input 0, float32[2, 2], --input {tmp_path}/x.npy: it holds float64\n"
        "hint: --cast converts it\n"
    )
    (output,) = outputs_of(tmp_path, *words, "--cast")
    assert torch.equal(output, X + 1)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("unpickled",))

    torch.save(Evil(), tmp_path / "evil.pt")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("bad.npy", "bad.npz", "bad.pt", "bad.safetensors", "bad.png"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
    for path in sorted(tmp_path.iterdir()):
        text = refusal(DIGITS, "--input", path)
        assert text.startswith(f"error: input file {path} "), text
        assert "Weights" not in text
        assert "unpickled" not in text
    np.savez(tmp_path / "empty.npz")
    assert "holds nothing" in refusal(DIGITS, "--input", tmp_path / "empty.npz")
    assert "has no entry 'b'" in refusal(ADD, "--input", f"{write_one(tmp_path)}:b")


def write_one(folder: Path) -> Path:
    np.savez(folder / "one.npz", a=X.numpy())
    return folder / "one.npz"


def test_too_many_values_in_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=X.numpy(), b=Y.numpy())
    text = refusal(DIGITS, "--input", tmp_path / "two.npz")
    assert "holds 2 values, but the method takes input_0: float32[1, 1, 8, 8]" in text
    assert "two.npz:NAME; there are a, b" in text


# -- values ---------------------------------------------------------------------------------------


def tensor_value(dtype: str, *sizes: int, position: int = 0, dynamic: bool = False) -> ValueInfo:
    dynamism = TensorShapeDynamism.DYNAMIC_BOUND if dynamic else TensorShapeDynamism.STATIC
    return ValueInfo(
        "input",
        position,
        0,
        f"input_{position}",
        None,
        False,
        "tensor",
        None,
        dtype,
        sizes,
        dynamism,
        tuple(range(len(sizes))),
        0,
        True,
        "cpu",
    )


def other_value(kind: str, literal: Any = None, position: int = 0) -> ValueInfo:
    facts = (kind, literal, None, None, None, None, None, None, None)
    return ValueInfo("input", position, 0, f"input_{position}", None, False, *facts)


def placed(*values: ValueInfo) -> list[ValueInfo]:
    """Return values as the inputs of one method."""
    return [
        replace(value, position=position, name=f"input_{position}")
        for position, value in enumerate(values)
    ]


def test_literals() -> None:
    kinds = ("int", "float", "bool", "none", "str", "str")
    wanted = placed(*(other_value(kind) for kind in kinds))
    words = ["-3", "1e3", "False", "None", "plain words", '"3"']
    assert collect_inputs(words, wanted) == [-3, 1000.0, False, None, "plain words", "3"]


def test_lists_become_the_element_type_of_the_input() -> None:
    (tokens,) = collect_inputs(["[[1, 2]]"], [tensor_value("int64", 1, 2)])
    assert torch.equal(tokens, torch.tensor([[1, 2]]))
    (halves,) = collect_inputs(["[1, 2.5]"], [tensor_value("float16", 2)])
    assert halves.dtype == torch.float16
    (one,) = collect_inputs(["7"], [tensor_value("int32", 1, 1)])
    assert torch.equal(one, torch.tensor([[7]], dtype=torch.int32))
    for word in ("[1.5]", '["a"]', "[[1], [2, 3]]"):
        with pytest.raises(InvalidArgumentError):
            collect_inputs([word], [tensor_value("int64", 1)])


def test_random_inputs_are_those_of_the_seed() -> None:
    wanted = placed(
        tensor_value("float32", 50),
        tensor_value("bfloat16", 4),
        tensor_value("uint8", 500),
        tensor_value("int8", 500),
        tensor_value("int64", 50),
        tensor_value("bool", 50),
        tensor_value("complex64", 3),
        tensor_value("float32", 0),
        other_value("int", 7),
        other_value("none"),
    )
    first, again, other = (collect_inputs([], wanted, seed=seed) for seed in (1, 1, 2))
    for value, one, two in zip(wanted, first, again, strict=True):
        if value.is_tensor:
            assert one.dtype == value.dtype
            assert one.shape == value.shape
            assert torch.equal(one, two)
    assert not torch.equal(first[0], other[0])
    assert first[2].min() < 50 < 200 < first[2].max()
    assert first[3].min() < -100 < 100 < first[3].max()
    assert set(first[4].tolist()) == {0, 1}
    assert first[8:] == [7, None]


def test_a_type_that_torch_lacks_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="quint2x5"):
        example_value(tensor_value("quint2x5", 1), torch.Generator())


# -- pictures -------------------------------------------------------------------------------------


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """Return a picture of 3 x 2 pixels with other values in every channel."""
    pixels = np.arange(18, dtype=np.uint8).reshape(2, 3, 3) * 14
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_colours_become_channels(picture: Path) -> None:
    pixels = torch.from_numpy(np.array(Image.open(picture)))
    first = load_image(picture, tensor_value("float32", 1, 3, 2, 3), None)
    assert torch.equal(first, (pixels.float() / 255).permute(2, 0, 1)[None])
    assert first.is_contiguous()
    last = load_image(picture, tensor_value("float32", 1, 2, 3, 3), None)
    assert torch.equal(last, (pixels.float() / 255)[None])
    assert load_image(picture, tensor_value("float32", 3, 2, 3), None).shape == (3, 2, 3)
    with_alpha = load_image(picture, tensor_value("uint8", 4, 2, 3), None)
    assert torch.equal(with_alpha[:3], pixels.permute(2, 0, 1))
    assert set(with_alpha[3].flatten().tolist()) == {255}


def test_grey_is_the_usual_mix(picture: Path) -> None:
    grey = torch.from_numpy(np.array(Image.open(picture).convert("L")))
    for sizes in ((1, 1, 2, 3), (1, 2, 3, 1), (2, 3), (1, 2, 3)):
        loaded = load_image(picture, tensor_value("float32", *sizes), None)
        assert list(loaded.shape) == list(sizes)
        assert torch.equal(loaded.reshape(2, 3), grey.float() / 255)


@pytest.mark.parametrize(
    ("dtype", "scale", "expected"),
    [
        ("float32", None, lambda p: p / 255),
        ("float32", "unit", lambda p: p / 255),
        ("float16", "signed", lambda p: p / 255 * 2 - 1),
        ("float32", "byte", lambda p: p),
        ("uint8", None, lambda p: p),
        ("int8", None, lambda p: p - 128),
        ("int64", "byte", lambda p: p),
        (
            "float32",
            "imagenet",
            lambda p: (
                (p / 255 - torch.tensor([0.485, 0.456, 0.406]))
                / torch.tensor([0.229, 0.224, 0.225])
            ),
        ),
    ],
)
def test_values_are_scaled(picture: Path, dtype: str, scale: str | None, expected: Any) -> None:
    pixels = torch.from_numpy(np.array(Image.open(picture))).float()
    loaded = load_image(picture, tensor_value(dtype, 2, 3, 3), scale)
    wanted = expected(pixels).to(getattr(torch, dtype))
    torch.testing.assert_close(loaded, wanted)


def test_a_picture_is_resized_or_kept_if_the_shape_is_dynamic(picture: Path) -> None:
    assert load_image(picture, tensor_value("float32", 1, 3, 8, 8), None).shape == (1, 3, 8, 8)
    dynamic = tensor_value("float32", 4, 3, 8, 8, dynamic=True)
    assert load_image(picture, dynamic, None).shape == (1, 3, 2, 3)
    small = tensor_value("float32", 1, 3, 8, 2, dynamic=True)
    assert load_image(picture, small, None).shape == (1, 3, 8, 2)


def test_a_picture_is_turned_as_its_exif_data_say(tmp_path: Path) -> None:
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    exif = image.getexif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "turned.png", exif=exif)
    loaded = load_image(tmp_path / "turned.png", tensor_value("uint8", 2, 3), None)
    assert loaded.flatten().tolist() == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("value", "scale", "words"),
    [
        (tensor_value("float32", 1, 5, 2, 6), None, "does not take a picture"),
        (tensor_value("float32", 2, 3, 2, 3), None, "does not take a picture"),
        (tensor_value("float32", 10), None, "does not take a picture"),
        (tensor_value("bool", 3, 2, 3), None, "does not take a picture"),
        (other_value("int", 3), None, "does not take a picture"),
        (tensor_value("uint8", 3, 2, 3), "unit", "makes fractions"),
        (tensor_value("float32", 1, 2, 3), "imagenet", "is for 3 channels"),
    ],
)
def test_inputs_that_take_no_picture(
    picture: Path, value: ValueInfo, scale: str | None, words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        load_image(picture, value, scale)


def test_pictures_that_cannot_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = tensor_value("float32", 2, 3)
    Image.fromarray(np.full((2, 3), 60_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(NotSupportedError, match="more than 8 bits a channel"):
        load_image(tmp_path / "deep.png", value, None)
    with pytest.raises(AccessFailedError, match="does not exist"):
        load_image(tmp_path / "none.png", value, None)
    Image.new("L", (40, 40)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(AccessFailedError, match="decompression bomb"):
        load_image(tmp_path / "bomb.png", value, None)


# -- outputs to files -----------------------------------------------------------------------------

SUM = ("--input", "[[1,2],[3,4]]", "--input", "[[1,1],[1,1]]", "--input", "1.0")


def test_outputs_are_saved_in_every_kind_of_file(tmp_path: Path) -> None:
    for suffix in ("npz", "npy", "pt", "safetensors"):
        path = tmp_path / f"y.{suffix}"
        done = cli("run", ADD, *SUM, "--output", path)
        assert (done.code, done.err) == (0, "")
        assert f"saved as {path}" in done.out
    saved = [
        torch.from_numpy(np.load(tmp_path / "y.npz")["output_0"]),
        torch.from_numpy(np.load(tmp_path / "y.npy")),
        torch.load(tmp_path / "y.pt", weights_only=True)["output_0"],
        load_file(tmp_path / "y.safetensors")["output_0"],
    ]
    assert all(torch.equal(tensor, X + 1) for tensor in saved)
    assert len(list(tmp_path.iterdir())) == 4  # and no half-written file


def test_outputs_that_a_file_cannot_hold(tmp_path: Path) -> None:
    none = (MODULES / "ModuleSharedState.pte", "--method", "set_state", "--input", "[1]")
    done = cli("run", *none, "--output", tmp_path / "y.npz")
    assert "output_0 is none, which a numpy file cannot hold" in done.err
    assert (done.code, "output 0  none" in done.out) == (1, True)  # the results are still shown
    assert "files of this kind are not known" in refusal(ADD, *SUM, "--output", tmp_path / "y.txt")
    missing = tmp_path / "no" / "y.npz"
    assert f"the folder {tmp_path}/no does not exist" in refusal(ADD, *SUM, "--output", missing)
    assert list(tmp_path.iterdir()) == []
    assert outputs_of(tmp_path, *none) == [None]


# -- refusals of the program ----------------------------------------------------------------------


def test_a_missing_backend_and_a_missing_device_are_told() -> None:
    text = refusal(MODULES / "ModuleAddWithDevice.pte", "--random", "0")
    assert "BackendWithCompilerDemo" in text
    assert "hint: " in text


def test_the_only_method_is_run_and_others_are_asked_for(tmp_path: Path) -> None:
    data = (ROOT / ADD).read_bytes()
    renamed = tmp_path / "renamed.pte"
    renamed.write_bytes(data.replace(b"forward", b"sum_two"))
    assert run_json(renamed, *SUM)["method"] == "sum_two"
    two = tmp_path / "two.pte"
    multiple = (ROOT / MODULES / "ModuleMultipleEntry.pte").read_bytes()
    two.write_bytes(multiple.replace(b"forward\0", b"another\0"))
    text = refusal(two, "--random", "0")
    assert "it has: another, forward2" in text or "it has: forward2, another" in text
    assert "hint: choose one with --method" in text
    assert "no method 'backward'" in refusal(ADD, "--method", "backward")


# -- names ----------------------------------------------------------------------------------------


def test_values_reach_the_inputs_of_their_names_in_any_order(tmp_path: Path) -> None:
    """The encoder sums the masked rows of a table; swapped inputs would give another sum."""
    table = ((torch.arange(40) % 7 - 3) / 2).reshape(20, 2)
    ids, mask = torch.tensor([[1, 2, 3, 4, 5, 6]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    wanted = (table[ids] * mask[..., None]).sum((1, 2))
    swapped = (table[mask] * ids[..., None]).sum((1, 2))
    assert wanted != swapped
    torch.save({"attention_mask": mask, "input_ids": ids}, tmp_path / "both.pt")
    save_file({"attention_mask": mask}, tmp_path / "mask.safetensors")
    np.savez(tmp_path / "ids.npz", input_ids=ids.numpy())
    np.save(tmp_path / "ids.npy", ids.numpy())
    encoder = "tests/cli/files/named_enc.pte"
    for words in (
        ("--input", tmp_path / "both.pt"),
        ("--input", tmp_path / "mask.safetensors", "--input", tmp_path / "ids.npz"),
        ("--input", tmp_path / "mask.safetensors", "--input", tmp_path / "ids.npy"),
        ("--input", "attention_mask=[[1,1,1,1,0,0]]", "--input", f"input_ids={tmp_path}/ids.npy"),
    ):
        assert torch.equal(outputs_of(tmp_path, encoder, *words)[0], wanted)


def test_outputs_called_like_arguments_of_numpy_are_saved(tmp_path: Path) -> None:
    from pteron.cli.run_outputs import save

    info = replace(tensor_value("float32", 2), role="output", name="file", is_named=True)
    save([torch.ones(2)], [info], str(tmp_path / "y.npz"))
    with np.load(tmp_path / "y.npz") as saved:
        assert saved["file"].tolist() == [1.0, 1.0]
