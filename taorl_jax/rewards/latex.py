r"""Spelling of mathematical answers: one form for what LaTeX and people write in many.

Nothing here decides whether two answers are equal; it only takes away what carries no meaning (sizes, spaces,
fonts, `$`) and rewrites synonyms. Pure text in, text out; no sympy.
"""

import re

_UNICODE = {
    "\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{MULTIPLICATION SIGN}": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "≈": r"\approx ", "∈": r"\in ", "\N{UNION}": r"\cup ", "°": r"^\circ", "±": r"\pm ", "θ": r"\theta ",
    "∅": r"\emptyset ", "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}", "½": r"\frac{1}{2}", "²": "^2",
    "³": "^3",
    "\N{NO-BREAK SPACE}": " ", "\N{THIN SPACE}": " ",
}  # fmt: skip
# In this order: each rule sees what those before it have left.
_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*(\d+|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\\(?:left|right)\s*\.", ""),
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])", ""),
        (r"(?<=\d)\\,(?=\d{3}(?!\d))", ""),  # 12\,000
        (r"\\!\s*", ""),
        (r"\\[hv]?phantom\s*(?:\{[^{}]*\}|.)", ""),
        (r"\{\s*,\s*\}", ","),  # 12{,}000
        (r"(?<!\\)\\[,;: ]|~|\\(?:q?quad|enspace|thinspace|medspace|thickspace)(?![A-Za-z])", " "),
        (r"\\(?:display|text|script)style(?![A-Za-z])|\\(?:no)?limits(?![A-Za-z])", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\dbinom|\\tbinom", r"\\binom"),
        (r"\\(?:text(?:rm|bf|it|sf|normal|up)?|mathrm|mathsf|mbox|hbox|operatorname\*?)\s*\{", r"\\text{"),
        (r"\\math(?:bf|it|cal|frak)\s*\{([^{}]*)\}|\\boldsymbol\s*\{([^{}]*)\}", r"\1\2"),
        (r"\\leq?(?:slant)?(?![A-Za-z])", r"\\le "),
        (r"\\geq?(?:slant)?(?![A-Za-z])", r"\\ge "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"!=|\\neq?(?![A-Za-z])", r"\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\(?:lbrace)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace)(?![A-Za-z])", r"\\}"),
        (r"\\(?:lbrack)(?![A-Za-z])", "["),
        (r"\\(?:rbrack)(?![A-Za-z])", "]"),
        (r"\\[lr]vert(?![A-Za-z])|\\[lr]?mid(?![A-Za-z])", "|"),
        (r"\\varnothing|\\O(?![A-Za-z])", r"\\emptyset "),
        (r"\\%", "%"),
        (r"(?:\\text\{\s*)?\bper\s?cent\b(?:\s*\})?", "%"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degrees?(?![A-Za-z])", "°"),
        (r"\{\s*\}\s*°", "°"),
        (r"\\(?:U?infty)(?![A-Za-z])", r"\\infty "),
        (r"(?<![A-Za-z\\])(?:inf|infinity|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![A-Za-z\\])(?:np|math)\.(?=[a-z])", ""),
        (r"(?<![A-Za-z\\])(arc)?(sin|cos|tan|exp|log|ln)(?=\s*[({])", r"\\\1\2"),
        (r"\*\*\s*(\d+)", r"^{\1}"),
        (r"\*\*\s*\(([^()]*)\)", r"^{\1}"),
        (r"\s+", " "),
    )
]
_DOLLAR = re.compile(r"\\\$")
_DELIMITERS = re.compile(r"\$|(?<!\\)\\[()\[\]]")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_AND = re.compile(r",?\s*(?:\\text\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*")
_REMARK = re.compile(r",?\s*(?:\\text\{\s*)?\bwhere\b.*", re.DOTALL)
_START = re.compile(r"(?:=|\\approx(?![A-Za-z])|\s)+")
_END = ".,;: "
CURRENCY = "\N{CURRENCY SIGN}"  # what an escaped dollar sign becomes
OPENING, CLOSING = "([{", ")]}"


def tidy(text: str) -> str:
    r"""The text in one spelling: `\dfrac` is `\frac`, `\left(` is `(`, `12,\!000` is `12000`."""
    text = _DOLLAR.sub(CURRENCY, text)
    text = _DELIMITERS.sub("", text)
    for symbol, latex in _UNICODE.items():
        text = text.replace(symbol, latex)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _AND.sub(", ", _REMARK.sub("", text))
    text = text[_START.match(text).end() :] if _START.match(text) else text
    return _join_thousands(text.rstrip(_END).strip())


def _join_thousands(text: str) -> str:
    """Takes the commas out of `1,234,567`, except inside brackets, where commas separate components."""
    return "".join(
        _THOUSANDS.sub(lambda number: number[0].replace(",", ""), piece) if depth == 0 else piece
        for depth, piece in _by_depth(text)
    )


def _by_depth(text: str):
    """(depth of brackets, piece of text) from left to right."""
    depth, piece = 0, ""
    for place, character in enumerate(text):
        of_tex = character in "{}" and text[place - 1 : place] != "\\"  # \frac{1}{29,322}: no components
        if character in OPENING and not of_tex:
            yield depth, piece
            depth, piece = depth + 1, character
        elif character in CLOSING and not of_tex:
            yield depth, piece + character
            depth, piece = max(depth - 1, 0), ""
        else:
            piece += character
        if place + 1 == len(text):
            yield depth, piece


def split(text: str, separators: re.Pattern) -> tuple[list[str], list[str]]:
    """(parts, separators between them): splits where no bracket is open; `<` and `>` are no brackets.

    Escaped braces count as brackets. An unbalanced closing bracket leaves the depth at 0.
    """
    parts, found, depth, start, place = [], [], 0, 0, 0
    while place < len(text):
        match = separators.match(text, place) if depth == 0 else None
        if match:
            parts.append(text[start:place].strip())
            found.append(match[0].strip())
            start = place = match.end()
            continue
        if text[place] in OPENING:
            depth += 1
        elif text[place] in CLOSING:
            depth = max(depth - 1, 0)
        elif text[place] == "\\" and text[place + 1 : place + 2].isalpha():
            place += len(re.match(r"\\[A-Za-z]+", text[place:])[0]) - 1
        place += 1
    return [*parts, text[start:].strip()], found


def enclosed(text: str) -> tuple[str, str, str] | None:
    r"""(opening, inside, closing) if one pair of brackets, also `\{ \}` or a mixed pair, spans the text."""
    opening = r"\{" if text.startswith(r"\{") else text[:1]
    closing = r"\}" if text.endswith(r"\}") else text[-1:]
    if (
        opening.lstrip("\\") not in tuple(OPENING)
        or closing.lstrip("\\") not in tuple(CLOSING)
        or len(text) < 2
    ):
        return None
    if (opening == "{") != (closing == "}") or (opening == r"\{") != (closing == r"\}"):
        return None
    depth = 0
    for place, character in enumerate(text):
        depth += (character in OPENING) - (character in CLOSING)
        if depth == 0 and len(opening) - 1 <= place < len(text) - 1:
            return None
    return (opening, text[len(opening) : len(text) - len(closing)].strip(), closing) if depth == 0 else None


def words(text: str) -> str:
    r"""What a text answer says, for comparison as text: `\text{(C)}` and `c` are `c`."""
    plain = re.sub(r"\\text\s*|[{}$\\]", " ", text).casefold()
    return " ".join(plain.split()).strip("()[].,;:!'\" ")
