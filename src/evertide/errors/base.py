"""The root of the error tree."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(eq=False, repr=False)
class EvertideError(Exception):
    """The root: catch it to catch every error that Evertide raises on purpose."""

    error_code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    summary: ClassVar[str] = "Evertide failed"
    message_format: ClassVar[str] = "Evertide failed"
    remedy: ClassVar[str] = "Report this as a bug, with the log."

    def __post_init__(self) -> None:
        super().__init__(*self.facts.values())

    @property
    def facts(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def message(self) -> str:
        """What happened, to which object, and why; without the remedy."""
        return self.message_format.format(**self.facts)

    def __str__(self) -> str:
        message = self.message
        return f"{message}{'' if message.endswith(('.', '?', '!')) else '.'} {self.remedy}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.facts.values())
