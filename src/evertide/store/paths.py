"""Names of blobs and Meta keys: the only module that spells them.

Blob keys end in a `Name`, which contains the id of the writer, so that garbage collection can tell whose orphan a blob
is: `parts/<shard>/<writer>-<seq>[-<attempt>].parquet`. `seq` comes from the writer's own counter; `attempt`
distinguishes the attempts of one task on Spark's executors. Parts of arrangements have such names, too, below
`state/<arrangement>/`.

Meta keys:

    shard/<shard>           the shard's diffs
    rollup/<shard>          the address of its newest roll-up
    hold/<shard>            its since and the holds on it
    lease/<shard>/<lease>   one reader's lease
    writer/<writer>         a registered writer; removed once, never written again
    beat/<writer>           that writer's heartbeat
    generation              the generation and its member shards
    journal                 per transaction, its input
    committed               per transaction, its outcome
    pipeline                the definition of the pipeline
    leader                  the writer that leads
    replica/<writer>        the role and the progress of a replica
    health                  the state of the leader
    sources                 the state of sources and sinks
    producer/<producer>     the last number of a producer; removed when it is forgotten
    sink/<sink>             the durable progress of a sink
    shape/<definition>/<n>  a live shape; removed once, never written again
    shapes                  the shapes that ended, one record each
    checkpoints             the catalog of checkpoints
    restoring/<writer>      the checkpoints that a writer reads, or whose parts it uses
    storage                 marks that FORMAT and this Meta belong together
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from evertide.errors import InvalidInput

FORMAT = "FORMAT"
META_FILE = "meta.db"
GENERATION = "generation"
STORAGE = "storage"
JOURNAL = "journal"
COMMITTED = "committed"
PIPELINE = "pipeline"
SHAPES = "shapes"
HEALTH = "health"
SOURCES = "sources"
LEADER = "leader"
CHECKPOINTS = "checkpoints"

_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+@-]{0,199}")
_NAME = re.compile(r"(?P<writer>[0-9a-z]+)-(?P<seq>[0-9]{1,18})(-(?P<attempt>[0-9a-z]+))?\.(?P<suffix>[a-z0-9.]+)")


@dataclass(frozen=True, slots=True)
class Name:
    writer: str
    seq: int
    suffix: str
    attempt: str = ""

    def __str__(self) -> str:
        attempt = f"-{self.attempt}" if self.attempt else ""
        return f"{self.writer}-{self.seq:08d}{attempt}.{self.suffix}"

    @classmethod
    def parse(cls, key: str) -> Name | None:
        """None if the key was not made by a writer: garbage collection leaves such a blob alone."""
        found = _NAME.fullmatch(key.rpartition("/")[2])
        if found is None:
            return None
        return cls(found["writer"], int(found["seq"]), found["suffix"], found["attempt"] or "")


def check_shard(shard: str) -> str:
    """Check a shard's name, which is part of paths: letters, digits and `_ . = + @ -`, at most 200."""
    if not _SHARD.fullmatch(shard):
        raise InvalidInput(where=f"shard {shard!r}", why="expected 1 to 200 of A-Z a-z 0-9 _ . = + @ -")
    return shard


def check_source(source: str) -> str:
    """Check the name of a source that stages rows by the same rule: it is part of paths, too."""
    if not _SHARD.fullmatch(source):
        raise InvalidInput(where=f"source {source!r}", why="expected 1 to 200 of A-Z a-z 0-9 _ . = + @ -")
    return source


def part_prefix(shard: str = "") -> str:
    """Of all shards, or of one."""
    return f"parts/{shard}/" if shard else "parts/"


def part_key(shard: str, name: Name) -> str:
    return f"{part_prefix(shard)}{name}"


def rollup_prefix(shard: str = "") -> str:
    """Of all shards, or of one."""
    return f"rollups/{shard}/" if shard else "rollups/"


def rollup_blob_key(shard: str, name: Name) -> str:
    return f"{rollup_prefix(shard)}{name}"


def state_prefix(arrangement: str = "") -> str:
    """Of all arrangements, or of one."""
    return f"state/{arrangement}/" if arrangement else "state/"


def state_part_key(arrangement: str, name: Name) -> str:
    return f"{state_prefix(arrangement)}{name}"


def staged_prefix(source: str = "") -> str:
    """Of all sources, or of one."""
    return f"journal/{source}/" if source else "journal/"


def staged_key(source: str, name: Name) -> str:
    return f"{staged_prefix(source)}{name}"


def evidence_key(writer: str, token: str) -> str:
    """The key of a file for a bug report, which garbage collection never deletes."""
    return f"evidence/{writer}-{token}.json"


def checkpoint_prefix(number: int | None = None) -> str:
    """Of all checkpoints, or of one."""
    return "checkpoints/" if number is None else f"checkpoints/{number:08d}/"


def checkpoint_key(number: int, name: str) -> str:
    return f"{checkpoint_prefix(number)}{name}"


def producer_key(producer: str) -> str:
    """The empty producer gives the prefix of all."""
    return f"producer/{quote(producer, safe='')}"


def replica_key(writer: str) -> str:
    """The key of a replica's report about itself; the empty writer gives the prefix of all."""
    return f"replica/{writer}"


def restoring_key(writer: str) -> str:
    return f"restoring/{writer}"


def shard_key(shard: str) -> str:
    return f"shard/{shard}"


def sink_key(sink: str) -> str:
    return f"sink/{sink}"


def shape_prefix(definition: str = "") -> str:
    """Of all shapes, or of those of one definition."""
    return f"shape/{definition}/" if definition else "shape/"


def shape_key(definition: str, number: int) -> str:
    return f"{shape_prefix(definition)}{number}"


def rollup_key(shard: str) -> str:
    return f"rollup/{shard}"


def hold_key(shard: str) -> str:
    return f"hold/{shard}"


def lease_prefix(shard: str) -> str:
    return f"lease/{shard}/"


def lease_key(shard: str, lease: str) -> str:
    return f"{lease_prefix(shard)}{lease}"


def writer_key(writer: str) -> str:
    return f"writer/{writer}"


def beat_key(writer: str) -> str:
    return f"beat/{writer}"
