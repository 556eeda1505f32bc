"""Why a test fails, by pattern of its name. Without an entry, the table shows the message."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "extension/llm/custom_ops/test_preprocess_custom_ops.py": (
        "the file cannot be imported: two libraries define one namespace"
    ),
    "backends/test/suite/operators/test_prelu.py*": (
        "no program comes out: the exporter's pass for channels last asserts (`Attempting to "
        "convert non-NHWC compatible node`)"
    ),
    "backends/test/suite/operators/test_lstm.py*int8*": (
        "the export took longer than the 120 s that the suite allows a test"
    ),
    "backends/xnnpack/test/recipes/*::test_all_models_with_recipes": (
        "needs torchvision, torchaudio and their weights"
    ),
    "export/tests/test_target_recipes.py*": "needs torchvision, torchaudio or timm",
}
