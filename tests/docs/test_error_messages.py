"""The golden file of error messages equals the messages in the source."""

from __future__ import annotations

import os

from tests.docs.error_messages import GOLDEN, error_messages


def test_the_golden_file_lists_every_error_as_rendered() -> None:
    found = error_messages()
    if os.environ.get("EVERTIDE_GOLDEN") == "write":
        GOLDEN.write_text(found)
    assert GOLDEN.read_text() == found, "EVERTIDE_GOLDEN=write rewrites it; then read your line"
