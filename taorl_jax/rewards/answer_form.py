r"""What kind of thing an answer is: a number with a unit, a tuple, an interval, a set, an equation, words.

The kind is read from the text before any algebra, because it decides what may be equal to what: `1,2` names
two values in any order, `(1,2)` a point, `[1,2)` an interval, and none of them is another.
"""

import dataclasses
import re

from taorl_jax.rewards.latex import CURRENCY, enclosed, split, tidy
from taorl_jax.rewards.units import MULTIPLIERS, PLAIN_UNIT, TEXT_UNIT, unit_name

MAX_CHARS = 4000  # longer than any answer, and short enough for every pattern here
MAX_DEPTH = 40  # of brackets

_COMMA, _RATIO, _CELL = re.compile(r"[,;]"), re.compile(r":"), re.compile(r"&")
_ROW = re.compile(r"\\\\(?:\[[^\]]*\])?")
_RELATION = re.compile(r"=|<|>|\\(?:le|ge|ne|approx)(?![A-Za-z])")
_UNION, _DIFFERENCE = re.compile(r"\\cup(?![A-Za-z])"), re.compile(r"\\setminus(?![A-Za-z])")
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|smallmatrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}", re.DOTALL)
_LETTER = r"(?:\\(?!sqrt|frac|pi(?![a-z])|infty|text|sin|cos|tan|log|ln|exp)[A-Za-z]+|[A-Za-z])"
_SUBSCRIPT = r"(?:_(?:\{[^{}]*\}|\w))?'*"
_NAME = re.compile(
    rf"{_LETTER}{_SUBSCRIPT}(?:\s*\(\s*{_LETTER}(?:\s*,\s*{_LETTER})*\s*\))?"  # x, \theta_1, f(x)
    r"|\\text\{[^{}]*\}|[A-Za-z]{2,}|(?:m\s*)?\\angle\s*\{?[A-Z]+\}?"
    rf"|\(\s*{_LETTER}{_SUBSCRIPT}(?:\s*,\s*{_LETTER}{_SUBSCRIPT})+\s*\)"  # (x, y)
)
_MEMBER = re.compile(rf"({_LETTER}{_SUBSCRIPT})\s*\\in(?![A-Za-z])\s*(.+)", re.DOTALL)
_BARE_MEMBER = re.compile(rf"({_LETTER})\s*(\(.+,.+\]|\[.+,.+\))", re.DOTALL)  # t(0, 4]
_REALS = re.compile(r"\\mathbb\s*\{?R\}?|\\R|(?:\\text\{)?\s*all real(?:s| numbers)\s*\}?")
_BASE = re.compile(r"([0-9A-F]+)\s*_\s*\{?\s*(?:\\text\{)?\s*(\w+)\s*\}?\}?")
_WORDS = re.compile(r"(?:\\text\{[^{}]*\}|[A-Za-z][A-Za-z'.\- ]*|\s)+")
_FUNCTION = re.compile(r"\b(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|max|min|gcd|lcm)\b")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")


class Unreadable(ValueError):
    """A text that is no answer of any kind we know."""


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A number or an expression in tidied LaTeX, and its unit's name ("" without one)."""

    latex: str
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class Words:
    """An answer in words."""

    text: str


@dataclasses.dataclass(frozen=True)
class Group:
    r"""Several answers in one.

    Attributes:
      kind: "list" and "set" and "union" (in any order); the two brackets of a tuple or an interval, "matrix"
        with its number of rows, "ratio", "difference" (in order).
      items: forms.
    """

    kind: str
    items: tuple


@dataclasses.dataclass(frozen=True)
class Named:
    """`x = 5`, `f(x) = x + 1`, `x in [0, 1]`: a name, its value, and all that was said to be equal to it.

    Attributes:
      name: without the arguments.
      value: a form.
      chain: the members behind the name, in tidied LaTeX.
      arguments: of a function.
    """

    name: str
    value: object
    chain: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Relation:
    r"""An equation or inequality that gives no value to a name; `symbol` is `=`, `<`, `\le` or `\ne`."""

    symbol: str
    members: tuple[str, ...]


