"""Units that may stand behind a number in an answer, each under one name."""

import re

_ALIASES = {
    "°": ("°", "degree", "degrees", "deg"),
    "°C": ("°C",),
    "°F": ("°F",),
    "rad": ("rad", "radian", "radians"),
    "mm": ("mm", "millimeter", "millimeters", "millimetre", "millimetres"),
    "cm": ("cm", "centimeter", "centimeters", "centimetre", "centimetres"),
    "m": ("m", "meter", "meters", "metre", "metres"),
    "km": ("km", "kilometer", "kilometers", "kilometre", "kilometres"),
    "inch": ("in", "inch", "inches"),
    "foot": ("ft", "foot", "feet"),
    "yard": ("yd", "yard", "yards"),
    "mile": ("mi", "mile", "miles"),
    "g": ("g", "gram", "grams"),
    "kg": ("kg", "kilogram", "kilograms"),
    "pound": ("lb", "lbs", "pound", "pounds"),
    "ounce": ("oz", "ounce", "ounces"),
    "ml": ("ml", "mL", "milliliter", "milliliters"),
    "liter": ("l", "L", "liter", "liters", "litre", "litres"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "min": ("min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "day": ("day", "days"),
    "week": ("week", "weeks"),
    "month": ("month", "months"),
    "year": ("yr", "yrs", "year", "years"),
    "dollar": ("dollar", "dollars", "usd", "USD"),
    "cent": ("cent", "cents"),
    "unit": ("unit", "units"),
    "mph": ("mph",),
    "kmh": ("kmh", "kph"),
}
_NAME_OF = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
# Without \text around it one letter is a variable, and `in` a word.
_PLAIN = sorted((alias for alias in _NAME_OF if len(alias) > 1 and alias != "in"), key=len, reverse=True)
_POWER = r"(?:\s*\^\s*(?:\{\d\}|\d))?"
_ONE = rf"(?:(?:square|sq\.?|cubic|cu\.?)\s+)?(?:{'|'.join([*_PLAIN, '°'])})(?![A-Za-z]){_POWER}"
PLAIN_UNIT = re.compile(
    rf"(?P<value>.*[\d)}}])\s*(?P<unit>{_ONE}(?:\s*(?:/|per)\s*(?:{_ONE}|[smh]))?)", re.DOTALL
)
TEXT_UNIT = re.compile(
    r"(?P<value>.*?[^\s\\{(^_+*/=-])\s*"
    r"(?P<unit>(?:(?:\\mu\s*)?\\text\{[^{}]*\}\s*(?:\^\s*(?:\{-?\d\}|\d))?\s*(?:(?:/|\\cdot)\s*)?)+)",
    re.DOTALL,
)
MULTIPLIERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}  # powers of ten
# A text with one of these is a remark that changes the answer, not a unit.
_NO_UNIT = {
    "or", "and", "more", "less", "at", "least", "most", "than", "not", "no", "if", "for", "when", "mod",
    "plus", "minus", "only", "but", "about", "approximately", "other", "times", "dozen",
}  # fmt: skip


def unit_name(text: str) -> str | None:
    r"""One name for a unit however it is written (`\text{ inches}^2`, `square inch`); None if it is none."""
    plain = re.sub(r"\\text\s*|[{}]", " ", text).replace(r"\cdot", " ").replace(r"\mu", "micro ")
    plain = re.sub(r"\bper\b", "/", plain)
    parts = re.findall(r"[A-Za-z°.]+|/|\^\s*-?\d+", plain)
    if not parts or any(part.casefold() in _NO_UNIT for part in parts):
        return None
    name, power = "", ""
    for part in parts:
        if part.casefold().rstrip(".") in ("square", "sq", "cubic", "cu"):
            power = "^2" if part[0] in "sS" else "^3"
        elif part == "/" or part.startswith("^"):
            name += part.replace(" ", "")
        else:
            word = part.rstrip(".")
            known = _NAME_OF.get(word) or _NAME_OF.get(word.casefold()) or word.casefold().removesuffix("s")
            name += (" " if name and name[-1] != "/" else "") + known + power
            power = ""
    return name
