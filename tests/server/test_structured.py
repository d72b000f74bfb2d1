# SPDX-License-Identifier: MIT
"""Structured output over HTTP with the bundled model: what comes out matches what was asked for, by other people's
validators; streams, several choices, refusals, neighbours."""
import json
import re
import threading
import time

import jsonschema
import pytest

import constrained

from serverproc import Server
from wire import events

POINT = {"type": "object", "properties": {"x": {"type": "integer", "minimum": -20, "maximum": 99},
                                          "name": {"type": "string", "maxLength": 8, "pattern": "^[a-z]+$"},
                                          "kind": {"enum": ["cat", "dog", None, 3.5]}},
         "required": ["x", "kind"], "additionalProperties": False}
LIST = {"type": "array", "minItems": 1, "maxItems": 3, "items": {"anyOf": [{"type": "boolean"}, {
    "type": "object", "properties": {"a": {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9}},
    "required": ["a"], "additionalProperties": False}]}}
TREE = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {
    "v": {"const": 1}, "l": {"$ref": "#/$defs/t"}}, "required": ["v"], "additionalProperties": False}}}
SCHEMAS = [POINT, LIST, TREE, {"type": "string", "format": "date"}, {"enum": ["a", {"b": [1]}]}]
REGEXES = [r"[a-c]{3,5}[0-9]{2}", r"(ha|ho){1,6}!", r"\d{4}-\d{2}-\d{2}", r"(?:yes|no|perhaps)( [a-z]{1,4}){0,3}\."]


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1") as s:
        yield s


def complete(server, **fields):
    status, reply = server.json("POST", "/v1/completions", {"prompt": "Once upon", "max_tokens": 120,
                                                            "temperature": 1} | fields)
    assert status == 200, reply
    return [(c["text"], c["finish_reason"]) for c in reply["choices"]]


def in_parallel(n, work):
    failures = []

    def one(i):
        try:
            work(i)
        except Exception as e:  # pylint: disable=broad-except
            failures.append((i, e))
    threads = []
    for i in range(n):
        threads.append(threading.Thread(target=one, args=(i,)))
        threads[-1].start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


def test_json_schemas(server):
    done = [0]

    def work(i):
        for k in range(7):
            schema = SCHEMAS[(i + k) % len(SCHEMAS)]
            for text, finish in complete(server, n=4, seed=i * 100 + k, structured_outputs={
                    "json": schema, "disable_any_whitespace": True}):
                if finish == "stop":
                    jsonschema.validate(json.loads(text), schema)
                    done[0] += 1
    in_parallel(8, work)
    assert done[0] > 120


def test_regexes_and_choices(server):
    done = [0]

    def work(i):
        for k in range(8):
            regex = REGEXES[(i + k) % len(REGEXES)]
            for text, finish in complete(server, n=3, seed=i * 100 + k, structured_outputs={"regex": regex}):
                assert finish == "stop"
                assert re.fullmatch(regex, text), text
                done[0] += 1
            choices = ["red", "green", "a \"quoted\" one", "é"]
            for text, _ in complete(server, seed=i * 100 + k, guided_choice=choices):
                assert text in choices
                done[0] += 1
    in_parallel(8, work)
    assert done[0] == 8 * 8 * 4


