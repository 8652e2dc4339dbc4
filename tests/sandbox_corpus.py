"""Snippets of many kinds, to be run here and by a plain interpreter."""

SNIPPETS = {
    "nothing": "",
    "comment": "# nothing",
    "print": "print(6 * 7)",
    "print_no_newline": "print('a', end='')",
    "print_many": "for k in range(5000): print(k)",
    "print_both": "import sys\nprint('o')\nprint('e', file=sys.stderr)",
    "unicode": "print('h\u00e9llo \u4e2d\u6587 \U0001f600')",
    "surrogate_escape": "print('\\udc80')",
    "surrogate": "print('\\ud800')",
    "repr_unicode": "print(ascii('\u00e9'), repr('\\x00\\u200b'))",
    "binary": "import sys; sys.stdout.buffer.write(bytes(range(128))); sys.stdout.flush()",
    "mixed_binary": (
        "import sys\nprint('a'); sys.stdout.flush(); sys.stdout.buffer.write(b'b\\n'); print('c')"
    ),
    "carriage_return": "print('a\\r\\nb\\rc')",
    "division": "1/0",
    "nested_error": "def f(x):\n    return g(x)\ndef g(x):\n    return x['k']\nf({})",
    "error_in_line_3": "x = 1\ny = 2\nz = x + 'a'\n",
    "chained": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise ValueError('bad') from e",
    "context": "try:\n    1/0\nexcept ZeroDivisionError:\n    [][1]",
    "group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "notes": "e = ValueError('v'); e.add_note('a note'); raise e",
    "custom_error": "class OddError(Exception): pass\nraise OddError('odd', 1)",
    "name_error": "valu = 1\nprint(value)",
    "attribute_error": "import math\nmath.sqr(4)",
    "import_error": "import no_such_module",
    "from_import_error": "from math import no_such_name",
    "assertion": "assert 1 == 2, 'unequal'",
    "syntax": "x = 1\nprint(x",
    "syntax_2": "def f(:\n  pass",
    "indentation": "def f():\npass",
    "tabs": "if True:\n\tx = 1\n        y = 2",
    "future_late": "x = 1\nfrom __future__ import annotations",
    "future": "from __future__ import annotations\ndef f(x: Nope): return x\nprint(f(1), f.__annotations__)",
    "latin_cookie": "# -*- coding: latin-1 -*-\nprint(len('\u00e9'))",
    "exit_0": "import sys; sys.exit()",
    "exit_3": "import sys; sys.exit(3)",
    "exit_256": "import sys; sys.exit(256)",
    "exit_minus_1": "import sys; sys.exit(-1)",
    "exit_text": "import sys; print('o'); sys.exit('fatal: text')",
    "exit_none": "raise SystemExit(None)",
    "exit_tuple": "raise SystemExit((1, 2))",
    "exit_bool": "raise SystemExit(True)",
    "exit_builtin": "exit(4)",
    "os_exit": "import os; print('lost'); os._exit(5)",
    "exit_in_function": (
        "def f():\n    try:\n        raise SystemExit(6)\n    finally:\n        print('finally')\nf()"
    ),
    "interrupted": "raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "aborted": "import os; os.abort()",
    "atexit": "import atexit\natexit.register(print, 'bye')\nprint('hi')",
    "atexit_order": "import atexit\nfor k in range(3): atexit.register(print, k)\n1/0",
    "atexit_fails": "import atexit\natexit.register(lambda: 1/0)",
    "destructor": "class D:\n    def __del__(self): print('gone')\nd = D()",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1/0",
    "broken_excepthook": "import sys\ndef hook(*a): raise KeyError('x')\nsys.excepthook = hook\n1/0",
    "thread": "import threading\nt = threading.Thread(target=print, args=('t',)); t.start(); t.join()",
    "unjoined_thread": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print('t'))).start()\n"
        "print('m')"
    ),
    "thread_error": (
        "import threading\nt = threading.Thread(target=lambda: 1/0, name='T'); t.start(); t.join()"
    ),
    "executor": (
        "from concurrent.futures import ThreadPoolExecutor as P\n"
        "with P(2) as p: print(list(p.map(abs, [-1, -2])))"
    ),
    "fork_pool": (
        "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: print(p.map(abs, [-1, 2]))"
    ),
    "spawn_pool": (
        "import multiprocessing as m\ndef f(x): return x + 1\n"
        "if __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p: print(p.map(f, [1, 2]))"
    ),
    "asyncio": (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\nprint(asyncio.run(f()))"
    ),
    "subprocess": (
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'print(3)'], capture_output=True).stdout)"
    ),
    "system": "import os, sys\nprint('a'); sys.stdout.flush(); print(os.system('echo b; exit 3'))",
    "stdin_line": "print(input()[::-1])",
    "stdin_all": "import sys; print(sys.stdin.read().upper())",
    "stdin_loop": "import sys\nfor line in sys.stdin: print(repr(line))",
    "stdin_end": "input(); input(); input(); input()",
    "stdin_bytes": "import sys; print(sys.stdin.buffer.read())",
    "big_integer": "print(2**10000 % 10**50, len(str(3**8000)))",
    "too_many_digits": "print(10**5000)",
    "warning": "import warnings\nwarnings.warn('careful')\nprint(1)",
    "deprecation": "import warnings\nwarnings.warn('old', DeprecationWarning)",
    "syntax_warning": "x = 1\nif x is 1: print('is')",
    "resource": "f = open('f', 'w'); f.write('x')\nprint(open('f').read() == '')",
    "recursion": "def f(n): return f(n + 1)\nf(0)",
    "recursion_depth": (
        "def f(n):\n    try: return f(n + 1)\n    except RecursionError: return n\nprint(f(0))"
    ),
    "deep_limit": (
        "import sys\nsys.setrecursionlimit(5000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(4000))"
    ),
    "main_names": "print(sorted(dir()), __name__, __spec__, __package__, __doc__)",
    "docstring": "'''Doc.'''\nprint(__doc__)",
    "annotations": "x: int = 3\nprint(__annotations__)",
    "argv": "import sys; print(len(sys.argv), __file__.rpartition('/')[2])",
    "streams": (
        "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n"
        "    print(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.isatty())"
    ),
    "traceback_module": "import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()",
    "inspect_source": "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))",
    "pickle": "import pickle\nclass C: x = 1\nprint(pickle.loads(pickle.dumps(C())).x)",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass P: x: int\nprint(P(1))",
    "decimal": "from decimal import Decimal, getcontext\ngetcontext().prec = 30\nprint(Decimal(1) / 7)",
    "fractions": "from fractions import Fraction as F\nprint(F(1, 3) + F(1, 6))",
    "datetime": "import datetime; print(datetime.date(2020, 2, 29) + datetime.timedelta(days=365))",
    "regex": "import re; print(re.findall(r'\\d+', 'a1b22'))",
    "globals_in_exec": "exec('y = 2'); print(y, 'y' in globals())",
    "closed_stdout": "import sys; sys.stdout.close()",
    "numpy": "import numpy as n; print(n.arange(6).reshape(2, 3) @ n.ones((3, 2)), n.linalg.det(n.eye(3)))",
    "numpy_warning": "import numpy as np; print(np.array([1.0]) / 0)",
    "numpy_seed": (
        "import numpy as np, random\nnp.random.seed(0); random.seed(0); "
        "print(np.random.rand(2), random.random())"
    ),
    "sympy": (
        "import sympy as s; x = s.symbols('x'); "
        "print(s.factor(x**4 - 1), s.integrate(s.sin(x), x), s.solve(x**2 - 2))"
    ),
    "sympy_dummy": (
        "import sympy as s; x = s.symbols('x'); "
        "print(s.limit(s.sin(x) / x, x, 0), s.series(s.exp(x), x, 0, 4))"
    ),
    "sympy_error": "import sympy as s; s.sympify('1 +')",
    "scipy": "import scipy.optimize as o; print(round(o.brentq(lambda x: x**3 - 2, 0, 2), 8))",
    "matplotlib": (
        "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.savefig('f.png'); "
        "print(open('f.png', 'rb').read(4))"
    ),
}
