#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes src/text/tokenizer/tok_unicode_tables.inc: the character properties the tokenizer needs.

Ids have to equal those of the tokenizers library, whose parts know different versions of Unicode, so
each property comes from where that library has it:

  general categories       Unicode 16, as its regex engine and tiktoken's (unicodedata2 16.0.0)
  normal forms, accents,   asked of the library itself, character by character: its crates
  punctuation, control,    know Unicode 8, 9 and 17
  numbers, lower case, \\w,  (t5-small's charsmap of the test material shows the graphemes)
  graphemes

Needs Python 3.11 (its own unicodedata is Unicode 14, what the oldest PCRE2 we link knows) and
  pip install unicodedata2==16.0.0 tokenizers==0.23.3
Usage: tools/gen_unicode.py > src/text/tokenizer/tok_unicode_tables.inc
"""
import base64
import json
import sys
import unicodedata as ud14

import unicodedata2 as ud
from tokenizers import normalizers, pre_tokenizers

assert ud.unidata_version == "16.0.0" and ud14.unidata_version == "14.0.0"

CATS = ["Cn", "Cc", "Cf", "Co", "Cs", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
        "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp"]
SPACE, WORD, EXTEND, PREPEND, SPLIT, MARK, ACCENT, OTHER, PUNCT, NUMERIC = \
    (1 << b for b in range(5, 15))
WHITE = set([0x85] + list(range(9, 14)))
def charsmap():
    with open("build/testdata/tokenizers/hf/t5-small/tokenizer.json") as f:
        steps = json.load(f)["normalizer"]
    while "precompiled_charsmap" not in steps:
        steps = next(x for x in steps["normalizers"] if x["type"] in ("Precompiled", "Sequence"))
    return base64.b64decode(steps["precompiled_charsmap"])


NFC, NFD, NFKD = normalizers.NFC(), normalizers.NFD(), normalizers.NFKD()
STRIP = normalizers.StripAccents()
BERT_ACCENTS = normalizers.BertNormalizer(False, False, True, False)
BERT_CLEAN = normalizers.BertNormalizer(True, False, False, False)
LOWER = normalizers.Lowercase()
SPM, DOT_B = normalizers.Precompiled(charsmap()), "b\u0323"
WORDS, PUNCTUATION = pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("isolated")
DIGITS = pre_tokenizers.Digits(True)


def splits(step, cp, n=2):
    """Does the step cut between a letter and this character?"""
    return len(step.pre_tokenize_str("a" + chr(cp))) == n


def is_hangul(cp):
    return 0xAC00 <= cp < 0xAC00 + 11172


def full(cp, compat):
    return [ord(c) for c in (NFKD if compat else NFD).normalize_str(chr(cp))]


def ccc(cp):
    """The combining class, 0 where the library has none: its value never changes once assigned."""
    known = ud.combining(chr(cp))
    if known == 0 or full(cp, False) != [cp]:
        return known
    # Marks of the classes 240 and 1 around it stay where they are if its own is 0.
    s = "a\u0345" + chr(cp) + "\u0334"
    return 0 if NFD.normalize_str(s) == s else known


def compositions():
    out = []
    for cp in range(0x110000):
        d = "" if 0xD800 <= cp < 0xE000 else ud.decomposition(chr(cp))
        if not d or d.startswith("<") or len(d.split()) != 2:
            continue
        a, b = (int(x, 16) for x in d.split())
        if NFC.normalize_str(chr(a) + chr(b)) == chr(cp):
            out.append((a, b, cp))
    return sorted(out)


COMP = compositions()
SECONDS = {b for _, b, _ in COMP} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))


def prop(cp):
    cat = "Cs" if 0xD800 <= cp < 0xE000 else ud.category(chr(cp))
    v = CATS.index(cat)
    if cat[0] == "Z" or cp in WHITE:
        v |= SPACE
    if cat != "Cs":
        c = chr(cp)
        v |= WORD * splits(WORDS, cp, 1) * (cat[0] != "Z" and cp not in WHITE)
        v |= MARK * (STRIP.normalize_str(c) == "")
        v |= ACCENT * (BERT_ACCENTS.normalize_str(c) == "")
        v |= OTHER * (BERT_CLEAN.normalize_str(c) == "" and c not in "\0\ufffd")
        v |= PUNCT * splits(PUNCTUATION, cp)
        v |= NUMERIC * splits(DIGITS, cp)
        # The charsmap has "b" with a dot below, and is asked for clusters below six bytes only.
        v |= EXTEND * (SPM.normalize_str(DOT_B + c) != SPM.normalize_str(DOT_B) + SPM.normalize_str(c))
        v |= PREPEND * (SPM.normalize_str(c + DOT_B) != SPM.normalize_str(c) + SPM.normalize_str(DOT_B))
    if cat != "Cs":
        first = cp if is_hangul(cp) else full(cp, True)[0]
        if ccc(first) == 0 and first not in SECONDS:
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
        if 0xD800 <= cp < 0xE000 or is_hangul(cp) or full(cp, True) == [cp]:
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


# Characters of the same category and length in UTF-8 that Unicode 14 and every later version have.
STAND_IN = {
    3: {"Lu": 0x1E00, "Ll": 0x1E01, "Lm": 0x1D2C, "Lo": 0x905, "Mn": 0x941, "Mc": 0x903,
        "Nd": 0x966, "Po": 0x2020, "Sc": 0x20A0, "So": 0x2100, "Sm": 0x2200, "Sk": 0x1FBD,
        "Pd": 0x2010, "Cf": 0x206A, "Cn": 0xFDD0},
    4: {"Lu": 0x10400, "Ll": 0x10428, "Lm": 0x16B40, "Lo": 0x10300, "Mn": 0x1D167, "Mc": 0x1D165,
        "Nd": 0x104A0, "Nl": 0x10140, "No": 0x10107, "Po": 0x10100, "So": 0x1D000, "Sm": 0x1D6C1,
        "Sc": 0x1E2FF, "Sk": 0x1F3FB, "Pd": 0x10EAD, "Cf": 0x110BD, "Cn": 0x1FFFE},
}


def newer():
    """Ranges of characters that Unicode 14 does not know as Unicode 16 does: from, to, stand-in."""
    out = []
    for cp in range(0x800, 0x110000):
        if 0xD800 <= cp < 0xE000 or ud.category(chr(cp)) == ud14.category(chr(cp)):
            continue
        cat, han = ud.category(chr(cp)), "CJK UNIFIED" in ud.name(chr(cp), "")
        to = 0x20000 if han else STAND_IN[len(chr(cp).encode())][cat]
        assert ud14.category(chr(to)) == ud.category(chr(to)) == cat
        if out and out[-1][1] == cp - 1 and out[-1][2] == to:
            out[-1][1] = cp
        else:
            out.append([cp, cp, to])
    return out


def main():
    print("/* SPDX-License-Identifier: MIT")
    print(f" * Generated by tools/gen_unicode.py from Unicode {ud.unidata_version}. */")
    print("/* clang-format off */")
    trie([prop(cp) for cp in range(0x110000)], "uni_prop", "uint16_t")
    trie([0 if 0xD800 <= cp < 0xE000 else ccc(cp) for cp in range(0x110000)],
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
        lo = LOWER.normalize_str(chr(cp))
        if lo != chr(cp):
            assert len(lo) == 1, hex(cp)
            lower.append((cp, ord(lo)))
    emit("static const uint32_t uni_lower_from", [a for a, _ in lower])
    emit("static const uint32_t uni_lower_to", [b for _, b in lower])
    emit("static const uint32_t uni_newer", [x for r in newer() for x in r])


sys.exit(main())
