"""Programs that the peer's operator suite made, against what eager PyTorch gave at export."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from support import golden

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def corpus(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the corpus, unpacked."""
    archive = shared / "fixtures" / "golden.tar.xz"
    if not archive.exists():
        pytest.skip(f"the golden corpus ({archive.name}) is not in the shared folder")
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    found = next(folder.rglob("portable"))
    assert found.is_dir()
    return found.parent


# The wheel at the same tolerance gives the same counts. The two that differ: an XNNPACK delegate
# has no word for gelu's tanh approximation, so its file asks for the exact form.
GELU = {"gelu_f32_tanh_approximation.pte", "gelu_f32_tanh_boundary_values.pte"}


@pytest.mark.parametrize(
    ("flow", "same", "not_replayable", "different"),
    [
        ("portable", 324, 24, set()),
        ("xnnpack", 169, 9, GELU),
        ("xnnpack_static_int8_per_channel", 7, 0, set()),
    ],
)
def test_programs_give_what_eager_gave(
    corpus: Path, flow: str, same: int, not_replayable: int, different: set[str]
) -> None:
    result = golden.replay(corpus / flow)
    others = [f"{k}: {v}" for k, v in result.problems.items() if k not in different]
    assert not others, "\n".join(others)
    assert set(result.problems) == different
    assert result.counts["same"] == same
    assert result.counts["not replayable"] == not_replayable
