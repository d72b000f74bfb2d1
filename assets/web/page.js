// SPDX-License-Identifier: MIT
// The page at "/": a conversation with the model, and a look at the server. No text of a model or a
// user ever becomes markup: elements are made one by one and texts are text nodes.
"use strict";

const $ = (id) => document.getElementById(id);

// el("p", {className: "x"}, "text", otherElement)
function el(tag, props, ...children) {
    const e = Object.assign(document.createElement(tag), props);
    for (const child of children)
        if (child !== null && child !== undefined) e.append(child);
    return e;
}

/* ---------------------------------------------------------------- server */

// Settings, messages and the key live as long as the tab; a browser may refuse to keep even that.
const kept = {
    get(name) {
        try { return sessionStorage.getItem("sluice." + name) || ""; } catch { return ""; }
    },
    set(name, value) {
        try { sessionStorage.setItem("sluice." + name, value); } catch { /* then it is not kept */ }
    },
};

async function api(path, body, signal) {
    const headers = {};
    const key = kept.get("key");
    if (key) headers.Authorization = "Bearer " + key;
    if (body) headers["Content-Type"] = "application/json";
    const r = await fetch(path, {method: body ? "POST" : "GET", headers, signal, cache: "no-store",
        body: body ? JSON.stringify(body) : undefined});
    if (r.ok) return r;
    let message = r.status + " " + r.statusText;
    try { message = (await r.json()).error.message; } catch { /* not OpenAI's error object */ }
    if (r.status === 401) askForKey();
    const error = new Error(message);
    error.status = r.status;
    throw error;
}

function askForKey() {
    $("key-open").hidden = false;
    if ($("key-dialog").open) return;
    $("key").value = kept.get("key");
    $("key-dialog").showModal();
}

// Server-sent events of a reply: calls take with each data line's JSON.
async function readEvents(reply, take) {
    const reader = reply.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
        const {done, value} = await reader.read();
        if (done) return;
        rest += decoder.decode(value, {stream: true});
        let end;
        while ((end = rest.indexOf("\n\n")) >= 0) {
            const event = rest.slice(0, end);
            rest = rest.slice(end + 2);
            if (!event.startsWith("data: ")) continue; // a comment that keeps the connection alive
            const data = event.slice(6);
            if (data === "[DONE]") return;
            take(JSON.parse(data));
        }
    }
}

/* ---------------------------------------------------------------- markdown */

const INLINE = new RegExp([
    /\\([\\`*_{}[\]()#+\-.!|~<>])/,                    // 1 escaped character
    /(`+)([^`](?:.*?[^`])?)\2(?!`)/,                   // 2, 3 code
    /\*\*(?=\S)(.*?\S)\*\*/,                           // 4 strong
    /__(?=\S)(.*?\S)__/,                               // 5 strong
    /~~(?=\S)(.*?\S)~~/,                               // 6 struck out
    /\*(?=[^\s*])([^*]*[^\s*])\*/,                     // 7 emphasis
    /(?<![\w])_(?=[^\s_])([^_]*[^\s_])_(?![\w])/,      // 8 emphasis
    /\[([^\][]*)\]\(<?([^()\s<>]*(?:\([^()\s]*\)[^()\s]*)?)>?(?:\s+"[^"]*")?\)/, // 9, 10 link
    /<?(https?:\/\/[^\s<>"'`\])]*[\w/])>?/,            // 11 address
].map((r) => r.source).join("|"), "gs");
const MAX_INLINE = 20000; // characters of one paragraph; more is shown as it is
const MAX_NESTING = 8;

function link(address, parent, fill) {
    let url = null;
    try { url = new URL(address); } catch { /* relative or broken: not a link */ }
    if (url === null || !["http:", "https:", "mailto:"].includes(url.protocol)) {
        fill(parent);
        return;
    }
    const a = el("a", {href: url.href, target: "_blank", rel: "noopener noreferrer"});
    fill(a);
    parent.append(a);
}

function inline(text, parent, depth) {
    if (text.length > MAX_INLINE || depth > MAX_NESTING) {
        parent.append(text);
        return;
    }
    const wrap = (tag, inner) => {
        const e = el(tag);
        inline(inner, e, depth + 1);
        parent.append(e);
    };
    let at = 0;
    for (const m of text.matchAll(INLINE)) {
        if (m.index > at) parent.append(text.slice(at, m.index));
        at = m.index + m[0].length;
        if (m[1] !== undefined) parent.append(m[1]);
        else if (m[3] !== undefined) parent.append(el("code", {textContent: m[3]}));
        else if (m[4] !== undefined) wrap("strong", m[4]);
        else if (m[5] !== undefined) wrap("strong", m[5]);
        else if (m[6] !== undefined) wrap("del", m[6]);
        else if (m[7] !== undefined) wrap("em", m[7]);
        else if (m[8] !== undefined) wrap("em", m[8]);
        else if (m[10] !== undefined) link(m[10], parent, (e) => inline(m[9], e, depth + 1));
        else link(m[11], parent, (e) => e.append(m[11]));
    }
    if (at < text.length) parent.append(text.slice(at));
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/)
    .map((c) => c.trim().replaceAll("\\|", "|"));

function startsBlock(lines, i) {
    return FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) ||
        QUOTE.test(lines[i]) || ITEM.test(lines[i]) || startsTable(lines, i);
}

function startsTable(lines, i) {
    return i + 1 < lines.length && lines[i].includes("|") && lines[i + 1].includes("|") &&
        TABLE_RULE.test(lines[i + 1]);
}

