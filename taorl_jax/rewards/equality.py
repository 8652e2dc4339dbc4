r"""Whether two answers are equal: kinds from the text, values from math-verify's parser and sympy.

A false "equal" is worse than a false "different". There is no absolute tolerance anywhere: numbers are
compared to 30 digits, and a decimal may stand for an exact value only by the rules of `_decimals_agree`.
"""

import re

import sympy
from math_verify import verify

from taorl_jax.rewards.answer_form import Group, Named, Relation, Scalar, Words, read_tidied
from taorl_jax.rewards.latex import words
from taorl_jax.rewards.values import Value, value

DIGITS = 40  # of numerical comparison
_AGREE = sympy.Float(10, DIGITS) ** -30  # relative
_LEAST_DIGITS = 3  # of a decimal gold that may be rounded to
_LEAST_DIGITS_OF_ANSWER = 6  # of a decimal answer for a gold without a finite decimal
_FLOAT_DIGITS = 15  # as many digits, and a double may be off in the last ones
_UNORDERED = ("list", "set", "union")


def same(gold, answer) -> bool:
    """Whether an answer's form equals the gold's. Not symmetric: units, names and digits may lack in one.

    Raises:
      Unreadable: LaTeX that does not parse.
    """
    gold, answer = _simplest(gold), _simplest(answer)
    if isinstance(gold, Words) or isinstance(answer, Words):
        return _text(gold) == _text(answer) != ""
    if isinstance(gold, Named) or isinstance(answer, Named):
        return _same_named(gold, answer)
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _same_relation(gold, answer)
    if isinstance(gold, Group) or isinstance(answer, Group):
        return isinstance(gold, Group) and isinstance(answer, Group) and _same_group(gold, answer)
    return _same_scalar(gold, answer)


def check_readable(form):
    """Raises Unreadable unless every part of a form parses and has a value."""
    if isinstance(form, Scalar):
        value(form.latex)
    elif isinstance(form, Group):
        for item in form.items:
            check_readable(item)
    elif isinstance(form, Named):
        check_readable(form.value)
    elif isinstance(form, Relation):
        for member in form.members:
            check_readable(read_tidied(member))


def _simplest(form):
    """A group of one is its item; a true equation, as in 2 + 1 = 3, is its last member."""
    if isinstance(form, Group) and form.kind in _UNORDERED and len(form.items) == 1:
        return form.items[0]
    if isinstance(form, Relation) and form.symbol == "=" and _consistent(form.members):
        return read_tidied(form.members[-1])
    return form


def _text(form):
    if isinstance(form, Words):
        return words(form.text)
    return words(form.latex) if isinstance(form, Scalar) and not form.unit else None


def _same_named(gold, answer):
    """A name may be left out or added, but not changed; `x = 1 = 2` is wrong whatever the gold."""
    if isinstance(answer, Named) and not _consistent(answer.chain):
        return False
    if isinstance(gold, Named) and isinstance(answer, Named):
        if gold.name != answer.name:
            return _same_equation(gold, answer)
        return same(gold.value, _renamed(answer, gold.arguments))
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _same_equation(gold, answer)
    if isinstance(gold, Named):
        return same(gold.value, answer)
    return same(gold, answer.value)


def _renamed(function: Named, arguments: tuple[str, ...]):
    """A function's value with its arguments renamed: f(n) = n and f(z) = z are one function."""
    if function.arguments == arguments or len(function.arguments) != len(arguments):
        return function.value
    new = dict(zip(function.arguments, arguments, strict=True))
    back = dict(zip(arguments, function.arguments, strict=True))
    new |= {name: back[name] for name in arguments if name not in new}  # in f(z) = 2n the n is another
    letters = "|".join(map(re.escape, new))
    pattern = rf"(?<![A-Za-z\\])(?:{letters})(?![A-Za-z])"
    return read_tidied(re.sub(pattern, lambda letter: f"{{{new[letter[0]]}}}", function.chain[-1]))


