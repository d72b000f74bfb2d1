
/* ---------------------------------------------------------------- conversation */

// {role, content, reasoning, calls: [{id, name, args, result}], tokens: [[text, logprob, top]],
//  ids, colour, stats, error, settings}; tool results are kept with their calls. settings is what
// the answer was asked for with, without the messages: with it the answer can be replayed.
let messages = [];
let running = null; // AbortController of the answer that is coming
let hasTemplate = true;
let chosenModel = ""; // of several; one need not be named

const PARAMETERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "seed",
    "presence_penalty", "frequency_penalty"];
const FIELDS = [...PARAMETERS, "system", "stop", "schema", "tools", "logprobs", "plain"];

function note(text, bad) {
    $("note").textContent = text || "Enter sends, Shift+Enter is a new line";
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

// {path, body, system, colour}: all of a request but its messages. Without a seed of the user's one is
// drawn here, and ids and log probabilities are always asked for, so that the answer can be replayed.
function requestSettings() {
    const body = {stream: true, stream_options: {include_usage: true}, return_token_ids: true};
    const colour = $("p-logprobs").checked;
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
    body.seed ??= Math.floor(Math.random() * 2 ** 31);
    const stop = $("p-stop").value.split("\n").filter((s) => s !== "");
    if (stop.length > 0) body.stop = stop;
    const schema = parseJson("p-schema", "The JSON schema");
    if (schema !== undefined)
        body.response_format = {type: "json_schema", json_schema: {name: "answer", schema}};
    if ($("p-plain").checked) {
        body.logprobs = colour ? 5 : 0;
        return {path: "/v1/completions", body, system: "", colour};
    }
    const tools = parseJson("p-tools", "Tools");
    if (tools !== undefined) body.tools = tools;
    Object.assign(body, {logprobs: true, top_logprobs: colour ? 5 : 0});
    return {path: "/v1/chat/completions", body, system: $("p-system").value, colour};
}

function requestBody(settings, list) {
    if (settings.path === "/v1/completions")
        return {...settings.body, prompt: list.map((m) => m.content).join("")};
    const out = [];
    if (settings.system.trim() !== "") out.push({role: "system", content: settings.system});
    for (const m of list) {
        const message = {role: m.role, content: m.content};
        if (m.calls?.length > 0)
            message.tool_calls = m.calls.map((c) => ({id: c.id, type: "function",
                function: {name: c.name, arguments: c.args}}));
        out.push(message);
        for (const c of m.calls || [])
            out.push({role: "tool", tool_call_id: c.id, content: c.result || ""});
    }
    return {...settings.body, messages: out};
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
        if (choice.token_ids) (m.ids ||= []).push(...choice.token_ids);
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
    if (m.settings) parts.push("seed " + m.settings.body.seed);
    if (m.finish && m.finish !== "stop") parts.push("ended by " + m.finish);
    return parts.join(" · ");
}

async function generate() {
    let settings;
    note("");
    try {
        settings = requestSettings();
    } catch (e) {
        openSettings(true);
        note(e.message, true);
        return;
    }
    const body = requestBody(settings, messages);
    const m = {role: "assistant", content: "", settings, colour: settings.colour};
    const times = {start: performance.now()};
    const mine = messages; // another conversation may be opened meanwhile
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
        await readEvents(await api(settings.path, body, running.signal), (event) => {
            takeEvent(m, event, times);
            frame ||= requestAnimationFrame(draw);
        });
    } catch (e) {
        if (e.name === "AbortError") m.finish = "stop button";
        else m.error = e.message;
        if (e.status === 0) look();
    }
    if (frame) cancelAnimationFrame(frame);
    running = null;
    m.stats = describe(m, times);
    setBusy(false);
    if (mine === messages) keepMessages();
    redraw();
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
    fitInput();
    keepMessages();
    redraw();
    generate();
}

/* ---- showing messages */

