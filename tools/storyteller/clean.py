"""Turn the text of one book into sections of clean paragraphs.

A section is what stands between two headings: a chapter, or a whole tale. Headings
leave the text (a model should not learn to print "CHAPTER XII") and live on as titles.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

# Left out whole: two plays (stage layout), a satire that is no story, and a novel told
# throughout in dialect and with slurs.
EXCLUDED = {
    "An Ideal Husband",
    "The Importance of Being Earnest",
    "A Modest Proposal",
    "Adventures of Huckleberry Finn",
}

MIN_SECTION_CHARS = 300
VERSE_LINE_CHARS = 62  # shorter lines on average: verse, whose line breaks stay

PUNCTUATION = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2026": "...",
    "\u2013": "-", "\u2012": "-", "\u00a0": " ", "\u00e6": "ae", "\u00c6": "Ae",
    "\u0153": "oe", "\u017f": "s", "\u02b9": "'", "\u1d49": "e",
})
SLURS = re.compile(r"\b(nigger|nigga|darkie|darky|coon|kike|chink)s?\b|\bniggers?\b", re.I)
GLOSS = re.compile(r"\s*\[[^\]]{0,300}\]")
NOISE = re.compile(
    r"^(the end|finis|curtain|contents|illustrations?|translat\w+ by .*|translation by .*"
    r"|footnotes?:?.*|page \d+|[\W\d_]*)[.!]?$", re.I)
CHAPTER = re.compile(
    r"^(chapter|book|part|volume|letter|stave|act|scene)?\s*([ivxlcdm]+|\d+)?\s*[-.:)\u2014]*\s+"
    r"|^(chapter|book|part|stave)\b.*$", re.I)
COMMON = set("the of and to a in that he was it his is with as i had for you not but at on "
             "her be him she they have all said from by this so me my or were are".split())


@dataclass
class Section:
    title: str  # "" when the heading was only a number
    paragraphs: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n\n".join(self.paragraphs)


def fold(text: str) -> str:
    """Straight quotes, one kind of dash, no accents; Greek and the like are left as they are."""
    text = unicodedata.normalize("NFKD", text.replace("\ufeff", "").translate(PUNCTUATION))
    text = "".join(c for c in text if not unicodedata.combining(c))
    return re.sub(r"\s*(?:\u2014+|-{2,})", "\u2014", text)


def is_english(block: str) -> bool:
    """Foreign scripts fail on their letters, Latin and French on the missing little words."""
    if any(ord(c) > 126 and c not in "\u2014\u00a3\u00b0" for c in block):
        return False
    words = re.findall(r"[a-z']+", block.lower())
    return len(words) < 12 or sum(w in COMMON for w in words) / len(words) > 0.15


def clean_block(block: str) -> str:
    """One paragraph without markup, or "" when it is not worth keeping."""
    block = re.sub(r"[_*`{}|\\<>]", "", GLOSS.sub("", fold(block)))
    lines = [re.sub(r"\s+", " ", line).strip() for line in block.split("\n")]
    lines = [line for line in lines if line]
    is_verse = len(lines) > 1 and sum(map(len, lines)) / len(lines) < VERSE_LINE_CHARS
    block = ("\n" if is_verse else " ").join(lines)
    block = re.sub(r" ([,.;:!?])", r"\1", block)
    letters = sum(c.isalpha() for c in block)
    if NOISE.match(block) or letters < 0.6 * len(block) or block.upper() == block:
        return ""
    return "" if SLURS.search(block) or not is_english(block) else block


def clean_title(heading: str) -> str:
    """'CHAPTER II. THE GOLDEN BIRD' -> 'The Golden Bird'; 'XII' -> ''."""
    title = GLOSS.sub("", fold(heading)).strip("#*_ .\n")
    title = CHAPTER.sub("", title).strip(" .-\u2014")
    if not re.fullmatch(r"[A-Za-z',\- ]{6,48}", title) or "cont" in title.lower():
        return ""
    small = {"a", "an", "and", "the", "of", "in", "to", "who", "with", "or", "for", "at", "on"}
    words = [w if w in small and i else w[:1].upper() + w[1:]
             for i, w in enumerate(title.lower().split())]
    return " ".join(words)


def sections(text: str) -> list[Section]:
    """All sections of a book, without the ones too short to be a story."""
    found = [Section("")]
    for block in re.split(r"\n\s*\n", text):
        block = block.strip()
        if block.startswith("#"):
            found.append(Section(clean_title(block)))
        elif paragraph := clean_block(block):
            found[-1].paragraphs.append(paragraph)
    return [s for s in found if len(s.text) >= MIN_SECTION_CHARS]