// Cuts a text into blocks: {kind, lines, ...}, `raw` tells whether one is as it was before.
function blocks(text) {
    const lines = text.split("\n");
    const out = [];
    let i = 0;
    while (i < lines.length) {
        const first = i;
        let b, m;
        if (lines[i].trim() === "") {
            i++;
            continue;
        } else if ((m = FENCE.exec(lines[i]))) {
            const end = new RegExp("^ {0,3}" + m[1][0] + "{" + m[1].length + ",}\\s*$");
            for (i++; i < lines.length && !end.test(lines[i]); i++);
            b = {kind: "code", lang: m[2], lines: lines.slice(first + 1, i)};
            i++;
        } else if ((m = HEADING.exec(lines[i]))) {
            b = {kind: "heading", level: m[1].length, lines: [m[2]]};
            i++;
        } else if (RULE.test(lines[i])) {
            b = {kind: "rule", lines: []};
            i++;
        } else if (QUOTE.test(lines[i])) {
            for (; i < lines.length && lines[i].trim() !== "" &&
                (QUOTE.test(lines[i]) || !startsBlock(lines, i)); i++);
            b = {kind: "quote", lines: lines.slice(first, i).map((l) => QUOTE.exec(l)?.[1] ?? l)};
        } else if ((m = ITEM.exec(lines[i]))) {
            b = readList(lines, i, m);
            i = b.end;
        } else if (startsTable(lines, i)) {
            for (i += 2; i < lines.length && lines[i].includes("|"); i++);
            b = {kind: "table", lines: lines.slice(first, i)};
        } else {
            for (i++; i < lines.length && lines[i].trim() !== "" && !startsBlock(lines, i); i++);
            b = {kind: "text", lines: lines.slice(first, i)};
        }
        b.raw = b.kind + lines.slice(first, i).join("\n");
        out.push(b);
    }
    return out;
}

// A list goes on as long as lines are items of its depth, or lie deeper.
function readList(lines, first, m) {
    const indent = m[1].length;
    const ordered = /\d/.test(m[2]);
    const items = [];
    let i = first;
    for (; i < lines.length; i++) {
        const item = ITEM.exec(lines[i]);
        const depth = lines[i].length - lines[i].trimStart().length;
        if (item && depth <= indent + 1 && /\d/.test(item[2]) === ordered && !RULE.test(lines[i])) {
            items.push([item[4]]);
        } else if (lines[i].trim() === "") {
            const next = lines[i + 1];
            if (next === undefined || (next.trim() !== "" && !/^\s{2,}/.test(next) &&
                !ITEM.test(next))) break;
            items[items.length - 1].push("");
        } else if (depth > indent + 1 || (!item && !startsBlock(lines, i) &&
            lines[i - 1].trim() !== "")) {
            items[items.length - 1].push(lines[i].slice(Math.min(depth, indent + 2)));
        } else {
            break;
        }
    }
    return {kind: "list", ordered, start: ordered ? parseInt(m[2], 10) : 1, items, end: i, lines: []};
}

function codeBlock(lang, text) {
    const copy = el("button", {type: "button", textContent: "Copy"});
    copy.addEventListener("click", async () => {
        try {
            await navigator.clipboard.writeText(text);
            copy.textContent = "Copied";
        } catch {
            copy.textContent = "Cannot copy";
        }
    });
    return el("div", {className: "block"}, el("div", {className: "bar"}, el("span", {}, lang), copy),
        el("pre", {tabIndex: 0}, el("code", {textContent: text})));
}

function blockElement(b, depth) {
    if (b.kind === "code") return codeBlock(b.lang, b.lines.join("\n"));
    if (b.kind === "rule") return el("hr");
    if (b.kind === "quote") return markdown(b.lines.join("\n"), el("blockquote"), depth + 1);
    if (b.kind === "list") {
        const list = el(b.ordered ? "ol" : "ul");
        if (b.ordered) list.start = b.start;
        for (const item of b.items) {
            const li = el("li");
            if (item.length === 1) inline(item[0], li, 0);
            else markdown(item.join("\n"), li, depth + 1);
            list.append(li);
        }
        return list;
    }
    if (b.kind === "table") {
        const rows = b.lines.map(cells);
        const row = (tag, list) => el("tr", {}, ...list.map((c) => {
            const cell = el(tag);
            inline(c, cell, 0);
            return cell;
        }));
        return el("div", {className: "wide", tabIndex: 0}, el("table", {},
            el("thead", {}, row("th", rows[0])),
            el("tbody", {}, ...rows.slice(2).map((r) => row("td", r)))));
    }
    const e = el(b.kind === "heading" ? "h" + Math.min(b.level + 2, 6) : "p");
    inline(b.lines.join("\n"), e, 0);
    return e;
}

// Fills parent; blocks that are as they were keep their elements, so a growing text costs its tail.
function markdown(text, parent, depth = 0) {
    if (depth > MAX_NESTING) {
        parent.textContent = text;
        return parent;
    }
    const before = parent.blocks || [];
    const now = blocks(text);
    let same = 0;
    while (same < before.length && same < now.length && before[same].raw === now[same].raw) same++;
    while (parent.childNodes.length > same) parent.lastChild.remove();
    for (const b of now.slice(same)) parent.append(blockElement(b, depth));
    parent.blocks = now;
    return parent;
}

/* ---------------------------------------------------------------- conversation */

// {role, content, reasoning, calls: [{id, name, args, result}], tokens: [[text, logprob, top]],
//  stats, error, stopped}; tool results are kept with their calls.
let messages = [];
let running = null; // AbortController of the answer that is coming
let hasTemplate = true;
let chosenModel = ""; // of several; one need not be named

const PARAMETERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "seed",
    "presence_penalty", "frequency_penalty"];
const FIELDS = [...PARAMETERS, "system", "stop", "schema", "tools", "logprobs", "plain"];

function note(text, bad) {
    $("note").textContent = text;
    $("note").className = bad ? "bad" : "";
}

function parseJson(id, what) {
    const text = $(id).value.trim();
    if (text === "") return undefined;
    try {
        return JSON.parse(text);
    } catch (e) {
        $(id).focus();
        throw new Error(what + " is not JSON: " + e.message);
    }
}

function requestBody() {
    const body = {stream: true, stream_options: {include_usage: true}};
    if (chosenModel !== "") body.model = chosenModel;
    for (const name of PARAMETERS) {
        const text = $("p-" + name).value.trim();
        if (text === "") continue;
        if (!Number.isFinite(Number(text))) {
            $("p-" + name).focus();
            throw new Error(name + " is not a number");
        }
        body[name] = Number(text);
    }
    const stop = $("p-stop").value.split("\n").filter((s) => s !== "");
    if (stop.length > 0) body.stop = stop;
    const schema = parseJson("p-schema", "The JSON schema");
    if (schema !== undefined)
        body.response_format = {type: "json_schema", json_schema: {name: "answer", schema}};
    if ($("p-plain").checked) {
        body.prompt = messages.map((m) => m.content).join("");
        if ($("p-logprobs").checked) body.logprobs = 5;
        return ["/v1/completions", body];
    }
    const tools = parseJson("p-tools", "Tools");
    if (tools !== undefined) body.tools = tools;
    if ($("p-logprobs").checked) Object.assign(body, {logprobs: true, top_logprobs: 5});
    body.messages = [];
    const system = $("p-system").value;
    if (system.trim() !== "") body.messages.push({role: "system", content: system});
    for (const m of messages) {
        const out = {role: m.role, content: m.content};
        if (m.calls?.length > 0)
            out.tool_calls = m.calls.map((c) => ({id: c.id, type: "function",
                function: {name: c.name, arguments: c.args}}));
        body.messages.push(out);
        for (const c of m.calls || [])
            body.messages.push({role: "tool", tool_call_id: c.id, content: c.result || ""});
    }
    return ["/v1/chat/completions", body];
}

function takeCalls(m, deltas) {
    m.calls ||= [];
    for (const d of deltas) {
        const call = m.calls[d.index] ||= {id: "", name: "", args: ""};
        if (d.id) call.id = d.id;
        if (d.function?.name) call.name += d.function.name;
        if (d.function?.arguments) call.args += d.function.arguments;
    }
}

function takeTokens(m, logprobs) {
    m.tokens ||= [];
    if (Array.isArray(logprobs.content)) {
        for (const t of logprobs.content)
            m.tokens.push([t.token, t.logprob, t.top_logprobs.map((a) => [a.token, a.logprob])]);
    } else if (Array.isArray(logprobs.tokens)) { // the shape of /v1/completions
        logprobs.tokens.forEach((t, i) => m.tokens.push([t, logprobs.token_logprobs[i],
            Object.entries(logprobs.top_logprobs?.[i] || {})]));
    }
}

function takeEvent(m, event, times) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices?.[0];
    if (choice) {
        const delta = choice.delta || {content: choice.text};
        if (delta.content || delta.reasoning || delta.reasoning_content || delta.tool_calls) {
            times.first ||= performance.now();
            times.last = performance.now();
        }
        if (delta.content) m.content += delta.content;
        const reasoning = delta.reasoning || delta.reasoning_content;
        if (reasoning) m.reasoning = (m.reasoning || "") + reasoning;
        if (delta.tool_calls) takeCalls(m, delta.tool_calls);
        if (choice.logprobs) takeTokens(m, choice.logprobs);
        if (choice.finish_reason) m.finish = choice.finish_reason;
    }
    if (event.usage) m.usage = event.usage;
}

function describe(m, times) {
    const parts = [];
    if (m.usage) {
        const cached = m.usage.prompt_tokens_details?.cached_tokens || 0;
        parts.push(m.usage.prompt_tokens + " tokens in" + (cached ? " (" + cached + " cached)" : ""));
        parts.push(m.usage.completion_tokens + " out");
        const s = (times.last - times.first) / 1000;
        if (s > 0 && m.usage.completion_tokens > 1)
            parts.push(((m.usage.completion_tokens - 1) / s).toFixed(1) + " tokens/s");
    }
    if (times.first) parts.push("first after " + Math.round(times.first - times.start) + " ms");
    if (m.finish && m.finish !== "stop") parts.push("ended by " + m.finish);
    return parts.join(" · ");
}

async function generate() {
    let path, body;
    note("");
    try {
        [path, body] = requestBody();
    } catch (e) {
        openSettings(true);
        note(e.message, true);
        return;
    }
    const m = {role: "assistant", content: ""};
    const times = {start: performance.now()};
    messages.push(m);
    running = new AbortController();
    setBusy(true);
    const view = showMessage(m);
    let frame = 0;
    const draw = () => {
        frame = 0;
        fillMessage(m, view, true);
    };
    draw();
    try {
        await readEvents(await api(path, body, running.signal), (event) => {
            takeEvent(m, event, times);
            frame ||= requestAnimationFrame(draw);
        });
    } catch (e) {
        if (e.name === "AbortError") m.finish = "stop button";
        else m.error = e.message || "The connection failed.";
    }
    if (frame) cancelAnimationFrame(frame);
    running = null;
    m.stats = describe(m, times);
    setBusy(false);
    redraw();
    keepMessages();
}

