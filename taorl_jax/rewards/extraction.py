r"""Finding the answer in a text: the last box, or the fallbacks of the released code.

By default (`reward.extraction = "boxed"`) the answer is the last `\boxed` that the policy wrote outside of
its code, or what its own `final_answer()` printed; the tool loop applies `last_boxed` to policy text only.
Under `"paper"`, `paper_answer` reads the whole response, tool output included, as the released code does:
what was merely printed, even a bare last number, can then earn the reward. It is there for parity only.
"""

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


_PAPER_END = re.compile(r"</s>|<\|im_end\|>|<\|endoftext\|>|\[END\]")
_MINERVA = re.compile(r"final answer is \$(.*?)\$\. I hope", re.DOTALL)
_PHRASE = re.compile(r"(?:he answer is|final answer is):?\s*(.*)", re.DOTALL)
_NUMBER = re.compile(r"-?\d*\.?\d+")


def paper_answer(response: str) -> str | None:
    """The answer by the released code's fallbacks; None if none of them applies.

    In this order: Minerva's closing phrase; the last box; what follows "the answer is" or "final answer is"
    in its line; the last number of the text, commas taken out.

    Args:
      response: everything after the prompt, the tool's output and special tokens included.
    """
    text = _PAPER_END.split(response, maxsplit=1)[0]
    if minerva := _MINERVA.search(text):
        return minerva[1].strip() or None
    if "boxed" in text:
        return last_boxed(text)
    if phrase := list(_PHRASE.finditer(text)):
        line = phrase[-1][1].strip().split("\n")[0]
        return line.strip(" $.") or None
    numbers = _NUMBER.findall(text.replace(",", ""))
    return numbers[-1] if numbers else None
