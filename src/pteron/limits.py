"""Every cap on what a file may ask for, in one place.

A file that goes over one is refused by name before anything is allocated for it. The numbers are
far above what exporters write and far below what would hurt the process.
"""

from __future__ import annotations

from typing import Final

MAX_TENSOR_RANK: Final = 16
"""kTensorDimensionLimit of ExecuTorch (CVE-2025-54951)."""

MAX_METHODS: Final = 1_024
MAX_VALUES_PER_METHOD: Final = 4_000_000
MAX_INSTRUCTIONS_PER_METHOD: Final = 2_000_000
MAX_ARGUMENTS_PER_CALL: Final = 65_536
MAX_ARGUMENTS_PER_METHOD: Final = 20_000_000
"""Values named by all calls of a method, lists counted by their items: two million calls of ten."""

MAX_OPERATORS_PER_METHOD: Final = 65_536
MAX_DELEGATES_PER_METHOD: Final = 65_536
MAX_SEGMENTS: Final = 1_000_000
MAX_NAMED_DATA: Final = 1_000_000
MAX_PLANNED_BUFFERS: Final = 256
MAX_NAME_BYTES: Final = 65_536

MAX_TABLES: Final = 20_000_000
"""Tables read from one flatbuffer: a file whose vectors share entries cannot unroll for ever."""

MAX_ARENA_BYTES: Final = 1 << 42
"""One planned buffer (4 TiB): above any machine, so that a sum of buffers stays meaningful."""

MAX_TENSOR_BYTES: Final = 1 << 42

MAX_FILE_BYTES: Final = 1 << 45
"""A header that announces more (32 TiB) is damaged; one that announces less was cut short."""

JUMP_BUDGET: Final = 100_000_000
"""Jumps that one execution may take before it is stopped as endless."""

BRIDGE_LOAD_SECONDS: Final = 120.0
"""How long a delegate may take to load in a process of its own, the start of the process included.
Some backends compile what they load."""

MAX_BRIDGE_ANSWER_BYTES: Final = 1 << 20
"""What such a process may answer besides tensors: a few words and shapes."""

MAX_VIOLATIONS_REPORTED: Final = 50
