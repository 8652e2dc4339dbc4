"""What the template imports and tries once, so that no snippet has to."""

import contextlib
import gc
import importlib
import linecache

# Routed by what a snippet imports: `wide` costs each fork more, and only snippets of scipy gain by it.
PROFILES = {
    "narrow": (
        "math",
        "random",
        "itertools",
        "functools",
        "collections",
        "fractions",
        "decimal",
        "numpy",
        "sympy",
    ),
    "wide": (
        *("numpy", "sympy", "scipy", "scipy.optimize", "scipy.integrate", "scipy.linalg", "scipy.special"),
        *("scipy.stats", "scipy.sparse", "scipy.interpolate"),
    ),
}
_TRIED = """
import sympy
x, y = sympy.symbols("x y")
sympy.factor(x**4 - 1), sympy.expand((x + y) ** 3), sympy.solve(x**2 - 3 * x + 2, x)
sympy.simplify((x**2 - 1) / (x - 1)), sympy.diff(sympy.sin(x) * x, x), sympy.integrate(x**2 + x, x)
sympy.Matrix([[1, 2], [3, 4]]).det(), sympy.factorint(360), sympy.nsimplify(0.5), sympy.sqrt(8), str(sympy.pi)
sympy.Rational(1, 3) + sympy.Integer(2), sympy.N(sympy.E), sympy.latex(x**2), sympy.isprime(101)
"""


def warm(profile: str):
    """Imports the modules of a profile, as far as they are installed, and runs the lazy parts of sympy."""
    for name in PROFILES[profile]:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    with contextlib.suppress(ModuleNotFoundError):
        exec(_TRIED, {})
    linecache.clearcache()
    gc.collect()
    gc.freeze()  # the collector of a child must not touch, and so copy, our pages