def _consistent(chain):
    """Whether all members of `a = b = c` are equal; a single one is."""
    forms = [read_tidied(member) for member in chain]
    return all(same(form, forms[-1]) for form in forms[:-1])


def _same_relation(gold, answer):
    if not isinstance(gold, Relation) or not isinstance(answer, Relation) or gold.symbol != answer.symbol:
        return False
    if gold.symbol == "=":
        return _same_equation(gold, answer)
    return _proportional(gold.members, answer.members, positive=gold.symbol != r"\ne")


def _same_equation(gold, answer):
    sides = [_sides(form) for form in (gold, answer)]
    return None not in sides and _proportional(*sides, positive=False)


def _sides(form):
    """Both sides of an equation, as LaTeX; None if the form is none."""
    if isinstance(form, Relation):
        return form.members if form.symbol == "=" and len(form.members) == 2 else None
    if isinstance(form, Named) and len(form.chain) == 1:
        return form.name, form.chain[0]
    return None


def _proportional(gold_sides, answer_sides, positive: bool) -> bool:
    """Whether the differences of the sides are the same up to a constant factor."""
    gold, answer = (value(left).expr - value(right).expr for left, right in (gold_sides, answer_sides))
    ratios = []
    for gold_number, answer_number in _samples(gold, answer):
        if not gold_number or not answer_number:
            return False
        ratios.append(gold_number / answer_number)
    if len(ratios) < 3 or any(not _close(ratio, ratios[0]) for ratio in ratios):
        return False
    return not positive or sympy.re(ratios[0]) > 0 == sympy.im(ratios[0])


def _same_group(gold, answer):
    gold_items, answer_items = gold.items, answer.items
    if gold.kind in ("list", "set") and answer.kind in ("list", "set"):
        if not _names_fit(gold_items, answer_items):
            return False
        if "set" in (gold.kind, answer.kind):
            return _cover(gold_items, answer_items) and _covered(gold_items, answer_items)
        return _matched(gold_items, answer_items)
    if gold.kind != answer.kind or len(gold_items) != len(answer_items):
        return False
    if gold.kind in _UNORDERED:
        return _matched(gold_items, answer_items)
    return all(same(g, a) for g, a in zip(gold_items, answer_items, strict=True))


def _names_fit(gold_items, answer_items):
    """Where several names carry several values, each value needs its name on both sides."""
    named = [[item.name for item in items if isinstance(item, Named)] for items in (gold_items, answer_items)]
    if max(len(set(names)) for names in named) <= 1:
        return True
    return all(
        len(names) == len(items) for names, items in zip(named, (gold_items, answer_items), strict=True)
    )


def _cover(gold_items, answer_items):
    return all(any(same(g, a) for a in answer_items) for g in gold_items)


def _covered(gold_items, answer_items):
    return all(any(same(g, a) for g in gold_items) for a in answer_items)


def _matched(gold_items, answer_items):
    """Whether the items can be paired off, each with an equal one."""
    if len(gold_items) != len(answer_items):
        return False
    left = list(answer_items)
    for gold_item in gold_items:
        partner = next((place for place, item in enumerate(left) if same(gold_item, item)), None)
        if partner is None:
            return False
        del left[partner]
    return True


def _same_scalar(gold: Scalar, answer: Scalar) -> bool:
    """A unit may be left out or added, but not changed; % and ° are numbers as well."""
    gold_value, answer_value = value(gold.latex), value(answer.latex)
    if gold.unit == answer.unit:
        return _same_value(gold_value, answer_value)
    if gold.unit and answer.unit:
        return False
    unit = gold.unit or answer.unit
    if unit.startswith("base") and not gold.unit:
        return False
    scale = {"%": sympy.Rational(1, 100), "°": sympy.pi / 180}.get(unit)
    if scale is not None:
        scaled, plain = (gold_value, answer_value) if gold.unit else (answer_value, gold_value)
        converted = Value(scaled.expr * scale)
        if _same_value(converted, plain) if gold.unit else _same_value(plain, converted):
            return True
        # A bare gold of at most 1 is a share, and 0.5 % is not it.
        if unit == "%" and not gold.unit and not _beyond_one(gold_value):
            return False
    return _same_value(gold_value, answer_value)