def read_answer(text: str):
    """The form of an answer.

    Raises:
      Unreadable: with the reason.
    """
    if len(text) > MAX_CHARS:
        raise Unreadable(f"longer than {MAX_CHARS} characters")
    tidied = tidy(text)
    depth = deepest = 0
    for character in tidied:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise Unreadable(f"more than {MAX_DEPTH} brackets inside each other")
    return read_tidied(tidied)


def read_tidied(text: str):
    """The form of a part of a tidied answer; raises Unreadable."""
    text = text.strip()
    if not text:
        raise Unreadable("a part of it is empty")
    for reader in (_list, _membership, _relation, _set_operation, _matrix, _brackets, _plus_minus, _ratio):
        form = reader(text)
        if form is not None:
            return form
    return _scalar(text)


def _list(text):
    parts, _ = split(text, _COMMA)
    if len(parts) == 1:
        return None
    return Group("list", _flat(parts))


def _flat(parts):
    r"""The forms of parts, those of `a \pm b` side by side with the others."""
    items = []
    for form in map(read_tidied, parts):
        items += form.items if isinstance(form, Group) and form.kind == "list" else [form]
    return tuple(items)


def _membership(text):
    member = _MEMBER.fullmatch(text) or _BARE_MEMBER.fullmatch(text)
    return member and Named(_plain_name(member[1]), read_tidied(member[2]))


def _relation(text):
    members, symbols = split(text, _RELATION)
    if not symbols:
        return None
    if not all(members):
        raise Unreadable("one side of a relation is empty")
    if set(symbols) <= {"=", r"\approx"}:
        return _equation(members, symbols)
    if len(members) == 2 and symbols == [r"\ne"]:
        return Relation(r"\ne", tuple(members))
    return _interval(members, symbols) or _inequality(members, symbols)


def _equation(members, symbols):
    if r"\approx" in symbols:  # what stands before it is the answer, unless that is but a name
        exact = members[: symbols.index(r"\approx") + 1]
        members = [exact[0], members[-1]] if len(exact) == 1 and _NAME.fullmatch(exact[0]) else exact
        if len(members) == 1:
            return read_tidied(members[0])
    names = [bool(_NAME.fullmatch(member)) for member in members]
    if names[0] and (not all(names) or members[0].endswith(")")):  # a function's value may be a mere name
        value = read_tidied(members[-1])
        return Named(_plain_name(members[0]), value, tuple(members[1:]), _arguments(members[0]))
    if len(members) == 2 and names[1] and not names[0]:
        return Named(_plain_name(members[1]), read_tidied(members[0]), (members[0],))
    return Relation("=", tuple(members))


def _interval(members, symbols):
    """`a <= x < b` and the like, as the interval that it names."""
    names = [bool(_NAME.fullmatch(member)) for member in members]
    if symbols[0] in (">", r"\ge"):
        members, names = members[::-1], names[::-1]
        symbols = [{">": "<", r"\ge": r"\le"}.get(symbol) for symbol in symbols[::-1]]
    if not set(symbols) <= {"<", r"\le"}:
        return None
    bracket = {"<": "()", r"\le": "[]"}
    low, high, opening, closing = r"-\infty", r"\infty", "(", ")"
    if len(members) == 3 and names[1]:
        (low, name, high), opening, closing = members, bracket[symbols[0]][0], bracket[symbols[1]][1]
    elif len(members) == 2 and names[0] != names[1]:
        if names[0]:
            name, high, closing = members[0], members[1], bracket[symbols[0]][1]
        else:
            low, name, opening = members[0], members[1], bracket[symbols[0]][0]
    else:
        return None
    return Named(_plain_name(name), Group(opening + closing, (read_tidied(low), read_tidied(high))))


def _inequality(members, symbols):
    if len(members) != 2:
        return Group(f"chain {' '.join(symbols)}", tuple(map(read_tidied, members)))
    if symbols[0] in (">", r"\ge"):
        return Relation({">": "<", r"\ge": r"\le"}[symbols[0]], (members[1], members[0]))
    return Relation(symbols[0], tuple(members))


