r"""Answers with the verdict that they deserve, by kind, and where that verdict comes from.

Every row is `gold | answer`; the sign is that of the block. The right verdict follows from arithmetic or from
a convention that the block names. Written for this project; none is a row of a benchmark.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Kind:
    """Cases of one kind; `source` says why the verdicts are right."""

    name: str
    source: str
    right: str
    wrong: str


KINDS = (
    Kind(
        "integers",
        "a number is its value, however it is written; another digit is another number",
        r"""
12 | +12
-7 | -7.0
4096 | 2^{12}
720 | 6!
1000000 | 10^6
17 | 17.
""",
        r"""
12 | 21
12 | 1
-7 | 7
12 | 112
17 | 17.5
6 | 6!
""",
    ),
    Kind(
        "fractions",
        "cross-multiplication",
        r"""
\frac{3}{8} | \dfrac{6}{16}
\frac{3}{8} | 3/8
\frac{3}{8} | 0.375
-\frac{5}{2} | \frac{-5}{2}
-\frac{5}{2} | -2.5
\frac37 | \frac{3}{7}
0.2 | \tfrac15
""",
        r"""
\frac{3}{8} | \frac{8}{3}
\frac{3}{8} | 38
-\frac{5}{2} | \frac{5}{2}
\frac{3}{8} | 0.38
\frac{3}{8} | 3, 8
""",
    ),
    Kind(
        "mixed numbers",
        "a whole number before a fraction of digits is added to it; brackets multiply",
        r"""
2\frac{3}{4} | \frac{11}{4}
2\frac{3}{4} | 2.75
2\frac{3}{4} | 2 3/4
-1\frac{1}{2} | -1.5
12 | 4(3)
""",
        r"""
2\frac{3}{4} | \frac{3}{2}
2\frac{3}{4} | \frac{5}{4}
-1\frac{1}{2} | -\frac{1}{2}
7 | 4(3)
7 | 4 3
""",
    ),
    Kind(
        "decimals",
        "a decimal gold of 3 digits or more is met by what rounds to it, if endless or given more closely; a "
        "gold without a finite decimal by at least 6 digits; a double's rounding is none; otherwise exactly",
        r"""
2.718 | e
0.667 | \frac{2}{3}
3.142 | 3.14159
3.14 | 3.1416
3.14 | \pi
\frac{1}{7} | 0.142857
\frac{1}{7} | 0.1428571428571428
\sqrt{2} | 1.414214
40 | 39.99999999999999
0.\overline{6} | \frac{2}{3}
.25 | 0.250
""",
        r"""
2.718 | 2.719
2.718 | 2.7
12.5 | 12.46
12.5 | 12.48
12.5 | \frac{623}{50}
1.25 | 1.2514
3.14 | 3.15
0.5 | 0.51
8.0 | 8.04
\frac{1}{7} | 0.1428
\frac{1}{7} | 0.142858571
\sqrt{2} | 1.41
\frac{1}{16} | 0.062501
40 | 39.99
0.\overline{6} | 0.6
""",
    ),
    Kind(
        "small and large numbers",
        "equality is relative: no two numbers are equal for being small",
        r"""
0.00004 | 4e-5
6 \times 10^{-9} | 0.000000006
3.0e8 | 3 \cdot 10^{8}
5e33 | 5 \times 10^{33}
""",
        r"""
0.00004 | 0.00005
10^{-9} | 10^{-10}
0 | 10^{-12}
10^{-12} | 0
5e33 | 5e34
10^{20} | 10^{20}+1
1e-7 | 0.0000001001
""",
    ),
    Kind(
        "thousands",
        "commas between groups of three digits belong to the number, except inside brackets",
        r"""
1234567 | 1,234,567
12,\!500 | 12500
12{,}500 | 12,500
\$4,200 | 4200
""",
        r"""
12500 | 12, 500
(1,200) | 1200
1234567 | 1,234
12,500 | 12.5
""",
    ),
    Kind(
        "radicals and logarithms",
        "algebra; sqrt(12) = 2 sqrt(3)",
        r"""
2\sqrt{3} | \sqrt{12}
2\sqrt3 | 2*sqrt(3)
\frac{\sqrt{2}}{2} | \frac{1}{\sqrt{2}}
\sqrt{5}-2 | \frac{1}{\sqrt{5}+2}
\sqrt[3]{16} | 2\sqrt[3]{2}
\log_2 32 | 5
\ln 9 | 2\ln 3
""",
        r"""