function setBusy(busy) {
    $("send").hidden = busy;
    $("stop").hidden = !busy;
    $("messages").setAttribute("aria-busy", String(busy));
    if (busy && document.activeElement === $("send")) $("stop").focus();
    if (!busy && document.activeElement === $("stop")) $("input").focus();
}

function send() {
    const text = $("input").value;
    if (running || text.trim() === "") return;
    messages.push({role: "user", content: text});
    $("input").value = "";
    redraw();
    generate();
}

function keepMessages() {
    kept.set("messages", JSON.stringify(messages));
}

/* ---- showing messages */

const nearEnd = () => $("messages").scrollHeight - $("messages").scrollTop -
    $("messages").clientHeight < 80;

function scrollToEnd() {
    $("messages").scrollTop = $("messages").scrollHeight;
}

function showMessage(m) {
    const e = el("article", {className: "msg " + m.role},
        el("p", {className: "who", textContent: m.role === "user" ? "You" : "Assistant"}));
    e.parts = {think: el("details", {className: "think", hidden: true}, el("summary", {}, "Reasoning"),
        el("div", {className: "body"})), body: el("div", {className: "body"}), calls: el("div"),
    foot: el("div", {className: "foot"})};
    e.append(e.parts.think, e.parts.body, e.parts.calls, e.parts.foot);
    $("messages").append(e);
    return e;
}

function fillMessage(m, e, growing) {
    const stick = nearEnd();
    const {think, body, calls, foot} = e.parts;
    if (m.role === "user") {
        body.textContent = m.content;
    } else if (m.tokens && !m.calls && !m.reasoning) {
        showTokens(m, body);
    } else {
        markdown(m.content, body);
    }
    if (m.reasoning) {
        think.hidden = false;
        think.lastChild.textContent = m.reasoning;
        think.firstChild.textContent = growing && !m.content ? "Reasoning …" : "Reasoning";
    }
    body.classList.toggle("cursor", Boolean(growing));
    if (m.calls) calls.replaceChildren(...m.calls.map((c) => callElement(c, growing)));
    foot.replaceChildren();
    if (m.error) foot.append(el("p", {className: "error", textContent: m.error}));
    if (m.stats) foot.append(el("span", {textContent: m.stats}));
    if (stick) scrollToEnd();
}

const level = (p) => p < .1 ? "p0" : p < .3 ? "p1" : p < .6 ? "p2" : p < .9 ? "p3" : "p4";
const percent = (logprob) => (100 * Math.exp(logprob)).toFixed(1) + " %";

// One element per token, coloured by how likely it was; arrow keys or the pointer choose one, and
// what else could have come is said below.
function showTokens(m, body) {
    let list = body.firstChild;
    if (!list?.classList?.contains("tokens")) {
        list = el("div", {className: "tokens", tabIndex: 0, role: "group"});
        list.setAttribute("aria-label", "Tokens; the arrow keys show what else was likely");
        const alts = el("p", {className: "alts"});
        alts.setAttribute("role", "status");
        body.replaceChildren(list, alts);
        const choose = (i) => {
            if (i < 0 || i >= list.childNodes.length) return;
            list.childNodes[list.chosen]?.classList.remove("on");
            list.chosen = i;
            list.childNodes[i].classList.add("on");
            alts.textContent = describeToken(m.tokens[i]);
        };
        list.addEventListener("click", (ev) => choose([...list.childNodes].indexOf(ev.target)));
        list.addEventListener("keydown", (ev) => {
            const step = {ArrowRight: 1, ArrowLeft: -1}[ev.key];
            if (!step) return;
            ev.preventDefault();
            choose((list.chosen ?? -1) + step);
        });
    }
    for (let i = list.childNodes.length; i < m.tokens.length; i++) {
        const [text, logprob] = m.tokens[i];
        list.append(el("span", {textContent: text, title: percent(logprob ?? 0),
            className: level(Math.exp(logprob ?? 0))}));
    }
}

function describeToken([text, logprob, top]) {
    const others = top.filter(([t]) => t !== text)
        .map(([t, lp]) => JSON.stringify(t) + " " + percent(lp));
    return JSON.stringify(text) + " " + percent(logprob ?? 0) +
        (others.length > 0 ? "; else " + others.join(", ") : "");
}

function pretty(json) {
    try { return JSON.stringify(JSON.parse(json), null, 2); } catch { return json; }
}

function callElement(call, growing) {
    const e = el("div", {className: "call"}, "Calls ", el("b", {textContent: call.name}),
        el("pre", {tabIndex: 0, textContent: pretty(call.args)}));
    if (growing) return e;
    if (call.sent) {
        e.append("Result:", el("pre", {tabIndex: 0, textContent: call.result}));
        return e;
    }
    const input = el("textarea", {rows: 2, value: call.result || ""});
    input.addEventListener("input", () => { call.result = input.value; });
    e.append(el("label", {}, "Result of this call", input));
    return e;
}

function button(text, act) {
    const b = el("button", {type: "button", textContent: text});
    b.addEventListener("click", act);
    return b;
}

// All messages anew, with what can be done about the last ones.
function redraw() {
    $("messages").replaceChildren();
    if (messages.length === 0)
        $("messages").append(el("p", {className: "empty", textContent: hasTemplate
            ? "Ask something." : "This model has no chat template: it continues your text."}));
    messages.forEach((m, i) => {
        const e = showMessage(m);
        fillMessage(m, e, false);
        if (running) return;
        const {foot, calls} = e.parts;
        if (m.role === "user") {
            foot.append(button("Edit", () => {
                $("input").value = m.content;
                messages.length = i;
                redraw();
                $("input").focus();
            }));
            return;
        }
        if (i < messages.length - 1) return;
        if (m.calls?.some((c) => !c.sent)) {
            calls.append(button("Send results", () => {
                m.calls.forEach((c) => { c.sent = true; });
                redraw();
                generate();
            }));
        }
        foot.append(button("Regenerate", () => {
            messages.length = i;
            redraw();
            generate();
        }));
    });
    scrollToEnd();
}

