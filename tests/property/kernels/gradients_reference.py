"""Slow and obvious: the gradients specification, sections 2 and 4, one coordinate at a time, in plain Python.

Written from the specification alone, with lists, dicts, Python integers and Python floats; the kernels are checked
against it byte for byte.
"""

import math
import struct

C = 4096


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def float32_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def small_float(number):
    """An integer in 2^-24 truncated to 11 bits: (code, value)."""
    exponent = 0
    while number >> exponent >= 2048:
        exponent += 1
    mantissa = number >> exponent
    return exponent << 11 | mantissa, mantissa << exponent


def to_fixed(value):
    return math.floor(value * 2.0**24 + 0.5)


class BitWriter:
    def __init__(self):
        self.bits = []

    def put(self, value, width):
        self.bits += [value >> bit & 1 for bit in range(width)]

    def to_bytes(self):
        padded = self.bits + [0] * (-len(self.bits) % 8)
        return bytes(sum(padded[i + j] << j for j in range(8)) for i in range(0, len(padded), 8))


def encode_chunk(e, k, bits):
    """One chunk, a list of C floats (float32 values): (record, residual, {index: value})."""
    by_size = sorted(range(C), key=lambda i: (-(float32_bits(e[i]) & 0x7FFFFFFF), i))
    indices = sorted(by_size[:k])
    absolute = [abs(e[i]) for i in indices]
    steps = 2 ** (bits - 1) - 1
    if bits == 2:
        t = _ordered_sum(absolute) / k
        below = [x for x in absolute if x < t]
        others = [x for x in absolute if not x < t]
        base = _ordered_sum(below) / len(below) if below else t
        step = _ordered_sum(others) / len(others) - base if below and others else 0.0
    else:
        base = min(absolute)
        step = (max(absolute) - base) / steps
    a_code, a = small_float(min(to_fixed(base), 2**22))
    d_code, d = small_float(min(to_fixed(step), (2**22 - a) // steps))
    low_width = (C // k).bit_length() - 1
    low, codes, upper = BitWriter(), BitWriter(), [0] * (k + (C >> low_width))
    residual, decoded = list(e), {}
    for j, i in enumerate(indices):
        q = 0
        if d:
            q = min(max(math.floor((abs(e[i]) * 2.0**24 - a) / d + 0.5), 0), steps)
        negative = e[i] < 0
        low.put(i, low_width)
        upper[(i >> low_width) + j] = 1
        codes.put(q << 1 | int(negative), bits)
        decoded[i] = -(a + q * d) if negative else a + q * d
        residual[i] = float32(e[i] - decoded[i] * 2.0**-24)
    high = BitWriter()
    for bit in upper:
        high.put(bit, 1)
    record = struct.pack("<HH", a_code, d_code) + low.to_bytes() + high.to_bytes() + codes.to_bytes()
    return record, residual, decoded


def _ordered_sum(values):
    total = 0.0
    for value in values:
        total += value
    return total


def encode(e, k, bits):
    """A whole vector: (body, residual, {coordinate: value})."""
    body, residual, decoded = b"", [], {}
    for start in range(0, len(e), C):
        record, rest, values = encode_chunk(e[start : start + C], k, bits)
        body += record
        residual += rest
        decoded.update({start + i: value for i, value in values.items()})
    return body, residual, decoded


class Refused(Exception):
    pass


def _bits(data):
    return [byte >> bit & 1 for byte in data for bit in range(8)]


def decode_chunk(record, k, bits):
    """One record to {index: value}; raises Refused exactly where the specification says so."""
    low_width = (C // k).bit_length() - 1
    sizes = [k * low_width, k + (C >> low_width), k * bits]
    if len(record) != 4 + sum(-(-size // 8) for size in sizes):
        raise Refused("length")
    a_code, d_code = struct.unpack("<HH", record[:4])
    sections, start = [], 4
    for size in sizes:
        section = _bits(record[start : start + -(-size // 8)])
        start += -(-size // 8)
        if any(section[size:]):
            raise Refused("padding")
        sections.append(section[:size])
    low, upper, codes = sections
    if sum(upper) != k:
        raise Refused("popcount")
    scales = []
    for code in (a_code, d_code):
        exponent, mantissa = code >> 11, code & 2047
        if exponent and mantissa < 1024:
            raise Refused("small float")
        scales.append(mantissa << exponent)
    a, d = scales
    if a + (2 ** (bits - 1) - 1) * d > 2**22:
        raise Refused("bound")
    decoded, last = {}, -1
    for j, position in enumerate([p for p, bit in enumerate(upper) if bit]):
        index = (position - j) << low_width | sum(low[j * low_width + b] << b for b in range(low_width))
        if index >= C or index <= last:
            raise Refused("index")
        last = index
        code = sum(codes[j * bits + b] << b for b in range(bits))
        magnitude = a + (code >> 1) * d
        decoded[index] = -magnitude if code & 1 else magnitude
    return decoded


def decode(body, k, bits, chunks):
    if chunks < 1 or len(body) % chunks:
        raise Refused("length")
    length, decoded = len(body) // chunks, {}
    for chunk in range(chunks):
        values = decode_chunk(body[chunk * length : (chunk + 1) * length], k, bits)
        decoded.update({chunk * C + i: value for i, value in values.items()})
    return decoded


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2]


def gram(proposals):
    return [[sum(x[i] * y[i] for i in x.keys() & y.keys()) for y in proposals] for x in proposals]


def weights(matrix, rule, limit):
    """Weights in Q16 and the norm clipped to."""
    count = len(matrix)
    n = [math.isqrt(matrix[i][i] << 32) for i in range(count)]
    med = lower_median(n)
    if limit:
        med = min(med, limit)
    if rule == "mean":
        return [65536] * count, med
    clipped = [65536 if n[i] <= med else (med << 16) // n[i] for i in range(count)]
    w, big = clipped, count << 16
    for _ in range(5 if rule == "centered_clip" else 0):
        t = [sum(matrix[i][j] * w[j] for j in range(count)) for i in range(count)]
        s = sum(w[i] * t[i] for i in range(count))
        d = [math.isqrt(max(0, matrix[i][i] * big * big - 2 * t[i] * big + s)) for i in range(count)]
        tau = lower_median(d)
        c = [65536 if d[i] <= tau else (tau << 16) // d[i] for i in range(count)]
        w = [(w[j] * (big - sum(c))) // big + c[j] for j in range(count)]
    length = summed_norm(matrix, w)
    if length > med * big:
        w = [w[j] * med * big // length for j in range(count)]
        if summed_norm(matrix, w) > med * big:
            w = [min(w[j], clipped[j]) for j in range(count)]
    return w, med


def summed_norm(matrix, w):
    """Norm of the weighted sum: that of the mean, times count << 16."""
    pairs = [(i, j) for i in range(len(w)) for j in range(len(w))]
    return math.isqrt(sum(w[i] * matrix[i][j] * w[j] for i, j in pairs) << 32)


def q16(x):
    return (abs(x) >> 16) * (1 if x >= 0 else -1)


def sat31(x):
    return max(-(2**31 - 1), min(2**31 - 1, x))


def step(theta, momentum, proposals, w, divisor, lr, mu, nesterov):
    """New theta (list of float32 values) and momentum (list of int, or None)."""
    theta, moved = list(theta), None if momentum is None else list(momentum)
    for i in range(len(theta)):
        acc = sum(weight * x.get(i, 0) for weight, x in zip(w, proposals, strict=True))
        g = math.floor(((acc << 4) + divisor // 2) // divisor)
        if moved is None:
            u = g
        else:
            moved[i] = sat31(q16(moved[i] * mu) + g)
            u = g + q16(moved[i] * mu) if nesterov else moved[i]
        delta = sat31(q16(u * lr))
        if delta:
            theta[i] = float32(theta[i] - float32(float(delta)) * 2.0**-28)
    return theta, moved