def test_every_field(server):
    schema = {"type": "integer", "minimum": 5, "maximum": 7}
    gbnf = 'root ::= "5" | "6" | "7"'
    forms = [{"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
             {"response_format": {"type": "json_object", "schema": schema}},
             {"structured_outputs": {"json": schema}}, {"structured_outputs": {"json": json.dumps(schema)}},
             {"structured_outputs": {"regex": "[5-7]"}}, {"structured_outputs": {"choice": ["5", "6", "7"]}},
             {"structured_outputs": {"grammar": gbnf}}, {"guided_json": schema}, {"guided_regex": "[5-7]"},
             {"guided_choice": ["5", "6", "7"]}, {"guided_grammar": gbnf}, {"grammar": gbnf},
             {"json_schema": schema}, {"json_schema": json.dumps(schema)},
             # guidance's client of vLLM sends the old and the new name at once
             {"guided_grammar": gbnf, "structured_outputs": {"grammar": gbnf}},
             {"guided_json": schema, "structured_outputs": {"json": schema}},
             # SGLang's
             {"regex": "[5-7]"}, {"ebnf": gbnf}, {"structural_tag": {"format": {"type": "regex", "pattern": "[5-7]"}}},
             {"structural_tag": json.dumps({"format": {"type": "json_schema", "json_schema": schema}})}]
    for form in forms:
        assert complete(server, **form)[0][0] in ("5", "6", "7"), form
        status, reply = server.json("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "A number"}], "max_tokens": 20} | form)
        assert status == 200 and reply["choices"][0]["message"]["content"] in ("5", "6", "7"), (form, reply)


def test_two_different_constraints(server):
    """Neither by another name nor of another kind, though the text is the same."""
    for more, field in (({"guided_regex": "[5-8]"}, "guided_regex"), ({"guided_grammar": "[5-7]"}, "guided_grammar")):
        status, reply = server.json("POST", "/v1/completions", {
            "prompt": "A number", "structured_outputs": {"regex": "[5-7]"}} | more)
        assert status == 400 and reply["error"]["message"] == f"structured_outputs.regex and {field} cannot be combined"


def test_strict_answers_are_complete():
    """`constrained.py --complete 100` is the measurement."""
    for name, (whole, _) in constrained.run_complete(["--threads", "2"], 10, 1000).items():
        assert whole == 10, name


OPEN = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["a"]}


def test_how_json_is_written(server):
    # {"a":5} in every form: whitespace is the model's where it has a choice, so it is left none.
    forms = [({"disable_any_whitespace": True}, r'\{"a":\d\}'),
             ({"whitespace_pattern": " "}, r'\{ "a" : \d \}'),
             ({"whitespace_pattern": r"\n\t"}, r'\{\n\t"a"\n\t:\n\t\d\n\t\}'),
             ({}, r'\{( |\n {0,4}|\n\t)?"a" ?: ?\d( |\n {0,4}|\n\t)?\}')]
    for style, pattern in forms:
        ways = [{"structured_outputs": {"json": OPEN} | style},
                {"structured_outputs": style, "response_format": {"type": "json_object", "schema": OPEN}}]
        if "whitespace_pattern" in style:
            ways.append({"guided_json": OPEN, "guided_whitespace_pattern": style["whitespace_pattern"]})
        if not style:
            ways = ways[:1]
        for fields in ways:
            for text, finish in complete(server, seed=1, n=4, **fields):
                assert finish == "stop" and re.fullmatch(pattern, text), (fields, text)


def test_open_objects(server):
    """With a bias to the comma the model goes on where it may: only in an object that is open."""
    comma = server.json("POST", "/tokenize", {"prompt": ",", "add_special_tokens": False})[1]["tokens"]
    assert len(comma) == 1
    bias = {"logit_bias": {str(comma[0]): 100}, "max_tokens": 30}
    spec = {"json": OPEN, "disable_any_whitespace": True}
    for text, _ in complete(server, structured_outputs=spec, n=4, seed=3, **bias):
        assert re.fullmatch(r'\{"a":\d\}', text), text
    spec["disable_additional_properties"] = False
    for text, _ in complete(server, structured_outputs=spec, n=4, seed=3, **bias):
        assert re.match(r'\{"a":\d,"|\{"[^a]', text), text


def test_style_of_the_server():
    config = {"backend": "auto", "whitespace_pattern": " ", "disable_additional_properties": False}
    for args in (["--structured-outputs-config", json.dumps(config)],
                 ["--constrained-json-whitespace-pattern", " ", "--allow-additional-properties"]):
        with Server("--threads", "1", *args) as s:
            for fields, pattern in (({"guided_json": OPEN}, r'\{ "a" : \d( ,.*| \})'),
                                    ({"structured_outputs": {"json": OPEN, "disable_any_whitespace": True}},
                                     r'\{"a":\d(,.*|\})')):
                text = complete(s, seed=1, max_tokens=30, **fields)[0][0]
                assert re.fullmatch(pattern, text, re.S) or re.match(r'\{ ?"[^a]', text), text
    for args, word in ((["--whitespace-pattern", "x"], "other text than whitespace"),
                       (["--whitespace-pattern", " ", "--disable-any-whitespace"], "cannot be combined"),
                       (["--structured-outputs-config", '{"nothing": 1}'], "nothing"),
                       (["--structured-outputs-config", '{"whitespace_pattern": 1}'], "whitespace_pattern")):
        with pytest.raises(RuntimeError, match=word):
            Server("--threads", "1", *args)


def test_streams(server):
    status, _, data = server.request("POST", "/v1/completions", {
        "prompt": "Once", "max_tokens": 100, "temperature": 1, "stream": True, "n": 2, "seed": 4,
        "structured_outputs": {"regex": "(ha ){2,9}end"}})
    assert status == 200
    texts, finishes = {0: "", 1: ""}, {}
    for e in events(data):
        for c in e["choices"]:
            texts[c["index"]] += c["text"]
            if c["finish_reason"]:
                finishes[c["index"]] = c["finish_reason"]
    assert finishes == {0: "stop", 1: "stop"}
    assert all(re.fullmatch("(ha ){2,9}end", t) for t in texts.values())


@pytest.mark.parametrize("fields,param,word", [
    ({"structured_outputs": {"json": {"type": "string", "format": "iri"}}}, "structured_outputs.json", "iri"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "wrong"}}}},
     "response_format.json_schema.schema", "type"),
    ({"guided_regex": "(a"}, "guided_regex", "')'"),
    ({"guided_regex": r"(a)\1"}, "guided_regex", "regex"),
    ({"guided_grammar": "root ::= nowhere"}, "guided_grammar", "nowhere"),
    ({"guided_choice": []}, "guided_choice", "choice"),
    ({"regex": "(a"}, "regex", "')'"),
    ({"regex": ["a"]}, "regex", "string"),
    ({"ebnf": "root ::= nowhere"}, "ebnf", "nowhere"),
    ({"ebnf": 'root ::= "a"', "guided_json_object": True}, "guided_json_object", "ebnf"),
    ({"structural_tag": {"format": {}}}, "structural_tag", "format"),
    ({"stop_regex": "a+"}, "stop_regex", "not supported"),
    ({"custom_logit_processor": "x"}, "custom_logit_processor", "not supported"),
    ({"structured_outputs": {"structural_tag": {"format": {}}}}, "structured_outputs.structural_tag", "format"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "guided_json"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "json_object"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": "x"}}, "structured_outputs.json", "whitespace_pattern"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": 3}}, "structured_outputs.whitespace_pattern", "string"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": " " * 257}}, "structured_outputs.whitespace_pattern",
     "256"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
     "structured_outputs.whitespace_pattern", "combined"),
    ({"guided_json": {}, "guided_whitespace_pattern": 3}, "guided_whitespace_pattern", "string"),
])
def test_refusals(server, fields, param, word):
    status, reply = server.json("POST", "/v1/completions", {"prompt": "a"} | fields)
    assert status == 400, reply
    assert reply["error"]["param"] == param and word in reply["error"]["message"], reply
    assert complete(server, max_tokens=2)