/* ---------------------------------------------------------------- dashboard */

const SPAN_S = 120;     // what a chart shows
const WINDOW_S = 10;    // that figures are taken over
const samples = [];     // states, oldest first
let timer = 0;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function units(x, unit) {
    if (!Number.isFinite(x)) return "–";
    if (unit === "s") {
        if (x === 0) return "0";
        return x < 1e-3 ? (x * 1e6).toFixed(0) + " µs" : x < 1 ? (x * 1e3).toFixed(x < .01 ? 2 : 0) + " ms"
            : x.toFixed(x < 10 ? 2 : 1) + " s";
    }
    if (unit === "B") {
        const names = ["B", "KiB", "MiB", "GiB", "TiB"];
        let i = 0;
        for (; x >= 1024 && i < 4; i++) x /= 1024;
        return x.toFixed(x < 10 && i > 0 ? 1 : 0) + " " + names[i];
    }
    if (unit === "%") return (100 * x).toFixed(1) + " %";
    if (x >= 1e6) return (x / 1e6).toFixed(2) + " M";
    if (x >= 1e4) return (x / 1e3).toFixed(1) + " k";
    return x.toFixed(Number.isInteger(x) || x >= 100 ? 0 : 1);
}

// As histogram_quantile of Prometheus: straight lines inside the buckets.
function quantile(q, le, n) {
    const total = n.reduce((a, b) => a + b, 0);
    let sum = 0;
    if (total === 0) return NaN;
    for (let i = 0; i < le.length; i++) {
        const low = i > 0 ? le[i - 1] : 0;
        if (sum + n[i] >= q * total) return low + (le[i] - low) * (q * total - sum) / n[i];
        sum += n[i];
    }
    return le[le.length - 1];
}

// What a histogram counted between two states.
function between(a, b, name) {
    const n = b[name].n.map((x, i) => x - a[name].n[i]);
    const count = n.reduce((x, y) => x + y, 0);
    return {mean: count > 0 ? (b[name].sum - a[name].sum) / count : NaN,
        p95: quantile(.95, b[name].le, n), count};
}

function context(canvas) {
    const scale = window.devicePixelRatio || 1;
    const w = canvas.clientWidth, h = canvas.clientHeight;
    if (canvas.width !== Math.round(w * scale) || canvas.height !== Math.round(h * scale)) {
        canvas.width = Math.round(w * scale);
        canvas.height = Math.round(h * scale);
    }
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, w, h);
    return [g, w, h];
}

// A scale's end: 1, 2 or 5 times a power of ten, not below x.
function niceTop(x) {
    const p = 10 ** Math.floor(Math.log10(x));
    return [1, 2, 5, 10].map((k) => k * p).find((y) => y >= x * .999);
}

// series: [[name, color variable, values]]
function chart(id, unit, times, series) {
    const canvas = $(id);
    const [g, w, h] = context(canvas);
    const all = series.flatMap((s) => s[2]).filter(Number.isFinite);
    const top = niceTop(Math.max(...all, unit === "s" ? 1e-4 : 1));
    const left = 62, bottom = h - 18, width = w - left - 4, end = times[times.length - 1];
    g.font = "12px system-ui, sans-serif";
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (let i = 0; i <= 2; i++) {
        const y = 8 + (bottom - 8) * (1 - i / 2);
        g.fillStyle = color("--dim");
        g.fillText(units(top * i / 2, unit), left - 6, y);
        g.fillStyle = color("--line");
        g.fillRect(left, y, width, 1);
    }
    g.fillStyle = color("--dim");
    g.fillText("now", w - 4, h - 7);
    g.textAlign = "left";
    g.fillText("2 min ago", left, h - 7);
    for (const [, variable, values] of series) {
        g.strokeStyle = color(variable);
        g.lineWidth = 2;
        g.lineJoin = "round";
        g.beginPath();
        let open = false;
        values.forEach((v, i) => {
            const x = left + width * (1 - (end - times[i]) / SPAN_S);
            const y = 8 + (bottom - 8) * (1 - v / top);
            if (!Number.isFinite(v)) open = false;
            else if (open) g.lineTo(x, y);
            else {
                g.moveTo(x, y);
                g.lineTo(x + 1, y);
                open = true;
            }
        });
        g.stroke();
    }
    const legend = canvas.nextElementSibling || canvas.after(el("ul", {className: "legend"}));
    const texts = series.map(([name, , values]) => [name, units(values[values.length - 1], unit)]);
    setLegend(legend || canvas.nextElementSibling, texts.map((t, i) => [series[i][1], ...t]));
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", texts.map((t) => t.join(" ")).join(", "));
}

function setLegend(list, rows) {
    list.replaceChildren(...rows.map(([variable, name, value]) => el("li", {},
        el("i", {className: variable.slice(2)}), name + " ", el("b", {textContent: value}))));
}

function facts(id, rows) {
    $(id).replaceChildren(...rows.map(([name, value]) => el("div", {}, el("dt", {textContent: name}),
        el("dd", {textContent: value}))));
}

// The state that figures of state s are counted from.
function before(s) {
    return samples.find((a) => a.now_s >= s.now_s - WINDOW_S - .5) || samples[0];
}

