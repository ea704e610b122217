"""The connector `postgres`: its options, and the name of a table's source.

    CREATE TABLE orders (id BIGINT NOT NULL, amount DECIMAL(10, 2), PRIMARY KEY (id))
    USING postgres OPTIONS (url '${ENV:PGURL}', table 'public.orders', slot 'evertide')

| option | meaning |
|---|---|
| table | schema and name on the server; default: the table's own name in `public` |
| url | `postgresql://user:password@host:port/database`; instead of it, or in addition: |
| host, port, dbname, user, password, sslmode, sslrootcert, sslcert, sslkey | as in libpq |
| slot | the replication slot, created if missing; default: `evertide` |
| publication | created for these tables if missing; default: the slot's name |
| snapshot | `initial`: start with the content of the tables; `none`: only later changes; default: `initial` |
| idle_interval | seconds after which an idle slot is advanced; default: 10 |
| fragment_rows | rows that are staged together; default: 50000 |
| partitions | `check`: report detached, dropped or truncated partitions; `keep`: keep their rows; default: `check` |

1. All tables with the same slot are one source, named after the slot: their transactions arrive complete, and in commit
   order.
2. All options except `table` belong to the source. Any of its tables may set them; two tables must not contradict.
3. Values may refer to secrets: `${ENV:NAME}`, `${FILE:path}`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from evertide.errors import InvalidInput
from evertide.extras import import_extra
from evertide.options import Options
from evertide.runtime import Runtime
from evertide.secrets import Secrets
from evertide.sources.contract import Source, StagingStore, TableDeclaration, merge_options

_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_DEFAULT_SLOT = "evertide"


def name_postgres_source(declaration: TableDeclaration) -> str:
    """The name of a table's source: the slot."""
    given = {name.lower(): value for name, value in declaration.options.items()}
    slot = given.get("slot", _DEFAULT_SLOT)
    if not _SLOT.fullmatch(slot) or slot == "push":
        where = declaration.place
        why = f"the option 'slot' is {slot!r}: expected 1 to 63 lower-case letters, digits and underscores, not 'push'"
        raise InvalidInput(where=where, why=why)
    return slot


def open_postgres(
    name: str, tables: Sequence[TableDeclaration], runtime: Runtime, base: Path, staging: StagingStore
) -> Source:
    where = tables[0].place
    import_extra("psycopg", "postgres", where)
    from evertide.sources.postgres.source import open_source  # noqa: PLC0415 - psycopg is an extra

    secrets = Secrets(base)
    options = Options(merge_options(tables, "table"), connector="postgres", where=where, secrets=secrets)
    return open_source(
        name,
        {table.name: (table, _remote(table)) for table in tables},
        options,
        secrets,
        runtime,
        staging,
    )


def _remote(declaration: TableDeclaration) -> str:
    given = {option.lower(): value for option, value in declaration.options.items()}
    return given.get("table") or declaration.name
