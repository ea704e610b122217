"""Generates relations of the rarer kinds: WITH, LATERAL, PIVOT, UNPIVOT, generators, time windows, nested values, and
rows that are only counted."""

from __future__ import annotations

from tests.kit.expressions import Column
from tests.kit.relations import Relation, Relations, exact, pairs_of, where_of


class RareRelations(Relations):
    def _with(self, depth: int) -> Relation:
        """One or two names; the second may read the first. Relations below read them more often than tables."""
        known = len(self._shared)
        named = []
        for _ in range(1 + self.rng.below(2)):
            made = self.relation(max(1, depth))
            name = self._alias("w")
            named.append(f"{name} AS ({made.sql})")
            self._shared.append(Relation(f"SELECT * FROM {name}", made.columns))
        body = self.relation(max(1, depth))
        del self._shared[known:]
        return Relation(f"WITH {', '.join(named)} {body.sql}", body.columns)

    def _count(self, depth: int) -> Relation:
        """A join of which no column of one side, or of both, is read."""
        left_source, left = self._source(depth)
        right_source, right = self._source(self.rng.below(depth + 1))
        if self.rng.below(2):
            pairs = pairs_of(left, right)
            a, b = self._one(pairs) if pairs else (Column("1", "whole"), Column("1", "whole"))
            join = self._one((f"CROSS JOIN {right_source}", f"JOIN {right_source} ON {a.name} = {b.name}"))
            return self._made([Column("count(*)", "whole")], f"FROM {left_source} {join}")
        value = self._expressions.aggregate(right, is_rough=False)
        having = self._one(("", " HAVING count(*) > 2"))
        other = f"(SELECT {value.name} AS n FROM {right_source}{having})"
        join = self._one(("CROSS JOIN {}", "LEFT JOIN {} ON true", "LEFT SEMI JOIN {} ON true"))
        return self._made(self._some(left, 3), f"FROM {left_source} {join.format(other)}")

    def _lateral(self, depth: int) -> Relation:
        left_source, left = self._source(depth)
        right_source, right = self._source(self.rng.below(depth + 1))
        conditions = [f"{a.name} = {b.name}" for a, b in pairs_of(left, right)[:1]]
        value = self._one(exact(right))
        match self.rng.below(4):
            case 0:
                select, cut = "SELECT DISTINCT", ""
            case 1:
                select, cut = "SELECT", f" ORDER BY v {self._one(('LIMIT 1', 'DESC LIMIT 2', 'LIMIT 2 OFFSET 1'))}"
            case _:
                select, cut = "SELECT", ""
                value = self._expressions.aggregate(right, is_rough=False)
        alias = self._alias("l")
        inner = f"LATERAL ({select} {value.name} AS v FROM {right_source}{where_of(conditions)}{cut}) AS {alias}"
        joined = self._one((f", {inner}", f" JOIN {inner} ON true", f" LEFT JOIN {inner} ON true"))
        return self._made([*self._some(left, 2), Column(f"{alias}.v", value.kind)], f"FROM {left_source}{joined}")

    def _pivot(self, depth: int) -> Relation:
        source, columns = self._source(depth)
        operands = self._operands(columns, columns)
        key, by, value = self._one(exact(columns)), *(self._expressions.value("whole", operands)[0] for _ in range(2))
        read = f"(SELECT {key.name} AS g, {by} AS p, {value} AS v FROM {source})"
        made = "PIVOT (count(*) AS n, sum(v) AS s FOR p IN (0 AS p0, 1 AS p1))"
        shown = [Column("g", key.kind), *(Column(name, "whole") for name in ("p0_n", "p0_s", "p1_s"))]
        return self._made(shown, f"FROM {read} {made}")

    def _unpivot(self, depth: int) -> Relation:
        source, columns = self._source(depth)
        operands = self._operands(columns, columns)
        key, first, second = (
            self._one(exact(columns)),
            *(self._expressions.value("whole", operands)[0] for _ in range(2)),
        )
        read = f"(SELECT {key.name} AS g, {first} AS a, {second} AS b FROM {source})"
        made = f"UNPIVOT {self._one(('', 'INCLUDE NULLS '))}(v FOR n IN (a, b))"
        return self._made([Column("g", key.kind), Column("n", "text"), Column("v", "whole")], f"FROM {read} {made}")

    def _tumbling(self, depth: int) -> Relation:
        source, columns = self._source(depth)
        time = self._expressions.value("time", columns)[0]
        window = self._one(("'10 seconds'", "'10 seconds', '5 seconds'", "'1 minute', '1 minute', '7 seconds'"))
        keys = [column for column in self._some(exact(columns), 2) if self.rng.below(2)]
        values = [self._expressions.aggregate(columns) for _ in range(1 + self.rng.below(2))]
        names = dict.fromkeys([*(key.name for key in keys), f"window({time}, {window})"])
        shown = [*keys, Column("window.start", "time"), *values]
        return self._made(shown, f"FROM {source} GROUP BY {', '.join(names)}")

    def _generate(self, depth: int) -> Relation:
        source, columns = self._source(depth)
        operands = self._operands(columns)
        whole, items, pairs, dicts = (
            self._expressions.value(kind, operands)[0] for kind in ("whole", "list", "pair", "dict")
        )
        first, second = self._alias("e"), self._alias("e")
        outer = self._one(("", "OUTER "))
        made, kinds = self._one(
            (
                (f"posexplode({items})", ("whole", "whole")),
                (f"explode({dicts})", ("text", "whole")),
                (f"inline(array({pairs}, named_struct('a', {whole}, 'b', 'x')))", ("whole", "text")),
                (f"stack(2, {whole}, 'a', 0L, 'b')", ("whole", "text")),
            )
        )
        names = [Column(name, kind) for name, kind in zip((first, second), kinds, strict=True)]
        view = f"LATERAL VIEW {outer}{made} AS {first}, {second}"
        shown = [Column(f"CAST({each.name} AS BIGINT)", "whole") if each.kind == "whole" else each for each in names]
        return self._made([*self._some(columns, 2), *shown], f"FROM {source} {view}")

    def _nested(self, depth: int) -> Relation:
        """Values of nested types, computed below, which are keys, arguments or output columns above."""
        source, columns = self._source(depth)
        kinds = ("pair", "list", "span", "date", "dict", "variant")
        made = [Column(*self._expressions.value(kind, self._operands(columns))) for kind in kinds]
        below = self._made([*made, *self._some(columns, 2)], f"FROM {source}")
        alias = self._alias()
        found = [Column(f"{alias}.{column.name}", column.kind) for column in below.columns]
        read = f"FROM ({below.sql}) AS {alias}"
        keys = self._some(found[:4], 2)
        names = ", ".join(key.name for key in keys)
        match self.rng.below(5):
            case 0:
                values = [self._expressions.aggregate(found) for _ in range(2)]
                return self._made([*keys, *values], f"{read} GROUP BY {names}")
            case 1:
                return self._made(keys, read, "SELECT DISTINCT")
            case 2:
                order = ", ".join(column.name for column in exact(found))
                value = Column(f"CAST(row_number() OVER (PARTITION BY {names} ORDER BY {order}) AS BIGINT)", "whole")
                return self._made([*exact(found), value], read)
            case 3:
                other_source, others = self._source(0)
                pairs = pairs_of(found, others)
                a, b = self._one(pairs) if pairs else (Column("1", "whole"), Column("1", "whole"))
                join = self._one(("JOIN", "LEFT JOIN", "LEFT ANTI JOIN"))
                return self._made(self._some(found, 4), f"{read} {join} {other_source} ON {a.name} = {b.name}")
        return self._made([*found, *self._expressions.several(found, 3)], read)
