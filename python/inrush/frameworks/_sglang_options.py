"""What of SGLang's extra config is for Inrush."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inrush import _errors

# The key of --model-loader-extra-config that asks for Inrush: true, or an object of options.
KEY = "inrush"
WHERE = f'--model-loader-extra-config {{"{KEY}": ...}}'


def options_in(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the extra config asks of Inrush; an empty mapping for `true` and where it says nothing.

    Raises Error ("invalid_request") for what is neither true nor an object.
    """
    asked = given.get(KEY, True)
    if asked is True:
        return {}
    if not isinstance(asked, Mapping):
        raise _errors.make_error(
            "invalid_request", f"{WHERE} is {asked!r}; say true, or an object of options"
        )
    return asked
