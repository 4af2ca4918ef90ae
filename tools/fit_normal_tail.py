#!/usr/bin/env python3
"""Makes the coefficients of kernels/vector_math.inl: the tail of the normal distribution, without its exponential.

tail(a) = exp(a^2 / 2) * Phi(-a) for 0 <= a <= 15 is fitted by t * P(1 - t), t = 1 / (1 + slope * a), so that the largest
relative error is least (Remez). Prints that error, also with the coefficients rounded to floats, and the coefficients.

usage: fit_normal_tail.py [degree] [slope]
"""

import math
import struct
import sys

LONGEST = 15.0


def tail(a):
    return 0.5 * math.exp(a * a / 2) * math.erfc(a / math.sqrt(2))


def solve(rows):
    """Gaussian elimination with pivots over rows [coefficients..., right-hand side]."""
    n = len(rows)
    for c in range(n):
        pivot = max(range(c, n), key=lambda r: abs(rows[r][c]))
        rows[c], rows[pivot] = rows[pivot], rows[c]
        for r in range(c + 1, n):
            factor = rows[r][c] / rows[c][c]
            rows[r] = [x - factor * y for x, y in zip(rows[r], rows[c])]
    x = [0.0] * n
    for c in reversed(range(n)):
        x[c] = (rows[c][n] - sum(rows[c][k] * x[k] for k in range(c + 1, n))) / rows[c][c]
    return x


def horner(p, t):
    y = 0.0
    for c in reversed(p):
        y = y * t + c
    return y


def fit(degree, slope):
    last = 1 / (1 + slope * LONGEST)

    def a_of(t):
        return max(0.0, (1 / t - 1) / slope)

    def error(p, t):
        return t * horner(p, 1 - t) / tail(a_of(t)) - 1

    count = degree + 2
    nodes = [last + (1 - last) * (1 - math.cos(math.pi * k / (count - 1))) / 2 for k in range(count)]
    grid = [last + (1 - last) * (1 - math.cos(math.pi * k / 4000)) / 2 for k in range(4001)]
    for _ in range(40):
        rows = [[t * (1 - t) ** k / tail(a_of(t)) for k in range(degree + 1)] + [(-1.0) ** n, 1.0]
                for n, t in enumerate(nodes)]
        p = solve(rows)[:-1]
        errors = [error(p, t) for t in grid]
        nodes = []  # the largest error of each stretch of one sign
        start = 0
        for k in range(1, len(grid) + 1):
            if k == len(grid) or errors[k] * errors[start] < 0:
                nodes.append(max(range(start, k), key=lambda n: abs(errors[n])))
                start = k
        while len(nodes) > count:
            nodes.pop(0 if abs(errors[nodes[0]]) < abs(errors[nodes[-1]]) else -1)
        if len(nodes) < count:
            break
        nodes = [grid[n] for n in nodes]
    rounded = [struct.unpack("f", struct.pack("f", c))[0] for c in p]
    worst = max(abs(e) for e in errors)
    return p, worst, max(abs(error(rounded, t)) for t in grid)


def main():
    degree = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    slope = float(sys.argv[2]) if len(sys.argv) > 2 else 0.3
    p, worst, rounded = fit(degree, slope)
    print(f"degree {degree}, slope {slope}: relative error {worst:.2e}, with coefficients as floats {rounded:.2e}")
    for c in p:
        print(f"  {c:.10e}F")


if __name__ == "__main__":
    main()