function drawCharts() {
    const pairs = samples.slice(1).map((s, i) => [samples[i], s, s.now_s - samples[i].now_s]);
    const rate = (name) => pairs.map(([a, b, dt]) => (b[name] - a[name]) / dt);
    const dist = (name, what) => pairs.map(([, b]) => between(before(b), b, name)[what]);
    const times = samples.map((s) => s.now_s);
    chart("c-requests", "", times, [["running", "--s1", samples.map((s) => s.running)],
        ["waiting", "--s2", samples.map((s) => s.waiting)]]);
    chart("c-tokens", "", times.slice(1), [["generated", "--s1", rate("generation_tokens")],
        ["prompt", "--s2", rate("prompt_tokens")], ["of it cached", "--s4", rate("cached_tokens")]]);
    for (const name of ["ttft", "itl"])
        chart("c-" + name, "s", times.slice(1), [["mean", "--s1", dist(name, "mean")], ["95 %", "--s2", dist(name, "p95")]]);
}

function drawSplit(a, b) {
    const names = ["host", "device", "sample", "output", "masks"];
    const labels = ["planning", "model", "sampling", "output", "waiting for masks", "asleep"];
    const colors = ["--s2", "--s1", "--s3", "--s4", "--s5", "--s6"];
    const dt = b.now_s - a.now_s;
    const share = names.map((n) => Math.max(0, b.step_s[n] - a.step_s[n]) / dt);
    share.push(Math.max(0, 1 - share.reduce((x, y) => x + y, 0)));
    $("split").replaceChildren(...share.map((x, i) => {
        const e = el("div", {className: colors[i].slice(2)});
        e.style.flex = x + " 0 0";
        return e;
    }));
    setLegend($("split-legend"), labels.map((l, i) => [colors[i], l, units(share[i], "%")]));
    $("split").setAttribute("aria-label", labels.map((l, i) => l + " " + units(share[i], "%")).join(", "));
    const steps = b.steps - a.steps;
    const tokens = b.generation_tokens - a.generation_tokens;
    const rows = [["steps per second", units(steps / dt)],
        ["mean time in the queue", units(between(a, b, "queue").mean, "s")],
        ["processors used", units((b.cpu_s - a.cpu_s) / dt)],
        ["CPU seconds per million tokens", tokens > 0 ? units((b.cpu_s - a.cpu_s) / tokens * 1e6) : "–"]];
    if (b.device_busy_s > 0) {
        const busy = b.device_busy_s - a.device_busy_s, gap = b.device_gap_s - a.device_gap_s;
        rows.push(["device idle between steps", units(gap / (busy + gap), "%")]);
    }
    facts("split-facts", rows);
}

function drawMap(s) {
    const canvas = $("c-map");
    const [g, w, h] = context(canvas);
    const map = s.pages.map || "";
    const n = map.length / 2;
    const columns = Math.max(1, Math.ceil(Math.sqrt(n * w / h)));
    const rows = Math.max(1, Math.ceil(n / columns));
    const dx = w / columns, dy = h / rows, gap = dx > 6 && dy > 6 ? 1 : 0;
    const colors = {free: color("--free"), cached: color("--s4"), owned: color("--s1")};
    for (let i = 0; i < n; i++) {
        const owned = parseInt(map[2 * i], 16), cached = parseInt(map[2 * i + 1], 16);
        const x = i % columns * dx, y = Math.floor(i / columns) * dy;
        g.globalAlpha = 1;
        g.fillStyle = colors.free;
        g.fillRect(x, y, dx - gap, dy - gap);
        if (owned + cached === 0) continue;
        g.globalAlpha = .35 + .65 * Math.min(1, (owned + cached) / 15);
        g.fillStyle = owned >= cached ? colors.owned : colors.cached;
        g.fillRect(x, y, dx - gap, dy - gap);
    }
    g.globalAlpha = 1;
    const owned = s.pages.total - s.pages.free - s.pages.cached;
    const legend = [["--s1", "in use", units(owned)], ["--s4", "kept for reuse", units(s.pages.cached)],
        ["--s6", "free", units(s.pages.free)]];
    setLegend($("map-legend"), legend);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", legend.map((l) => l.slice(1).join(" ")).join(", ") + ", of " +
        s.pages.total + " pages of " + s.info.block_size + " tokens");
}

// Prefixes side by side, as wide as what hangs below them; each level is a stretch of tokens until
// prompts part.
function drawTree(s) {
    const canvas = $("c-tree");
    const [g, w, h] = context(canvas);
    const tree = s.pages.tree || {pages: 0, nodes: []};
    const nodes = tree.nodes.map(([parent, run, all, owned]) => ({parent, run, all, owned, x: 0, used: 0,
        w: 0, level: 0}));
    let at = 0, levels = 1;
    for (const n of nodes) {
        if (n.parent < 0) {
            n.w = w * n.all / tree.pages;
            n.x = at;
            at += n.w;
        } else {
            const up = nodes[n.parent];
            n.w = up.w * n.all / Math.max(1, up.all - up.run);
            n.x = up.x + up.used;
            up.used += n.w;
            n.level = up.level + 1;
        }
        levels = Math.max(levels, n.level + 1);
    }
    const dy = Math.min(h / levels, 32);
    for (const n of nodes) {
        g.globalAlpha = .45 + .55 * Math.min(1, n.run / 16);
        g.fillStyle = color(n.owned > 0 ? "--s1" : "--s4");
        g.fillRect(n.x, n.level * dy, Math.max(n.w - 1, 1), dy - 1);
    }
    g.globalAlpha = 1;
    if (nodes.length === 0) {
        g.fillStyle = color("--free");
        g.fillRect(0, 0, w, h);
    }
    const size = s.info.block_size;
    const words = tree.pages === 0 ? "Nothing is kept." : units(tree.pages) + " pages in " +
        units(tree.roots) + (tree.roots === 1 ? " prefix" : " prefixes") + ", " + units(tree.leaves) +
        (tree.leaves === 1 ? " end" : " ends") + ", the longest " + units(tree.depth * size) + " tokens" +
        (nodes.length >= 192 ? "; the largest are shown." : ".");
    $("tree-note").textContent = words + " Width: pages below; blue: running requests use it.";
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", words);
}