def _set_operation(text):
    for pattern, kind in ((_UNION, "union"), (_DIFFERENCE, "difference")):
        parts, found = split(text, pattern)
        if found:
            return Group(kind, tuple(map(read_tidied, parts)))
    if _REALS.fullmatch(text):
        return Group("()", (Scalar(r"-\infty"), Scalar(r"\infty")))
    return Group("set", ()) if text == r"\emptyset" else None


def _matrix(text):
    matrix = _MATRIX.fullmatch(text)
    if matrix is None:
        return None
    rows = [row for row in split(matrix[2], _ROW)[0] if row]
    cells = [split(row, _CELL)[0] for row in rows]
    if not rows or len({len(row) for row in cells}) != 1:
        raise Unreadable("a matrix with rows of different lengths")
    return Group(f"matrix {len(rows)}", tuple(read_tidied(cell) for row in cells for cell in row))


def _brackets(text):
    pair = enclosed(text)
    if pair is None:
        return None
    opening, inside, closing = pair
    if opening == r"\{":
        return Group("set", _flat(split(inside, _COMMA)[0]) if inside else ())
    parts, _ = split(inside, _COMMA)
    if len(parts) == 1:
        return read_tidied(inside)
    return Group(opening + closing, tuple(map(read_tidied, parts)))


def _plus_minus(text):
    if r"\pm" not in text and r"\mp" not in text:
        return None
    upper = text.replace(r"\pm", "+").replace(r"\mp", "-")
    lower = text.replace(r"\pm", "-").replace(r"\mp", "+")
    return Group("list", (read_tidied(upper), read_tidied(lower)))


def _ratio(text):
    parts, _ = split(text, _RATIO)
    if len(parts) == 1 or not all(re.fullmatch(r"[\d.]+", part) for part in parts):
        return None
    if len(parts) == 2 and not parts[1].startswith("0"):  # 5:00 is a time
        return Scalar(rf"\frac{{{parts[0]}}}{{{parts[1]}}}")
    return Group("ratio", tuple(map(read_tidied, parts)))


def _scalar(text):
    if _WORDS.fullmatch(text) and _says_words(text):
        return Words(text)
    based = _BASE.fullmatch(text)
    if based:
        return Scalar(based[1], f"base {based[2]}")
    if text.lstrip("+-").startswith(CURRENCY):
        return Scalar(text.replace(CURRENCY, "", 1).strip(), "dollar")
    if text.endswith("%"):
        return Scalar(text[:-1].strip(), "%")
    for pattern in (TEXT_UNIT, PLAIN_UNIT):
        match = pattern.fullmatch(text)
        if match and not (_TRIGONOMETRIC.search(match["value"]) and "°" in match["unit"]):
            return _with_unit(match["value"].strip(), match["unit"])
    return Scalar(_without_text(text).replace("°", r"\cdot\frac{\pi}{180}"))


def _with_unit(value, unit):
    name = unit_name(unit)
    if name is None:
        raise Unreadable("words behind the value")
    if name in MULTIPLIERS:
        return Scalar(rf"({_without_text(value)})\cdot 10^{{{MULTIPLIERS[name]}}}")
    inner = _scalar(value)
    if not isinstance(inner, Scalar) or (inner.unit and inner.unit != name):
        raise Unreadable("two units")
    return Scalar(inner.latex, name)


def _says_words(text):
    plain = re.sub(r"\\text\s*|[{}]", " ", text)
    if _FUNCTION.search(plain):
        return False
    return r"\text" in text or bool(re.search(r"[A-Za-z]{3}", plain))


def _without_text(text):
    return re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)


def _plain_name(name):
    r"""`f(x)` is `f`, `\text{Area}` is `area`."""
    bare = re.sub(r"\\text|[{}\s]", "", name)
    return bare if bare.startswith("(") else bare.split("(")[0]


def _arguments(name):
    """Those of `f(x, y)`."""
    head, bracket, inside = name.rstrip(") ").partition("(")
    return tuple(part.strip() for part in inside.split(",")) if head and bracket else ()
