#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes src/text/jinja/jinja_unicode_data.inc: what str.isprintable, upper, lower ... of Python 3.11 do."""
import sys

MAX = 0x110000
CHARS = [chr(c) if not 0xD800 <= c < 0xE000 else None for c in range(MAX)]


def ranges(pred):
    out, start = [], None
    for c in range(128, MAX + 1):
        yes = c < MAX and CHARS[c] is not None and pred(CHARS[c])
        if yes and start is None:
            start = c
        elif not yes and start is not None:
            out.append((start, c - 1))
            start = None
    return out


def case_runs(fn):
    """(first, last, stride, delta) of characters from U+0080 on with one-character mappings."""
    pairs = [(c, ord(fn(CHARS[c])) - c) for c in range(128, MAX)
             if CHARS[c] is not None and len(fn(CHARS[c])) == 1 and fn(CHARS[c]) != CHARS[c]]
    out = []
    for c, d in pairs:
        if out:
            first, last, stride, delta = out[-1]
            gap = c - last
            if delta == d and gap <= 2 and (stride in (0, gap)):
                out[-1] = (first, c, gap, d)
                continue
        out.append((c, c, 0, d))
    return [(a, b, s or 1, d) for a, b, s, d in out]


def emit(name, ctype, rows, per_line):
    print(f"\nstatic const struct {ctype} {name}[] = {{")
    for i in range(0, len(rows), per_line):
        print("    " + " ".join("{" + ", ".join(r) + "}," for r in rows[i:i + per_line]))
    print("};")


def main():
    print("/* SPDX-License-Identifier: MIT")
    print(" * jinja_unicode_data.inc - made by tools/gen_jinja_unicode.py, characters from U+0080 on. */")
    print("/* clang-format off */")
    print("#ifndef SL_TEXT_JINJA_UNICODE_DATA_H\n#define SL_TEXT_JINJA_UNICODE_DATA_H")
    print("""
#include <stdint.h>

struct range {
    uint32_t first, last;
};

struct case_run { /* every stride-th character from first to last moves by delta */
    uint32_t first, last, stride;
    int32_t delta;
};

struct case_full { /* what one character becomes when that is not one other character */
    uint32_t cp, to[3];
};""")
    h = "0x{:X}".format
    for name, pred in (("unprintable", lambda s: not s.isprintable()), ("alpha", str.isalpha),
                       ("decimal", str.isdecimal), ("digit", str.isdigit),
                       ("numeric", str.isnumeric), ("upper", str.isupper), ("lower", str.islower)):
        emit(name, "range", [(h(a), h(b)) for a, b in ranges(pred)], 4)
    for name, fn in (("to_lower", str.lower), ("to_upper", str.upper)):
        emit(name, "case_run", [(h(a), h(b), str(s), str(d)) for a, b, s, d in case_runs(fn)], 3)
    full = [(c, CHARS[c].upper()) for c in range(128, MAX)
            if CHARS[c] is not None and len(CHARS[c].upper()) > 1]
    emit("full_upper", "case_full",
         [(h(c), "{" + ", ".join(h(ord(x)) for x in s) + "}") for c, s in full], 2)
    title = [(c, CHARS[c].title()) for c in range(128, MAX)
             if CHARS[c] is not None and CHARS[c].title() != CHARS[c].upper()]
    emit("full_title", "case_full",
         [(h(c), "{" + ", ".join(h(ord(x)) for x in s) + "}") for c, s in title], 2)
    print("\n#endif")


if __name__ == "__main__":
    sys.exit(main())