function drawMemory(s) {
    const rows = [["Process (resident)", s.resident_bytes, 0], ["Weights", s.info.weight_bytes, 0],
        ["KV pages in use", s.info.kv_cache_bytes * (s.pages.total - s.pages.free - s.pages.cached) / s.pages.total,
            s.info.kv_cache_bytes],
        ["Large bodies and unread replies", s.held_bytes, 0]];
    if (s.info.device_total_bytes > 0)
        rows.unshift(["GPU, this server", s.info.device_used_bytes, s.info.device_total_bytes]);
    $("memory").replaceChildren(...rows.map(([name, x, of]) => {
        const text = units(x, "B") + (of > 0 ? " of " + units(of, "B") : "");
        const e = el("div", {className: "meter"}, el("div", {}, el("span", {textContent: name}),
            el("b", {textContent: text})));
        if (of > 0) {
            const bar = el("meter", {min: 0, max: of, value: x});
            bar.setAttribute("aria-label", name + " " + text);
            e.append(bar);
        }
        return e;
    }));
}

async function cancel(id, b) {
    b.disabled = true;
    try {
        await api("/api/cancel", {id});
        note2("Cancelled " + id + ".");
    } catch (e) {
        note2(e.message);
    }
}

function note2(text) {
    $("requests-note").textContent = text;
}

// Rows stay as long as their requests, so that the focus does not jump.
function drawRequests(s) {
    const body = $("requests").tBodies[0];
    const old = new Map([...body.rows].map((r) => [r.dataset.id, r]));
    for (const r of s.requests) {
        const values = [r.id, r.state, r.prompt_tokens, r.cached_tokens,
            r.output_tokens + (r.choices > 1 ? " in " + r.choices : ""), units(r.age_s, "s"),
            r.ttft_s === undefined ? "–" : units(r.ttft_s, "s"), r.preemptions];
        let row = old.get(r.id);
        old.delete(r.id);
        if (!row) {
            const b = button("Cancel", () => cancel(r.id, b));
            b.setAttribute("aria-label", "Cancel " + r.id);
            row = el("tr", {}, ...values.map(() => el("td")), el("td", {}, b));
            row.dataset.id = r.id;
            row.cells[0].title = r.id;
            body.append(row);
        }
        values.forEach((v, i) => {
            if (row.cells[i].textContent !== String(v)) row.cells[i].textContent = v;
        });
    }
    for (const row of old.values()) row.remove();
    const more = s.n_requests - s.requests.length;
    if (s.n_requests === 0) note2("No request is running.");
    else if (more > 0) note2("And " + more + " more.");
    else if (/^(No|And)/.test($("requests-note").textContent)) note2("");
}

function drawTotals(s) {
    const f = s.finished, hours = s.uptime_s / 3600;
    const hit = s.prompt_tokens > 0 ? s.cached_tokens / s.prompt_tokens : NaN;
    facts("totals", [["up for", hours >= 1 ? hours.toFixed(1) + " h" : Math.ceil(s.uptime_s / 60) + " min"],
        ["tokens generated", units(s.generation_tokens)], ["prompt tokens", units(s.prompt_tokens)],
        ["of these found in the prefix cache", units(hit, "%")],
        ["finished: stop, length", units(f.stop) + ", " + units(f.length)],
        ["cancelled, failed", units(f.abort) + ", " + units(f.error)],
        ["preemptions", units(s.preemptions)],
        ["pages evicted for prompts, outputs", units(s.evicted.prompt) + ", " + units(s.evicted.output)],
        ["model", s.info.architecture + ", " + units(s.info.n_params) + " weights, " + s.info.weight_dtype],
        ["kernels", s.info.isa + (s.info.n_threads > 0 ? ", " + s.info.n_threads + " threads" : "")],
        ["KV cache", s.info.kv_dtype + ", " + units(s.pages.total * s.info.block_size) + " tokens"],
        ["context, sequences", units(s.info.max_model_len) + ", " + units(s.info.max_num_seqs)]]);
}

function drawFigures(a, s) {
    const dt = s.now_s - a.now_s;
    const rows = [["running", units(s.running)], ["waiting", units(s.waiting)],
        ["tokens/s", units((s.generation_tokens - a.generation_tokens) / dt)],
        ["prompt tokens/s", units((s.prompt_tokens - a.prompt_tokens) / dt)],
        ["first token, mean", units(between(a, s, "ttft").mean, "s")],
        ["between tokens, mean", units(between(a, s, "itl").mean, "s")],
        ["KV in use", units((s.pages.total - s.pages.free - s.pages.cached) / s.pages.total, "%")],
        ["connections", units(s.connections)]];
    $("figures").replaceChildren(...rows.map(([name, value]) => el("div", {},
        el("dt", {textContent: name}), el("dd", {textContent: value}))));
}

function health(good, text) {
    $("health").className = good ? "good" : "bad";
    if ($("health").textContent !== text) $("health").textContent = text;
}

