"""Why a test fails, by pattern of its name. Without an entry, the table shows the message."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "extension/llm/custom_ops/test_preprocess_custom_ops.py": (
        "the file cannot be imported: two libraries define one namespace"
    ),
}
