"""Why a test fails, by pattern of its name. Without an entry, the table shows the message."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "exir/tests/test_memory_format_ops_pass.py": "the file imports torchvision",
}