def _beyond_one(number: Value) -> bool:
    size = sympy.N(sympy.Abs(number.expr))
    return bool(size.is_number and size > 1)


def _same_value(gold: Value, answer: Value) -> bool:
    if gold.expr == answer.expr:
        return True
    if gold.expr.free_symbols or answer.expr.free_symbols:
        return _same_expression(gold.expr, answer.expr)
    if gold.expr.is_infinite or answer.expr.is_infinite:
        return False
    gold_number, answer_number = (sympy.N(v.expr, DIGITS) for v in (gold, answer))
    if not _is_finite(gold_number) or not _is_finite(answer_number):
        return _verified(gold.expr, answer.expr)
    if _close(gold_number, answer_number):
        return True
    if not gold_number or not answer_number or max(abs(gold_number), abs(answer_number)) < _AGREE:
        return sympy.simplify(gold.expr - answer.expr) == 0
    return _decimals_agree(gold, answer, abs(gold_number - answer_number), abs(gold_number))


def _decimals_agree(gold: Value, answer: Value, difference, size) -> bool:
    """When a decimal stands for another number.

    A gold that was written as a decimal of at least 3 digits is met by what rounds to it, if that has no
    finite decimal (pi for 3.14), or gives two digits more and differs by at most a thousandth (3.1416). A
    gold that has no finite decimal is met by its decimal to at least 6 digits, rounded or cut off. An answer
    with the 15 digits or more of a double may be off by its rounding.
    """
    if gold.place is not None and gold.digits >= _LEAST_DIGITS and not gold.expr.is_integer:
        endless = answer.place is None and not _has_finite_decimal(answer.expr)
        finer = answer.place is not None and answer.place <= gold.place - 2 and difference * 1000 <= size
        return (endless or finer) and difference <= sympy.Rational(10) ** gold.place / 2
    if answer.place is None:
        return False
    if answer.digits >= _FLOAT_DIGITS and difference <= size * sympy.Rational(1, 10**12):
        return True
    if answer.digits < _LEAST_DIGITS_OF_ANSWER or _has_finite_decimal(gold.expr):
        return False
    return difference <= sympy.Rational(10) ** answer.place


def _has_finite_decimal(expr) -> bool:
    if not expr.is_Rational:
        return bool(sympy.simplify(expr).is_Rational) and _has_finite_decimal(sympy.simplify(expr))
    rest = expr.q
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _same_expression(gold, answer) -> bool:
    """Equality of expressions with symbols, at real points; one is negative, since sqrt(x^2) is not x."""
    agreed = 0
    for gold_number, answer_number in _samples(gold, answer):
        if not _close(gold_number, answer_number):
            return False
        agreed += 1
    return agreed >= 3 or (agreed == 0 and _verified(gold, answer))


def _samples(gold, answer):
    """Values of both at points where both are finite."""
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=lambda symbol: symbol.name)
    for point in range(6):
        at = {symbol: _coordinate(point, place) for place, symbol in enumerate(symbols)}
        numbers = [sympy.N(expr.xreplace(at), DIGITS) for expr in (gold, answer)]
        if all(map(_is_finite, numbers)):
            yield numbers


def _coordinate(point: int, place: int):
    """A fraction between 0 and 4 that differs from symbol to symbol; negative at the last point."""
    size = sympy.Rational(17 + 10 * ((7 * place + 3 * point) % 11) + place, 41)
    return -size if point == 5 else size


def _is_finite(number) -> bool:
    """Whether it came out as a number, real or complex."""
    if not number.is_number or not number.is_finite:
        return False
    return all(part.is_Number for part in number.as_real_imag())


def _close(first, second) -> bool:
    size = max(abs(first), abs(second))
    return bool(abs(first - second) <= size * _AGREE)


def _verified(gold, answer) -> bool:
    """math-verify's own word, where nothing can be computed."""
    return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))
