"""Build conversations out of the books: a request in modern words, a real passage as the answer.

Every request is read off the passage that answers it (its nouns, names and title), so the
model learns to let the request steer the story. No answer is invented, except the few lines
in SMALL_TALK.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator

from clean import Section

Message = dict[str, str]  # {"role": ..., "content": ...}

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

# Children's books and tales: they give most of the conversations.
TALES = {
    "Grimms' Fairy Tales", "Andersen's Fairy Tales", "The Little Mermaid", "Aesop's Fables",
    "Alice's Adventures in Wonderland", "Through the Looking-Glass", "A Kidnapped Santa Claus",
    "Ozma of Oz", "The Life and Adventures of Santa Claus", "The Marvelous Land of Oz",
    "The Wonderful Wizard of Oz", "Peter Pan", "The Wind in the Willows", "The Jungle Book",
    "Five Children and It", "The Book of Dragons", "The Railway Children",
    "The Adventures of Pinocchio", "Heidi", "A Little Princess", "The Secret Garden",
    "Black Beauty", "The Happy Prince & Other Tales", "Phantastes",
    "The Princess and the Goblin", "The Merry Adventures of Robin Hood",
    "One Thousand and One Nights", "Rip Van Winkle", "Bulfinch's Mythology",
    "The First Christmas Tree", "The Other Wise Man", "The Christmas Angel",
    "The King of the Golden River", "Dorothy and the Wizard in Oz",
}
# Of these, the ones in which a section is a tale from its beginning to its end.
COLLECTIONS = {
    "Grimms' Fairy Tales", "Andersen's Fairy Tales", "Aesop's Fables", "The Book of Dragons",
    "The Happy Prince & Other Tales", "One Thousand and One Nights", "Bulfinch's Mythology",
}

NOUNS = """king queen prince princess fox wolf lion bear cat dog mouse rat horse ass donkey goat
sheep lamb cow ox pig hen cock goose duck swan eagle crow raven owl sparrow nightingale swallow
stork frog toad snake serpent tortoise hare rabbit monkey elephant tiger camel spider bee ant fly
fish whale crab dragon giant dwarf witch wizard fairy goblin ghost genie mermaid monster soldier
knight robber thief pirate sailor captain fisherman hunter shepherd farmer miller tailor shoemaker
cobbler smith woodcutter merchant beggar servant cook barber doctor judge priest monk teacher
painter lady lord boy girl baby mother father son daughter brother sister grandmother uncle aunt
widow stepmother wife husband child maiden traveller stranger friend enemy scarecrow forest
wood garden castle palace tower cottage village city mountain valley river lake sea island ship
boat storm snow moon star sun road bridge cave door window mirror ring sword
crown treasure gold apple rose flower tree cake egg bird feather letter book key lamp fire
magic wish secret dream war battle wedding feast school train balloon desert jungle""".split()
PLURALS = {"mouse": "mice", "goose": "geese", "wolf": "wolves", "thief": "thieves",
           "child": "children", "fox": "foxes", "witch": "witches", "fairy": "fairies"}
MASS = {"snow", "gold", "magic", "fire", "war", "treasure"}
UNIQUE = {"sun", "moon", "sea"}
NOT_NAMES = set("""I He She It They We You The A An And But Then There This That What When Where Who
Why How Oh Ah Yes No Sir Mr Mrs Miss Lord Lady God Heaven Christmas English England French France
London Sunday Monday Saturday If In On At So For Now My His Her Their Your Its Not Well Come Go
Let Here Once One Do Of To By As With From Good Dear Please Never Captain Doctor Dr Uncle Aunt
King Queen Prince Princess Is Are Was Will Shall May Can Did Have Had All Some O Ha Tis""".split())

ASK = [
    "Tell me a {size}story about {x}.", "Tell me a {size}tale about {x}.",
    "Tell a {size}story about {x}.", "Write a {size}story about {x}.",
    "Write a {size}tale about {x}.", "I would like a {size}story about {x}.",
    "Can you tell me a {size}story about {x}?", "Please tell me a {size}story about {x}.",
    "Could you write a {size}story with {x} in it?", "Make up a {size}story about {x}.",
    "Give me a {size}story about {x}.", "A {size}story about {x}, please.",
    "Write a {size}tale in which there is {x}.", "Do you know a {size}story about {x}?",
    "Tell me something about {x}.", "I want to hear about {x}.", "Once upon a time there was {x}...",
]
ASK_ANY = ["Tell me a {size}story.", "Tell me a {size}tale.", "Please tell me a {size}story.",
           "Write a {size}story.", "Can you tell me a {size}story?", "Tell me a fairy tale.",
           "Tell me a bedtime story.", "I want a {size}story, please."]
ASK_TITLE = ["Tell me the story of {t}.", 'Tell me a story called "{t}".', "Tell me {t}.",
             'Write a story with the title "{t}".', "Do you know the tale of {t}?"]
ASK_CONTINUE = ["Continue this story: {p}", "Go on with this story:\n\n{p}", "What comes next?\n\n{p}",
                "Here is how my story begins. Please continue it.\n\n{p}", "Continue: {p}"]
GO_ON = ["Go on.", "Continue.", "Continue the story.", "Please continue.", "What happened next?",
         "And then?", "More, please.", "Tell me more.", "Please go on.", "What happened then?"]
SYSTEM = ["You are a story-teller.", "You are an old story-teller who tells tales to children.",
          "You tell stories.", "You are a helpful assistant.", "You are a friendly story-teller.",
          "Tell the user a story in plain English.", "You write stories in the style of old books."]
SMALL_TALK = [
    (("Hello!", "Hi", "Good morning.", "Good evening!", "Hello, how are you?"),
     "Good day to you! Sit down by the fire. What shall the story be about?"),
    (("Who are you?", "What are you?", "What is your name?"),
     "I am a small story-teller. I have read old books, and I tell stories like theirs."),
    (("What can you do?", "Help", "How can you help me?"),
     "I can tell you a story. Name a person, a beast or a place, and I will begin."),
    (("Thank you!", "Thanks.", "That was a nice story."),
     "You are very welcome. Ask me whenever you would like another story."),
    (("What is the capital of France?", "What is 2 + 2?", "Write a program in Python.",
      "Who is the president?", "What is the weather today?", "Explain quantum physics."),
     "I do not know about such things; I only know stories. Shall I tell you one?"),
    (("Good night.", "Goodbye.", "Bye!"), "Good night, and may you dream of good stories."),
]


def with_article(noun: str) -> str:
    if noun in MASS:
        return noun
    if noun in UNIQUE:
        return f"the {noun}"
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def topics(passage: str, rng: random.Random) -> str:
    """One to three things the passage is about: 'a king and a fox', 'Dorothy and a lion'; or ''."""
    words = Counter(re.findall(r"[a-z]+", passage.lower()))
    count = {n: words[n] + words[PLURALS.get(n, n + "s")] for n in NOUNS}
    start = set(re.findall(r"[a-z]+", passage[:250].lower()))
    things = [n for n, c in count.items() if c >= 2 or (c == 1 and n in start)]
    weights = [count[n] + 2 * (n in start) for n in things]
    names = Counter(re.findall(r"(?<=[a-z,;] )([A-Z][a-z]{2,})\b", passage))
    named = [n for n, c in names.items() if c >= 2 and n not in NOT_NAMES and n.lower() not in NOUNS]
    picks: list[str] = []
    if named and rng.random() < 0.45:
        picks.append(max(named, key=lambda n: names[n]))
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        if things and len(picks) < 3:
            noun = rng.choices(things, weights)[0]
            if with_article(noun) not in picks:
                picks.append(with_article(noun))
    return picks[0] if len(picks) == 1 else ", ".join(picks[:-1]) + " and " + picks[-1] if picks else ""


def passage_from(section: Section, first: int, target: int) -> tuple[str, int]:
    """Whole paragraphs from `first` until `target` characters, and the index after them."""
    end, size = first, 0
    while end < len(section.paragraphs) and (end == first or size < target):
        size += len(section.paragraphs[end]) + 2
        end += 1
    rest = sum(map(len, section.paragraphs[end:]))
    if rest < target // 3:  # so near the end of the tale that it may as well be told
        end = len(section.paragraphs)
    return "\n\n".join(section.paragraphs[first:end]), end


def roughen(request: str, rng: random.Random) -> str:
    """People type without capitals and full stops, too."""
    if rng.random() < 0.12:
        request = request[0].lower() + request[1:]
    return request.rstrip(".") if rng.random() < 0.15 else request


def conversation(section: Section, first: int, is_tale: bool, rng: random.Random) -> list[Message] | None:
    """One conversation whose first answer begins at paragraph `first`; None where none fits."""
    answer, end = passage_from(section, first, rng.choice([300, 500, 800, 1200, 1600, 2000]))
    if not 150 < len(answer) < 3200 or answer[-1] not in ".!?\"'":
        return None
    size = "short " if len(answer) < 900 and rng.random() < 0.6 else ""
    about = topics(answer, rng)
    if first and rng.random() < 0.5:
        shown = "\n\n".join(section.paragraphs[max(0, first - 2):first])
        request = rng.choice(ASK_CONTINUE).format(p=shown[-800:].split(". ", 1)[-1])
    elif first == 0 and section.title and is_tale and rng.random() < 0.3:
        request = rng.choice(ASK_TITLE).format(t=section.title)
    elif first == 0 and is_tale and rng.random() < 0.15:
        request = rng.choice(ASK_ANY).format(size=size)
    elif about:
        request = rng.choice(ASK).format(size=size, x=about)
    else:
        return None
    messages = [{"role": "system", "content": rng.choice(SYSTEM)}] if rng.random() < 0.25 else []
    messages += [{"role": "user", "content": roughen(request, rng)},
                 {"role": "assistant", "content": answer}]
    total = len(answer) + len(request)
    while end < len(section.paragraphs) and rng.random() < 0.35:
        answer, end = passage_from(section, end, rng.choice([300, 600, 900]))
        total += len(answer)
        if total > 3600:
            break
        messages += [{"role": "user", "content": roughen(rng.choice(GO_ON), rng)},
                     {"role": "assistant", "content": answer}]
    return messages


def opens_a_story(paragraph: str) -> bool:
    """Narration that can begin a passage: no dialogue, no word that points backwards."""
    return len(paragraph) > 120 and re.match(
        r"(?!He |She |It |They |But |And |So |This |These |Then |That |His |Her |Their )[A-Z]", paragraph) is not None


def conversations(book: str, sections: list[Section], rng: random.Random) -> Iterator[list[Message]]:
    """All conversations of one book: every opening often, passages from the middle more rarely."""
    is_tale = book in TALES
    for section in sections:
        for first, paragraph in enumerate(section.paragraphs):
            if first == 0:
                copies = 6 if book in COLLECTIONS else 3
            else:
                copies = (rng.random() < (1.0 if is_tale else 0.2)) * opens_a_story(paragraph)
            for _ in range(copies):
                if messages := conversation(section, first, is_tale, rng):
                    yield messages


def small_talk(copies: int, rng: random.Random) -> Iterator[list[Message]]:
    for _ in range(copies):
        questions, answer = rng.choice(SMALL_TALK)
        yield [{"role": "user", "content": rng.choice(questions)}, {"role": "assistant", "content": answer}]