def test_neighbours_and_hostile_grammars(server):
    """An unconstrained text is the same beside grammars that cost much."""
    alone = complete(server, seed=7, max_tokens=60)
    hostile = ["(a|a)" * 2000, "(" * 3000 + "a" + ")" * 3000, "(a{1,1000}){1,1000}b", "[a-z]*" * 50 + "Q"]
    stop = threading.Event()

    def disturb(regex):
        while not stop.is_set():
            status, _ = server.json("POST", "/v1/completions", {"prompt": "a", "max_tokens": 8, "guided_regex": regex})
            assert status in (200, 400, 503)
    threads = [threading.Thread(target=disturb, args=(r,)) for r in hostile]
    for t in threads:
        t.start()
    for _ in range(5):
        assert complete(server, seed=7, max_tokens=60) == alone
    stop.set()
    for t in threads:
        t.join()


def forced_so_far(server):
    _, _, data = server.request("GET", "/metrics")
    return float(re.search(rb"^sluice:grammar_forced_tokens_total\S* (\S+)", data, re.M).group(1))


def test_forced_tokens(server):
    """Text without a choice takes no steps, and is the same whether log probabilities are asked for or not."""
    body = {"prompt": "Dear", "max_tokens": 200, "temperature": 1,
            "guided_regex": r"(Sir|Madam), your order was received and will be sent within [1-9] days\. (Thanks|Yours)"}
    before = forced_so_far(server)
    for seed in range(4):
        _, plain = server.json("POST", "/v1/completions", body | {"seed": seed})
        middle = forced_so_far(server)
        _, told = server.json("POST", "/v1/completions", body | {"seed": seed, "logprobs": 1})
        a, b = plain["choices"][0], told["choices"][0]
        assert re.fullmatch(body["guided_regex"], a["text"]), a
        assert (a["text"], plain["usage"]) == (b["text"], told["usage"])
        assert len(b["logprobs"]["token_logprobs"]) == told["usage"]["completion_tokens"]
        assert None not in b["logprobs"]["token_logprobs"][1:]
        assert middle - before > 10 and forced_so_far(server) == middle
        before = middle


def test_nothing_is_left(server):
    for _ in range(100):  # a reply is there before the last thread has let go of its request
        _, _, data = server.request("GET", "/metrics")
        lines = dict(line.rsplit(" ", 1) for line in data.decode().splitlines() if not line.startswith("#"))
        values = {k.split("{")[0]: float(v) for k, v in lines.items()}
        if values["sluice:grammar_matchers"] == 0:
            break
        time.sleep(0.05)
    assert values["sluice:grammar_matchers"] == 0
    assert values["sluice:step_mallocs_total"] == 0
    assert values["sluice:grammar_cache_hits_total"] > 100
    assert values["sluice:grammar_masks_total"] > 1000


def test_every_case_of_the_long_run_once():
    """`make constrained` is the long one."""
    n = len(constrained.cases())
    whole, cut, invalid, _ = constrained.run_model("bundled", ["--threads", "2"], n, 100)
    assert invalid == 0 and whole + cut == n and whole > n / 2