const nearEnd = () => $("messages").scrollHeight - $("messages").scrollTop -
    $("messages").clientHeight < 80;

function scrollToEnd() {
    $("messages").scrollTop = $("messages").scrollHeight;
}

function showMessage(m) {
    const e = el("article", {className: "msg " + m.role},
        el("p", {className: m.role === "user" ? "sr" : "who", textContent: m.role === "user" ? "You" : "Assistant"}));
    e.parts = {think: el("details", {className: "think", hidden: true}, el("summary", {}, "Reasoning"),
        el("div", {className: "body"})), body: el("div", {className: "body"}), calls: el("div"),
    foot: el("div", {className: "foot"}), replay: el("p", {className: "replay", hidden: true})};
    e.parts.replay.setAttribute("role", "status");
    e.append(e.parts.think, e.parts.body, e.parts.calls, e.parts.replay, e.parts.foot);
    $("messages").append(e);
    return e;
}

function fillMessage(m, e, growing) {
    const stick = nearEnd();
    const {think, body, calls, foot, replay: result} = e.parts;
    if (m.role === "user") {
        body.textContent = m.content;
    } else if (m.tokens && m.colour && !m.calls && !m.reasoning) {
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
    result.hidden = !m.replay;
    result.textContent = m.replay?.text || "";
    result.className = "replay" + (m.replay?.same === undefined ? "" : m.replay.same ? " good" : " bad");
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

// What an empty conversation offers.
const EXAMPLES = [
    ["Explain an idea", "Explain how a hash table works, in simple words."],
    ["Write code", "Write a Python function that merges two sorted lists, with a short test."],
    ["Compare", "Compare TCP and UDP in a table with three rows."],
    ["Tell a story", "Tell me a short story about a lighthouse keeper."],
];
const BEGINNINGS = [
    ["Begin a story", "Once upon a time"],
    ["Begin a list", "The three most important rules are:\n1."],
];

function emptyView() {
    const list = hasTemplate ? EXAMPLES : BEGINNINGS;
    return el("div", {className: "empty"},
        el("h2", {textContent: hasTemplate ? "Ask the model something" : "Write a beginning"}),
        el("p", {textContent: hasTemplate ? "Or start with an example:"
            : "This model has no chat template: it continues your text. For example:"}),
        el("div", {className: "examples"}, ...list.map(([name, text]) => {
            const b = button("", () => {
                $("input").value = text;
                send();
            });
            b.append(el("b", {textContent: name}), el("span", {textContent: text}));
            return b;
        })));
}

// All messages anew, with what can be done about the last ones.
function redraw() {
    $("messages").replaceChildren();
    if (messages.length === 0) $("messages").append(emptyView());
    messages.forEach((m, i) => {
        const e = showMessage(m);
        fillMessage(m, e, false);
        if (!running) addActions(m, i, e.parts);
    });
    scrollToEnd();
}

function addActions(m, i, {foot, calls}) {
    const actions = el("span", {className: "actions"});
    foot.append(actions);
    if (m.content !== "") actions.append(copyButton(() => m.content));
    if (m.role === "user") {
        actions.append(button("Edit", () => {
            $("input").value = m.content;
            messages.length = i;
            redraw();
            $("input").focus();
            fitInput();
        }));
        return;
    }
    if (replayable(m)) {
        const b = button("Replay", () => replay(m, i));
        b.title = "Asks for the same answer again and compares it bit by bit";
        actions.append(b);
    }
    if (i < messages.length - 1) return;
    if (m.calls?.some((c) => !c.sent)) {
        calls.append(button("Send results", () => {
            m.calls.forEach((c) => { c.sent = true; });
            redraw();
            generate();
        }));
    }
    actions.append(button("Regenerate", () => {
        messages.length = i;
        redraw();
        generate();
    }));
}

// The input is as high as its text, up to the bound of the style sheet.
function fitInput() {
    const input = $("input");
    input.rows = Math.min(12, Math.max(1, input.value.split("\n").length));
}
