#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes src/text/tok_unicode_tables.inc: the character properties the tokenizer needs.

Uses the unicodedata2 package where it is installed (its 16.0.0 is the Unicode version of the
regex engines in the tokenizers and tiktoken libraries), else Python's own unicodedata.
Usage: tools/gen_unicode.py > src/text/tok_unicode_tables.inc
"""
import sys

try:
    import unicodedata2 as ud
except ImportError:
    import unicodedata as ud

CATS = ["Cn", "Cc", "Cf", "Co", "Cs", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
        "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp"]
SPACE, WORD, EXTEND, SPACING, PREPEND, SPLIT = (1 << b for b in range(5, 11))
WHITE = set([0x85] + list(range(9, 14)))
PREPENDED = set(list(range(0x600, 0x606)) + [0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0xD4E, 0x110BD,
                0x110CD, 0x111C2, 0x111C3, 0x1193F, 0x11941, 0x11A3A, 0x11D46, 0x11F02] +
                list(range(0x11A84, 0x11A8A)))
# Mc characters that extend a grapheme (Other_Grapheme_Extend), and those that do not attach.
MC_EXTEND = {0x9BE, 0x9D7, 0xB3E, 0xB57, 0xBBE, 0xBD7, 0xCC0, 0xCC2, 0xCC7, 0xCC8, 0xCCA, 0xCCB,
             0xCD5, 0xCD6, 0xD3E, 0xD57, 0xDCF, 0xDDF, 0x1B35, 0x302E, 0x302F}
MC_ALONE = {0x102B, 0x102C, 0x1038, 0x1062, 0x1063, 0x1064, 0x1067, 0x1068, 0x1069, 0x106A, 0x106B,
            0x106C, 0x106D, 0x1083, 0x1087, 0x1088, 0x1089, 0x108A, 0x108B, 0x108C, 0x108F, 0x109A,
            0x109B, 0x109C, 0x1A61, 0x1A63, 0x1A64, 0xAA7B, 0xAA7D}


def alphabetic_symbol(cp):
    return (0x24B6 <= cp <= 0x24E9 or 0x1F130 <= cp <= 0x1F149 or 0x1F150 <= cp <= 0x1F169 or
            0x1F170 <= cp <= 0x1F189)


def is_hangul(cp):
    return 0xAC00 <= cp < 0xAC00 + 11172


def raw(cp):
    """The character's own decomposition: (compatibility?, code points) or None."""
    d = ud.decomposition(chr(cp))
    if not d:
        return None
    parts = d.split()
    compat = parts[0].startswith("<")
    return compat, [int(p, 16) for p in parts[compat:]]


def full(cp, compat):
    r = raw(cp)
    if r is None or (r[0] and not compat):
        return [cp]
    return [y for x in r[1] for y in full(x, compat)]


def compositions():
    out = []
    for cp in range(0x110000):
        r = raw(cp) if not 0xD800 <= cp < 0xE000 else None
        if r and not r[0] and len(r[1]) == 2 and ud.normalize("NFC", chr(cp)) == chr(cp):
            out.append((r[1][0], r[1][1], cp))
    return sorted(out)


COMP = compositions()
SECONDS = {b for _, b, _ in COMP} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))


def prop(cp):
    cat = "Cs" if 0xD800 <= cp < 0xE000 else ud.category(chr(cp))
    v = CATS.index(cat)
    if cat[0] == "Z" or cp in WHITE:
        v |= SPACE
    if cat[0] in "LM" or cat in ("Nd", "Nl", "Pc") or cp in (0x200C, 0x200D) or \
            alphabetic_symbol(cp):
        v |= WORD
    if cat in ("Mn", "Me") or cp in MC_EXTEND or cp in (0x200C, 0x200D, 0xFF9E, 0xFF9F) or \
            0x1F3FB <= cp <= 0x1F3FF:
        v |= EXTEND
    elif (cat == "Mc" and cp not in MC_ALONE) or cp in (0xE33, 0xEB3):
        v |= SPACING
    if cp in PREPENDED:
        v |= PREPEND
    if cat != "Cs":
        first = cp if is_hangul(cp) else full(cp, True)[0]
        if ud.combining(chr(first)) == 0 and first not in SECONDS:
            v |= SPLIT  # nothing before this character can compose or reorder with it
    return v


def trie(values, name, ctype):
    best = None
    for shift in (4, 5, 6, 7, 8):
        size = 1 << shift
        blocks, index = {}, []
        for i in range(0, 0x110000, size):
            index.append(blocks.setdefault(tuple(values[i:i + size]), len(blocks)))
        cost = len(index) * (1 if len(blocks) < 256 else 2) + len(blocks) * size * \
            (1 if ctype == "uint8_t" else 2)
        if best is None or cost < best[0]:
            best = (cost, shift, blocks, index)
    cost, shift, blocks, index = best
    emit(f"static const {'uint8_t' if len(blocks) < 256 else 'uint16_t'} {name}_index",
         index)
    emit(f"static const {ctype} {name}_data", [x for b in blocks for x in b])
    print(f"#define {name.upper()}_SHIFT {shift}")


def emit(decl, xs):
    print(f"{decl}[{len(xs)}] = {{")
    line = ""
    for x in xs:
        s = f"{x},"
        if len(line) + len(s) > 100:
            print(line)
            line = ""
        line += s
    print(line + "};")


def utf16(cps):
    b = "".join(map(chr, cps)).encode("utf-16-le")
    return [b[i] | b[i + 1] << 8 for i in range(0, len(b), 2)]


def decompositions():
    """values[cp] = offset into the pool; there: canonical length | compatibility length << 8,
    the canonical mapping, then the compatibility mapping when it differs (else length 0)."""
    values, pool, seen = [0] * 0x110000, [0], {}
    for cp in range(0x110000):
        if 0xD800 <= cp < 0xE000 or raw(cp) is None:
            continue
        canon, compat = full(cp, False), full(cp, True)
        c = [] if canon == [cp] else utf16(canon)
        k = [] if compat == canon else utf16(compat)
        rec = tuple([len(c) | len(k) << 8] + c + k)
        if rec not in seen:
            seen[rec] = len(pool)
            pool.extend(rec)
        values[cp] = seen[rec]
    return values, pool


def main():
    print("/* SPDX-License-Identifier: MIT")
    print(f" * Generated by tools/gen_unicode.py from Unicode {ud.unidata_version}. */")
    print("/* clang-format off */")
    trie([prop(cp) for cp in range(0x110000)], "uni_prop", "uint16_t")
    trie([0 if 0xD800 <= cp < 0xE000 else ud.combining(chr(cp)) for cp in range(0x110000)],
         "uni_ccc", "uint8_t")
    values, pool = decompositions()
    trie(values, "uni_decomp", "uint16_t")
    emit("static const uint16_t uni_decomp_pool", pool)
    emit("static const uint32_t uni_comp_pair", [x for a, b, _ in COMP for x in (a, b)])
    emit("static const uint32_t uni_comp_result", [c for _, _, c in COMP])
    lower = []
    for cp in range(0x80, 0x110000):
        if 0xD800 <= cp < 0xE000 or cp == 0x130:
            continue
        # Python's lower() is of its own Unicode version; simple mappings of new letters follow
        # the offset of their neighbours and are absent here, as in the older version.
        lo = chr(cp).lower()
        if lo != chr(cp):
            assert len(lo) == 1, hex(cp)
            lower.append((cp, ord(lo)))
    emit("static const uint32_t uni_lower_from", [a for a, _ in lower])
    emit("static const uint32_t uni_lower_to", [b for _, b in lower])


sys.exit(main())
