"""The oracle of everything that decides where a segment's code ends: a scan of its text, line by line."""

from taorl_jax.tool_use.code_block import CodeBlock

MARK = b"\0"  # stands for a special token in the oracle's text


def scan(text: bytes) -> CodeBlock | None:
    """The oracle: reads whole lines, knows nothing of states; MARK is a character like any other."""
    lines = text.split(b"\n")
    index = 0
    while index < len(lines):
        fence, index = lines[index], index + 1
        if not fence.startswith(b"```") or b"`" in fence[3:] or MARK in fence or index == len(lines):
            continue
        closing = next((i for i in range(index, len(lines)) if lines[i].startswith(b"```")), None)
        if closing is None:
            return None
        if fence[3:].rstrip(b" \t\r") in (b"", b"py", b"python"):
            prose = b"".join(line + b"\n" for line in lines[: index - 1])
            code = b"\n".join(lines[index:closing])
            return CodeBlock(*(part.replace(MARK, b"").decode(errors="replace") for part in (code, prose)))
        index = closing + 1
    return None


def text_of(segment) -> bytes:
    """The oracle's text of some tokens' bytes, where None is a special token."""
    return b"".join(MARK if token is None else token for token in segment)