2\sqrt{3} | 3\sqrt{2}
\sqrt{5} | 5
\sqrt{5}-2 | 2-\sqrt{5}
\sqrt[3]{16} | \sqrt{16}
\log_2 32 | \ln 32
\sqrt{x^2} | x
""",
    ),
    Kind(
        "expressions",
        "equal as functions of their letters; capital and small letters differ; nothing may be left out",
        r"""
x^2-y^2 | (x-y)(x+y)
3n+1 | 1+3n
x-y | -y+x
a-b-c | -c+a-b
\frac{n(n+1)}{2} | \binom{n+1}{2}
2\cos^2 t-1 | \cos 2t
\lfloor \frac{n}{2} \rfloor | \left\lfloor n/2 \right\rfloor
6mn | 6nm
3-4i | -4i+3
(1+i)^2 | 2i
""",
        r"""
x^2-y^2 | (x-y)^2
3n+1 | 3n
3xy | 3
6m | 6
R | r
\frac{n(n+1)}{2} | \frac{n(n-1)}{2}
x^2 | 4
3-4i | 3+4i
ab+c | ab
""",
    ),
    Kind(
        "equations and assignments",
        "a name may be left out or added, but not changed; what is claimed on the way must be true; "
        "equations are equal up to a factor",
        r"""
x=5 | 5
5 | x=5
5 | 5=x
n = k+4 | k+4
f(x)=x^2 | x^2
f(n)=2n | f(z)=2z
f(x,y)=x-y | f(u,v)=u-v
7 | 3+4=7
7 | x = 3+4 = 7
y=3x-2 | y=-2+3x
y=3x-2 | 3x-y=2
2x+3y=6 | 4x+6y-12=0
1.5 | x = \frac{3}{2} = 1.5
\sqrt{2} | \sqrt{2} \approx 1.414
x=2, y=3 | y=3, x=2
""",
        r"""
f(n)=2n | f(z)=2n
f(x,y)=x-y | f(y,x)=x-y
x=5 | y=5
x=5 | x=6
3 | 4=3
7 | 3+5=7
7 | x = 8 = 7
y=3x-2 | y=3x+2
2x+3y=6 | 2x+3y=7
2x+3y=6 | 6
x=2, y=3 | x=3, y=2
x=2, y=3 | 2, 3
5 | x+1=6
5 | x=
""",
    ),
    Kind(
        "several values",
        "values may come in any order, but all of them and no others; repeated ones count",
        r"""
1, -4 | -4, 1
1, -4 | 1 and -4
1, -4 | x=1 or x=-4
2\pm\sqrt{7} | 2-\sqrt{7}, 2+\sqrt{7}
\{1,2,3\} | \{3,1,2\}
\{1,2,3\} | 1, 2, 3
\{1,2\} | \{1,2,2\}
\{5\} | 5
\emptyset | \varnothing
""",
        r"""
1, -4 | 1
1 | 1, -4
1, -4 | 1, 4
3 | 3 or 4
2, 2, 3 | 2, 3
\{1,2,3\} | \{1,2\}
\{1,2\} | \{1,2,3\}
2\pm\sqrt{7} | 2+\sqrt{7}
\emptyset | 0
5 | 5, 5
840 | 840,840
""",
    ),
    Kind(
        "tuples",
        "components in order and in brackets; a list is no point",
        r"""
(1,-2) | \left(1, -2\right)
(\frac12, 0.25) | (0.5, \frac14)
(x,y)=(3,4) | (3,4)
(1,2), (3,4) | (3,4), (1,2)
""",
        r"""
(1,-2) | (-2,1)
(1,-2) | 1,-2
1,-2 | (1,-2)
(1,2,3) | (1,2)
(1,2), (3,4) | (1,3), (2,4)
(1,2) | \{1,2\}
""",
    ),
    Kind(
        "intervals",
        "ends in order, each open or closed as its bracket or sign says",
        r"""
[0,4) | 0 \le x < 4
(2,\infty) | x>2
(2,\infty) | 2 < x
(-\infty,3] | x \leq 3
x \in [1,9] | [1,9]
(0,1) \cup (2,3) | (2,3) \cup (0,1)
\mathbb{R} | (-\infty,\infty)
""",
        r"""
