r"""The last `\boxed` answer of a text."""

import re

_BOXED = re.compile(r"\\boxed(?![A-Za-z])\s*")
_UNBRACED = re.compile(r"[^\s$]+")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character is matched so as to be passed over


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed` in `text` holds, stripped of surrounding space.

    Only the last box counts: if it is cut off (unbalanced) or empty there is no answer, whatever came
    before. Escaped braces (`\{`, `\}`) are characters, not delimiters. Of nested boxes the last inner one is
    read. Without braces, as in `\boxed 57.`, the answer is what follows up to white space or `$`, less
    closing punctuation (`57`); TeX itself would box the `5` alone, which nobody means.

    Returns:
      The answer, never empty; None if there is none.
    """
    boxes = list(_BOXED.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] == "{":
        stop = _closing_brace(text, start)
        return None if stop is None else text[start + 1 : stop].strip() or None
    bare = _UNBRACED.match(text, start)
    return None if bare is None else bare[0].rstrip(".,;:") or None


def _closing_brace(text: str, start: int) -> int | None:
    """Position of the brace that closes the one at `start`; None if nothing does."""
    depth = 0
    for token in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0 and token[0] == "}":
            return token.start()
    return None
