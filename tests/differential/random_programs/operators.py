"""All rows of the table, by name. To add an operator, add one row to one of these files."""

from __future__ import annotations

from differential.random_programs.own_delegates import DELEGATES
from differential.random_programs.own_kernels import OWN
from differential.random_programs.rows_changes import CHANGES
from differential.random_programs.rows_math import MATH
from differential.random_programs.rows_views import VIEWS
from differential.random_programs.table import Row

ROWS: dict[str, Row] = {row.name: row for row in (*VIEWS, *MATH, *CHANGES, *OWN, *DELEGATES)}
