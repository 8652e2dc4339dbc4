"""The value of a scalar answer: digits are read exactly, all else by math-verify's parser into sympy."""

import dataclasses
import functools
import re
from fractions import Fraction

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from sympy.core.function import AppliedUndef

from taorl_jax.rewards.answer_form import Unreadable

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
# Juxtaposed numbers are not added up, and R is not r.
_CONVERSION = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)

_SIGN = r"(?P<sign>[+-]?)"
_DECIMAL = re.compile(
    rf"{_SIGN}(?P<whole>\d*)(?:\.(?P<part>\d*))?(?:(?:[eE]|(?:\\times|\\cdot|\*)10\^)\{{?(?P<power>[+-]?\d{{1,5}})\}}?)?"
)
_DIGIT_OR_GROUP = r"(?:\{{(?P<{0}>\d+)\}}|(?P<{0}_>\d))"
_FRACTION = re.compile(
    rf"{_SIGN}(?P<whole>\d*)\\frac{_DIGIT_OR_GROUP.format('top')}{_DIGIT_OR_GROUP.format('bottom')}"
)
_SLASH = re.compile(rf"{_SIGN}(?:(?P<whole>\d+) )?(?P<top>\d+) ?/ ?(?P<bottom>\d+)")
_REPEATING = re.compile(rf"{_SIGN}(?P<whole>\d+)\.(?P<part>\d*)\\(?:overline|bar|dot)\{{(?P<cycle>\d+)\}}")
_FACTOR = re.compile(r"(?<![\w.^}])(\d+(?:\.\d+)?)\s*\(")
_SUBSCRIPT = re.compile(r"(?<!log)_\s*(?:\{\\([A-Za-z]+)\}|\\([A-Za-z]+))")  # L_{\odot}
_TOKEN = r"(\\(?!sqrt|frac|sin|cos|tan|log|ln|exp|text)[A-Za-z]+|[0-9A-Za-z])"
_NUMERATOR = re.compile(rf"\\frac\s*{_TOKEN}")
_DENOMINATOR = re.compile(rf"\\frac(\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})\s*{_TOKEN}")
_SIDE_BY_SIDE = re.compile(r"(?<!log_)(?<![\d.])\d[\d.]*\s+\d")


@dataclasses.dataclass(frozen=True)
class Value:
    """A number or expression.

    Attributes:
      expr: sympy expression, exact.
      place: exponent of ten of the last digit written, if it was written as a decimal; else None.
      digits: significant digits written in that case.
    """

    expr: sympy.Expr
    place: int | None = None
    digits: int = 0


@functools.lru_cache(4096)
def value(latex: str) -> Value:
    """The value of tidied LaTeX.

    Raises:
      Unreadable: it does not parse, or it is no number (a division by zero).
    """
    plain = _literal(latex)
    if plain is not None:
        return plain
    if _SIDE_BY_SIDE.search(latex):
        raise Unreadable("numbers side by side")
    text = re.sub(r"(\d)\.(?!\d)", r"\1", latex)
    text = _SUBSCRIPT.sub(r"_{\1\2}", text)
    text = _DENOMINATOR.sub(r"\\frac\1{\2}", _NUMERATOR.sub(r"\\frac{\1}", text))
    text = _FACTOR.sub(r"\1\\cdot(", text)  # the parser takes 2(3) for a mixed number
    # The parser knows \gamma as the gamma function only, and cannot read E with a subscript.
    text = re.sub(r"\\gamma(?![A-Za-z])", r"\\varpi ", text)
    text = re.sub(r"(?<![A-Za-z\\])E(?=\s*_)", r"\\Xi", text)
    try:
        expr = latex2sympy(text, normalization_config=_NORMALIZATION, conversion_config=_CONVERSION)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the parser raises bare Exceptions
        raise Unreadable("LaTeX that does not parse") from error
    if not isinstance(expr, sympy.Expr) or expr.has(sympy.zoo, sympy.nan):
        raise Unreadable("not a number or an expression")
    return Value(_exact(expr))


def _exact(expr):
    """Decimals as fractions, `i` as the imaginary unit, what is not computed (f(x), dM/dt) as symbols."""
    replace = {decimal: sympy.Rational(str(decimal)) for decimal in expr.atoms(sympy.Float)}
    replace |= {symbol: sympy.I for symbol in expr.free_symbols if symbol.name == "i"}
    replace |= {
        opaque: sympy.Symbol(sympy.srepr(opaque)) for opaque in expr.atoms(AppliedUndef, sympy.Derivative)
    }
    return expr.xreplace(replace).doit()


def _literal(latex: str) -> Value | None:
    """A number written in digits, exactly."""
    tight = latex.replace(" ", "")
    if match := _FRACTION.fullmatch(tight):
        top, bottom = (int(match[name] or match[name + "_"]) for name in ("top", "bottom"))
        return _fraction(match["sign"], match["whole"], top, bottom)
    if match := _SLASH.fullmatch(latex):
        return _fraction(match["sign"], match["whole"], int(match["top"]), int(match["bottom"]))
    if match := _REPEATING.fullmatch(tight):
        cycle = Fraction(int(match["cycle"]), 10 ** len(match["cycle"]) - 1)
        number = int(match["whole"] + match["part"]) + cycle
        return Value(_rational(_signed(match["sign"], number / 10 ** len(match["part"]))))
    match = _DECIMAL.fullmatch(tight)
    if match is None or not (match["whole"] or match["part"]):
        return None
    part, power = match["part"] or "", int(match["power"] or 0)
    number = Fraction(int(match["whole"] + part)) * Fraction(10) ** (power - len(part))
    expr = _rational(_signed(match["sign"], number))
    if not part and match["power"] is None:
        return Value(expr)
    return Value(expr, power - len(part), len((match["whole"] + part).lstrip("0")))


def _fraction(sign, whole, top, bottom):
    if bottom == 0:
        raise Unreadable("a division by zero")
    return Value(_rational(_signed(sign, int(whole or 0) + Fraction(top, bottom))))


def _signed(sign, number):
    return -number if sign == "-" else number


def _rational(number: Fraction):
    return sympy.Rational(number.numerator, number.denominator)