[0,4) | (0,4)
[0,4) | [0,4]
[0,4) | 0,4
(2,\infty) | x \ge 2
(2,\infty) | x<2
(0,1) \cup (2,3) | (0,3)
(0,1) \cup (2,3) | (0,1)
[1,9] | [9,1]
""",
    ),
    Kind(
        "matrices",
        "entry by entry, in one shape",
        r"""
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{bmatrix} 1&2\\3&4 \end{bmatrix}
\begin{pmatrix} 1/2 \\ -3 \end{pmatrix} | \begin{pmatrix} 0.5 \\ -3 \end{pmatrix}
""",
        r"""
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}
\begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix} 1 & 2 \end{pmatrix}
\begin{pmatrix} 1 \\ 2 \end{pmatrix} | 1, 2
""",
    ),
    Kind(
        "units",
        "the question fixes the unit, so it may be left out or added, but not changed; a word that scales or "
        "qualifies is no unit",
        r"""
45^\circ | 45
45^\circ | 45°
45^\circ | 45 degrees
45^\circ | \frac{\pi}{4}
12 \text{ cm} | 12
12 | 12\text{ apples}
12 \text{ cm}^2 | 12 \text{ square centimeters}
12 \text{ cm} | 12\ \mathrm{cm}
\$7.50 | 7.50 dollars
3 \text{ million} | 3000000
60 \text{ km/h} | 60 \text{ km per hour}
14_5 | 14_{5}
14_5 | 14
""",
        r"""
45^\circ | 54^\circ
45^\circ | 45 \text{ radians}
12 \text{ cm} | 12 \text{ m}
12 \text{ cm}^2 | 12 \text{ cm}
\$7.50 | 7.50 \text{ cents}
3 | 3 \text{ million}
3 | 3 \text{ or more}
3 | \text{at least } 3
14_5 | 14_6
9 | 14_5
14 | 14_5
""",
    ),
    Kind(
        "percent",
        "p% is p/100; a bare gold above 1 may be a number of percent",
        r"""
35\% | 0.35
35\% | 35
35\% | 35 percent
35 | 35\%
0.35 | 35\%
\frac{1}{4} | 25\%
""",
        r"""
35\% | 3.5
35\% | 0.035
0.35 | 0.35\%
1 | 1\%
\frac{1}{4} | 4\%
""",
    ),
    Kind(
        "words",
        "the same words; case, spacing and choice brackets do not matter",
        r"""
\text{Monday} | monday
\text{(D)} | D
\text{no solution} | No solution.
\text{odd} | \textbf{odd}
""",
        r"""
\text{Monday} | Tuesday
\text{(D)} | B
\text{odd} | even
\text{odd} | not odd
\text{yes} | 1
6 | six
""",
    ),
    Kind(
        "spelling",
        "commands for size, space and font carry no meaning",
        r"""
(3, \frac{\pi}{2}) | \bigl(3,\,\dfrac{\pi}{2}\bigr)
5 | $5$
5 | \(5\)
5 | \mathbf{5}
\frac{7}{9} | \displaystyle\frac{7}{9}
\frac{7}{9} | \ \frac{7}{9}\ .
\pi | π
2\sqrt{3} | 2√3
2\cdot 3^5 | 2 \times 3^{5}
""",
        r"""
5 | $6$
\pi | p
-4 | 4
2\cdot 3^5 | 2 \times 35
""",
    ),
    Kind(
        "what is no answer",
        "nothing is equal to nothing; broken LaTeX is no answer; the last box counts, and only it",
        r"""
4 | \boxed{3} and then \boxed{4}
4 | so it is \boxed{4}.
\frac{1}{2} | \boxed{\frac{1}{2}}
""",
        r"""
4 | {
4 | }
4 | \frac{4}
4 | \boxed{4} and then \boxed{}
4 | \boxed{4} and then \boxed{5}
4 | \boxed{
4 | the answer is 4 or so
4 | \frac{4}{0}
x | \text{}
4 | ?
""",
    ),
)  # fmt: skip


def cases() -> list[tuple[str, str, str, bool]]:
    """(kind, gold, answer, right) of every row."""
    return [
        (kind.name, *(part.strip() for part in row.split(" | ")), right)
        for kind in KINDS
        for block, right in ((kind.right, True), (kind.wrong, False))
        for row in block.strip().splitlines()
    ]