function draw() {
    const s = samples[samples.length - 1];
    if (!s || $("dash").hidden) return;
    const a = before(s);
    drawFigures(a, s);
    drawCharts();
    if (a !== s) drawSplit(a, s);
    drawMap(s);
    drawTree(s);
    drawMemory(s);
    drawRequests(s);
    drawTotals(s);
}

// Which of several models the page is about: the one chosen before, else the first that writes text.
function offerModels(models) {
    const names = models.map((m) => m.id);
    $("models").hidden = models.length < 2;
    $("model").hidden = models.length > 1;
    if (models.length < 2) {
        chosenModel = "";
        return;
    }
    if (!names.includes(chosenModel))
        chosenModel = (models.find((m) => m.generates && m.id === kept.get("model")) ||
            models.find((m) => m.generates) || models[0]).id;
    const shown = [...$("models").options].map((o) => o.value);
    if (JSON.stringify(shown) !== JSON.stringify(names))
        $("models").replaceChildren(...names.map((n) => el("option", {value: n, textContent: n})));
    $("models").value = chosenModel;
}

function chooseModel(name) {
    chosenModel = name;
    kept.set("model", name);
    samples.length = 0; // of another model
    if (!hasTemplate) {
        hasTemplate = true;
        $("p-plain").checked = false;
        redraw();
    }
    look();
}

async function look() {
    let s;
    const asked = chosenModel;
    try {
        s = await (await api("/api/state" +
            (asked !== "" ? "?model=" + encodeURIComponent(asked) : ""))).json();
        offerModels(s.models);
        if (chosenModel !== asked && chosenModel !== s.model) return look();
    } catch (e) {
        if (e.status === 404) chosenModel = ""; // another server
        health(false, e.status ? e.message : "The server does not answer.");
        return;
    }
    health(s.health === "", s.health || "ready");
    $("model").textContent = s.model;
    $("model").title = s.model;
    if (hasTemplate && !s.info.chat) {
        hasTemplate = false;
        $("p-plain").checked = true;
        redraw();
    }
    const last = samples[samples.length - 1];
    if (last && (s.now_s - last.now_s > 15 || s.generation_tokens < last.generation_tokens))
        samples.length = 0; // a gap, or another server: rates over it would mean nothing
    samples.push(s);
    while (samples[0].now_s < s.now_s - SPAN_S) samples.shift();
    draw();
}

// Every second while somebody looks at it, else every ten for the light in the header.
function schedule() {
    clearTimeout(timer);
    if (document.hidden) return;
    timer = setTimeout(async () => {
        await look();
        schedule();
    }, $("dash").hidden ? 10000 : 1000);
}

/* ---------------------------------------------------------------- page */

function openTab(name, focus) {
    for (const t of ["chat", "dash"]) {
        const on = t === name;
        $(t).hidden = !on;
        $("tab-" + t).setAttribute("aria-selected", String(on));
        $("tab-" + t).tabIndex = on ? 0 : -1;
        if (on && focus) $("tab-" + t).focus();
    }
    history.replaceState(null, "", name === "dash" ? "#dashboard" : location.pathname);
    if (name === "dash") look();
    schedule();
}

function openSettings(open) {
    $("settings").classList.toggle("open", open);
    $("settings-open").setAttribute("aria-expanded", String(open));
}

function restore() {
    for (const name of FIELDS) {
        const input = $("p-" + name);
        const box = input.type === "checkbox";
        const value = kept.get(name);
        if (box) input.checked = value === "1";
        else input.value = value;
        input.addEventListener("change", () =>
            kept.set(name, box ? (input.checked ? "1" : "") : input.value));
    }
    try { messages = JSON.parse(kept.get("messages") || "[]"); } catch { messages = []; }
    $("key-open").hidden = kept.get("key") === "";
}

function listen() {
    for (const t of ["chat", "dash"]) {
        $("tab-" + t).addEventListener("click", () => openTab(t));
        $("tab-" + t).addEventListener("keydown", (e) => {
            if (e.key === "ArrowLeft" || e.key === "ArrowRight")
                openTab(t === "chat" ? "dash" : "chat", true);
        });
    }
    $("composer").addEventListener("submit", (e) => {
        e.preventDefault();
        send();
    });
    $("input").addEventListener("keydown", (e) => {
        if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
        e.preventDefault();
        send();
    });
    $("stop").addEventListener("click", () => running?.abort());
    $("clear").addEventListener("click", () => {
        running?.abort();
        messages = [];
        keepMessages();
        note("");
        redraw();
        $("input").focus();
    });
    $("models").addEventListener("change", () => chooseModel($("models").value));
    $("settings-open").addEventListener("click", () =>
        openSettings(!$("settings").classList.contains("open")));
    $("settings-close").addEventListener("click", () => {
        openSettings(false);
        $("settings-open").focus();
    });
    document.addEventListener("keydown", (e) => {
        if (e.key !== "Escape" || $("key-dialog").open) return;
        if ($("settings").classList.contains("open")) $("settings-close").click();
        else running?.abort();
    });
    $("key-open").addEventListener("click", askForKey);
    $("key-cancel").addEventListener("click", () => $("key-dialog").close());
    $("key-form").addEventListener("submit", (e) => {
        e.preventDefault();
        kept.set("key", $("key").value.trim());
        $("key-dialog").close();
        look();
    });
    document.addEventListener("visibilitychange", () => {
        if (!document.hidden) look();
        schedule();
    });
    window.addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

restore();
listen();
redraw();
openTab(location.hash === "#dashboard" ? "dash" : "chat");
look();
