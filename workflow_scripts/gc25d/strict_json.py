"""JSON whose keys stand once, whose numbers are finite and whose text UTF-8 can write.

Python's own parser keeps the last of equal keys, reads 1e999 as an infinity and accepts NaN.
Imports no torch: rules use it at parse time.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any


def parse_json(data: bytes, *, finite: bool = True) -> Any:
    """The value that JSON text in UTF-8 stands for; a byte-order mark before it is passed over.

    Args:
        data: the whole text.
        finite: whether NaN and infinities are refused.

    Raises:
        ValueError: no UTF-8, no JSON, a key twice in one object, half a surrogate pair, or a number
            that is not finite.
    """
    text = data.decode("utf-8-sig")
    number = _finite if finite else float
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=number, parse_float=number
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()  # a UnicodeEncodeError is a ValueError
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {key!r} stands twice in one object: keep one")
    return found
