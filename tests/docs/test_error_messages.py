"""The golden file of error messages equals the messages in the source."""

from __future__ import annotations

from tests.docs.error_messages import error_messages
from tests.kit.golden import compare_with_golden


def test_the_golden_file_lists_every_error_as_rendered() -> None:
    compare_with_golden("error-messages.txt", error_messages())
