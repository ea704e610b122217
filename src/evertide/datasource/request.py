"""Parse the options of `spark.read.format("evertide")`. Unknown options and invalid values are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evertide.errors import InvalidInput
from evertide.options import Options
from evertide.secrets import Secrets
from evertide.settings import Settings

FORMAT = "evertide"

WHERE = f"spark.read.format({FORMAT!r})"
_LEASE_S = 900
_PARTITION_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    storage: str
    """Absolute, as executors run in other directories than the planner."""
    collection: str
    meta: str | None = field(default=None, repr=False)
    """With secrets resolved, as executors may not have them; therefore excluded from `repr`."""
    as_of: int | None = None
    changes_after: int | None = None
    columns: tuple[str, ...] = ()
    """Empty for all columns."""
    where: str = ""
    lease_s: int = _LEASE_S
    partition_bytes: int = _PARTITION_BYTES

    @classmethod
    def of(cls, named: Mapping[str, str]) -> Request:
        options = Options(named, connector=FORMAT, where=WHERE, secrets=Secrets(Path()))
        path, collection = options.text("path"), options.text("collection")
        if path and collection and path != collection:
            raise options.refusal("collection", f"is {collection!r}, but the argument of load() is {path!r}")
        request = cls(
            storage=_make_absolute(options.require("storage", "./shop.evertide")),
            collection=path or options.require("collection", "revenue"),
            meta=options.text("meta") or None,
            as_of=options.integer("as_of", 0) if options.text("as_of") else None,
            changes_after=options.integer("changes_after", 0, least=-1) if options.text("changes_after") else None,
            columns=_parse_columns(options),
            where=options.text("where").strip(),
            lease_s=options.integer("lease_s", _LEASE_S, least=1),
            partition_bytes=options.integer("partition_bytes", _PARTITION_BYTES, least=1),
        )
        options.check_unknown()
        if request.changes_after is not None and request.as_of is not None and request.changes_after > request.as_of:
            raise options.refusal("changes_after", f"is {request.changes_after}, but 'as_of' is {request.as_of}")
        return request

    @property
    def settings(self) -> Settings:
        """The lease lives for `lease_s`: it is not renewed between planning and reading."""
        beat_s = min(Settings().heartbeat_interval_s, self.lease_s / 2)
        return Settings(lease_ttl_s=float(self.lease_s), heartbeat_interval_s=beat_s)


def _make_absolute(location: str) -> str:
    return location if "://" in location else str(Path(location).absolute())


def _parse_columns(options: Options) -> tuple[str, ...]:
    names = tuple(name.strip().strip("`") for name in options.text("columns").split(",") if name.strip())
    repeated = sorted({name for name in names if [one.lower() for one in names].count(name.lower()) > 1})
    if repeated:
        raise options.refusal("columns", f"repeats {', '.join(map(repr, repeated))}")
    return names


def resolve_names(names: tuple[str, ...], known: list[str]) -> tuple[str, ...]:
    """The names as the collection spells them, in the requested order; all columns if `names` is empty."""
    spelled = {name.lower(): name for name in known}
    unknown = [name for name in names if name.lower() not in spelled]
    if unknown:
        why = f"the collection has no column {unknown[0]!r}; it has {', '.join(known)}"
        raise InvalidInput(where=f"{WHERE}, option 'columns'", why=why)
    return tuple(spelled[name.lower()] for name in names) if names else tuple(known)
