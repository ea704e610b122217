"""Condenses the rows of a large run on the executors, for a reader that only counts and adds them up.

A join may make many more rows than it reads. If their only reader is an aggregate with few groups, it is a waste to
bring each row to the driver. So the executors group the rows, and the driver decodes each group to a few rows of a
delta, which have the same counts and sums as the rows of the group, and so the same effect on the aggregate.

1. Each column has a use. Rows are grouped by the columns that are needed by VALUE: keys, conditions, arguments of MIN
   and MAX. Floats are grouped by their bits. A column of which only NULL matters is COUNTed. A column that is only
   added up and counted is SUMmed.
2. A sum is computed as sums of *limbs* of 24 bits, the last one with the sign, which cannot overflow below 2^39 rows.
   A limb's sum S becomes a row with the value 2^(24 * place) and the diff S. So a group of n rows becomes

       base                every summed column is 0, or NULL if it can be NULL; every counted column is NULL
       per counted column  any of its values, and the diff is the number of values
       per summed column   0, if it can be NULL, and the diff is the number of values
       per limb            2^(24 * place), and the diff is the sum of the limb

   All columns that a row does not name are as in the base. The diff of the base, and of the 0 of a summed column,
   is reduced by those of the other rows, so that the group still has n rows and the column its number of values.
3. A summed column of floats is part of the grouping, by sign and exponent. Then all values of a group are integers
   times one power of two, the unit: their leading bit, which they share, and the sum of the other bits, in limbs. The
   base has the value of the leading bit, or NULL, NaN or infinity. The diffs of the rows for the limbs and of one for 0
   add up to 0, so that they do not change how often the other columns have the value of the base.
4. A group of one row is decoded to that row: each sum is its value.
5. A BIGINT whose average is needed is added up as a double: if one is not exact as a double, the rows of the run cannot
   be condensed. Nor are they if a sum of Spark exceeds 38 digits, or if the delta would be longer than they are, as for
   many summed columns of small groups.
6. The first run condenses a sample of its rows, to find out whether there will be many groups, as with different
   arguments of MIN. If so, or if a run shows it, the rows are not condensed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.walk import read_list
from evertide.plan.fragment.condensed_column import ColumnUse, make_condensed_column
from evertide.rows.changes import DIFF_FIELD
from evertide.rows.columns import Longs, to_array

_ROWS_FEW = 1 << 20
"""A delta of this length costs little, even if the groups have fewer rows."""
_ROWS_SAMPLED = 16_384
_LENGTH_MAX = 2
"""Rows of the expected delta, per row that the run reads, up to which it pays to condense."""
_FACTOR = 4
"""Rows per group, above which it pays to condense many rows."""


class Condenser:
    """Condenses rows with these columns; `uses` says what of each column the reader needs."""

    def __init__(self, catalyst: Catalyst, schema: pa.Schema, uses: Sequence[ColumnUse]) -> None:
        self._catalyst = catalyst
        self._fields = pa.schema([*schema, DIFF_FIELD])
        self._columns = [make_condensed_column(catalyst, *each) for each in zip(schema, uses, strict=True)]
        self.is_worthwhile = True
        """Whether the last rows could be condensed, and to much fewer."""

    def condense(self, plan: Any) -> Any:
        """Group the rows of a Catalyst plan, whose last column is the diff, 1 or -1."""
        make = self._catalyst
        *columns, diff = read_list(plan.output())
        pairs = list(zip(self._columns, columns, strict=True))
        grouped = [make.alias(each.group(column), "g") for each, column in pairs if each.is_grouped]
        groups = [diff, *(alias.toAttribute() for alias in grouped)]
        found = [make.count_rows(), *(measure for each, column in pairs for measure in each.measure(column))]
        measures = [make.alias(each, "m") for each in found]
        return make.aggregate(groups, [*groups, *measures], make.project([diff, *columns, *grouped], plan))

    def sample(self, plan: Any) -> Any:
        """Like `condense`, for a sample of the rows."""
        return self.condense(self._catalyst.limit(_ROWS_SAMPLED, plan))

    def judge(self, sample: pa.Table, rows_read: int) -> None:
        """Set `is_worthwhile`: whether the expected delta is short, compared with the rows that the run reads.

        The number of groups is estimated from those that are once and twice in the sample (Chao's estimator).
        """
        counts: Longs = sample.column(self._count_at).to_numpy()
        ones, twos = (int(np.count_nonzero(counts == each)) for each in (1, 2))
        unseen = ones * (ones - 1) / (2 * (twos + 1)) if counts.sum() >= _ROWS_SAMPLED else 0
        rows_each = 1 + sum(each.measures for each in self._columns)
        self.is_worthwhile = not unseen or (sample.num_rows + unseen) * rows_each <= _LENGTH_MAX * rows_read

    def expand(self, found: pa.Table) -> pa.Table | None:
        """The groups as a delta; None if a value is not exact as a double, or the delta would be too long."""
        counts: Longs = found.column(self._count_at).to_numpy()
        is_one = np.equal(counts, 1)
        rows_max = max(int(counts.sum()), _ROWS_FEW)
        parts = self._decode(found.filter(pa.array(~is_one)), rows_max)
        self.is_worthwhile = parts is not None and _FACTOR * found.num_rows <= rows_max
        return None if parts is None else pa.concat_tables([self._restore(found.filter(pa.array(is_one))), *parts])

    def _decode(self, found: pa.Table, rows_max: int) -> list[pa.Table] | None:
        """The rows for each group; None if a value is not exact as a double, or there are more rows."""
        sign, rest, groups, measures = self._split(found)
        count = found.num_rows
        base = [each.make_base(group, count) for each, group in zip(self._columns, groups, strict=True)]
        parts: list[tuple[list[Any], Longs]] = []
        for at, each in enumerate(self._columns):
            rows = each.read(groups[at], measures[at], count)
            if rows is None:
                return None
            for value, diffs in rows:
                parts.append(([*base[:at], value, *base[at + 1 :]], diffs))
                rest = rest - diffs
        parts.append((base, rest))
        if sum(np.count_nonzero(diffs) for _, diffs in parts) > rows_max:
            return None
        return [self._make_rows(arrays, diffs, sign) for arrays, diffs in parts]

    def _restore(self, found: pa.Table) -> pa.Table:
        """The row of each group of one row."""
        sign, count, groups, measures = self._split(found)
        columns = zip(self._columns, groups, measures, strict=True)
        return self._make_rows([each.restore(group, own, found.num_rows) for each, group, own in columns], count, sign)

    def _split(self, found: pa.Table) -> tuple[Longs, Longs, list[Any], list[list[Any]]]:
        """Of each group the sign, the number of rows, and by column what it is grouped by, and what was measured."""
        columns = map(to_array, found.combine_chunks().columns)
        sign: Longs = next(columns).to_numpy()
        groups = [next(columns) if each.is_grouped else None for each in self._columns]
        count: Longs = next(columns).to_numpy()
        return sign, count, groups, [[next(columns) for _ in range(each.measures)] for each in self._columns]

    @property
    def _count_at(self) -> int:
        """The position of the number of rows among the columns of the groups."""
        return 1 + sum(each.is_grouped for each in self._columns)

    def _make_rows(self, arrays: list[Any], diffs: Longs, sign: Longs) -> pa.Table:
        table = pa.Table.from_arrays([*arrays, pa.array(diffs * sign)], schema=self._fields)
        return table.filter(pa.array(np.not_equal(diffs, 0)))
