
/* ---------------------------------------------------------------- dashboard */

// The server keeps the load of the last hour; every point is taken over the ten seconds before it.
let state = null;       // the newest reply of /api/state
let points = [];        // {number, at_ms, running, ...}, oldest first, as names of the history say
let spanS = 120;        // what the charts show

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

// Adds what is new. Of what is older than the recent points each tenth is kept, as the server does.
function takeHistory(h) {
    if (points.length > 0 && h.last < points[points.length - 1].number) points = [];
    for (const values of h.points)
        points.push(Object.fromEntries(h.names.map((name, i) => [name, values[i]])));
    points = points.filter((p) => p.number + h.recent > h.last ||
        (p.number % 10 === 0 && p.number + 3600 > h.last));
}

const perSecond = (p, name) => p.window_ms > 0 ? p[name] / p.window_ms * 1000 : NaN;
const seconds = (p, name) => p[name] >= 0 ? p[name] * 1e-6 : NaN;

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

// A scale's end, not below x, that has a round half.
function niceTop(x) {
    const p = 10 ** Math.floor(Math.log10(x));
    return [1, 2, 4, 10].map((k) => k * p).find((y) => y >= x * .999);
}

// series: [[name, color variable, value of a point]]. The legend has the values of the last point, or
// of the one under the pointer.
function chart(id, unit, shown, series) {
    const canvas = $(id);
    series = series.map(([name, variable, get]) => [name, variable, shown.map(get)]);
    const times = shown.map((p) => p.at_ms / 1000);
    const [g, w, h] = context(canvas);
    const all = series.flatMap((s) => s[2]).filter(Number.isFinite);
    const top = niceTop(Math.max(...all, unit === "s" ? 1e-4 : 2));
    const left = 62, bottom = h - 18, width = w - left - 4, end = times[times.length - 1];
    const xOf = (i) => left + width * (1 - (end - times[i]) / spanS);
    g.font = "12px system-ui, sans-serif";
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (let i = 0; i <= 2; i++) {
        const y = 8 + (bottom - 8) * (1 - i / 2);
        g.fillStyle = color("--dim");
        g.fillText(units(top * i / 2, unit).replace(/\.0+(?= )/, ""), left - 6, y);
        g.fillStyle = color("--line");
        g.fillRect(left, y, width, 1);
    }
    g.fillStyle = color("--dim");
    g.fillText("now", w - 4, h - 7);
    g.textAlign = "left";
    g.fillText(spanS === 120 ? "2 min ago" : "1 h ago", left, h - 7);
    for (const [, variable, values] of series) {
        g.strokeStyle = color(variable);
        g.lineWidth = 2;
        g.lineJoin = "round";
        g.beginPath();
        let open = false;
        values.forEach((v, i) => {
            const x = xOf(i);
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
    let at = times.length - 1;
    if (canvas.pointerX !== undefined && at >= 0) {
        for (let i = at; i >= 0; i--)
            if (Math.abs(xOf(i) - canvas.pointerX) < Math.abs(xOf(at) - canvas.pointerX)) at = i;
        g.fillStyle = color("--dim");
        g.fillRect(xOf(at), 8, 1, bottom - 8);
    }
    if (!canvas.nextElementSibling) {
        canvas.after(el("ul", {className: "legend"}));
        canvas.addEventListener("pointermove", (e) => {
            canvas.pointerX = e.offsetX;
            drawCharts();
        });
        canvas.addEventListener("pointerleave", () => {
            canvas.pointerX = undefined;
            drawCharts();
        });
    }
    const texts = series.map(([name, , values]) => [name, units(values[at], unit)]);
    const rows = texts.map((t, i) => [series[i][1], ...t]);
    if (canvas.pointerX !== undefined && end - times[at] >= 1)
        rows.push(["", Math.round(end - times[at]) + " s ago", ""]);
    setLegend(canvas.nextElementSibling, rows);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", texts.map((t) => t.join(" ")).join(", "));
}

function setLegend(list, rows) {
    list.replaceChildren(...rows.map(([variable, name, value]) => el("li", {},
        variable ? el("i", {className: variable.slice(2)}) : null, name + " ", el("b", {textContent: value}))));
}

function facts(id, rows) {
    $(id).replaceChildren(...rows.map(([name, value]) => el("div", {}, el("dt", {textContent: name}),
        el("dd", {textContent: value}))));
}

function drawCharts() {
    const last = points[points.length - 1];
    if (!last) return;
    const shown = points.filter((p) => p.at_ms >= last.at_ms - spanS * 1000 &&
        (spanS === 120 || p.number % 10 === 0 || p === last));
    chart("c-requests", "", shown, [["running", "--s1", (p) => p.running], ["waiting", "--s2", (p) => p.waiting]]);
    chart("c-tokens", "", shown, [["generated", "--s1", (p) => perSecond(p, "generation_tokens")],
        ["prompt", "--s2", (p) => perSecond(p, "prompt_tokens")],
        ["of it cached", "--s4", (p) => perSecond(p, "cached_tokens")]]);
    for (const name of ["ttft", "itl"])
        chart("c-" + name, "s", shown, [["mean", "--s1", (p) => seconds(p, name + "_mean_us")],
            ["p95", "--s2", (p) => seconds(p, name + "_p95_us")]]);
}

function drawSplit(w, tokens) {
    const names = ["host", "device", "sample", "output", "masks"];
    const labels = ["planning", "model", "sampling", "output", "waiting for masks", "asleep"];
    const colors = ["--s2", "--s1", "--s3", "--s4", "--s5", "--s6"];
    const share = names.map((n) => Math.max(0, w.step_s[n]) / w.seconds);
    share.push(Math.max(0, 1 - share.reduce((x, y) => x + y, 0)));
    $("split").replaceChildren(...share.map((x, i) => {
        const e = el("div", {className: colors[i].slice(2)});
        e.style.flex = x + " 0 0";
        return e;
    }));
    setLegend($("split-legend"), labels.map((l, i) => [colors[i], l, units(share[i], "%")]));
    $("split").setAttribute("aria-label", labels.map((l, i) => l + " " + units(share[i], "%")).join(", "));
    const rows = [["steps per second", units(w.steps / w.seconds)],
        ["mean time in the queue", units(w.queue.mean ?? NaN, "s")],
        ["processors used", units(w.cpu_s / w.seconds)],
        ["CPU seconds per million tokens", tokens > 0 ? units(w.cpu_s / tokens * 1e6) : "–"]];
    if (w.device_busy_s > 0)
        rows.push(["device idle between steps", units(w.device_gap_s / (w.device_busy_s + w.device_gap_s), "%")]);
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
    const nodes = tree.nodes.map(([parent, run, all, owned, states]) => ({parent, run, all, owned, states,
        x: 0, used: 0, w: 0, level: 0}));
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
    const dy = Math.min(h / levels, 48);
    for (const n of nodes) {
        g.globalAlpha = .45 + .55 * Math.min(1, n.run / 16);
        g.fillStyle = color(n.owned > 0 ? "--s1" : "--s4");
        g.fillRect(n.x, n.level * dy, Math.max(n.w - 1, 1), dy - 1);
        if (n.states > 0) {
            g.globalAlpha = 1;
            g.fillStyle = color("--s2");
            g.fillRect(n.x, (n.level + 1) * dy - 4, Math.max(n.w - 1, 1), 3);
        }
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
    const states = tree.states === undefined ? "" : " Prompts can go on from " + units(tree.states) +
        (tree.states === 1 ? " recurrent state" : " recurrent states") + " (edge below).";
    $("tree-note").textContent = words + states + " Width: pages below; blue: running requests use it.";
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", words + states);
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

// The same points as the ends of the charts, so that a tile and a legend never differ.
function drawFigures(s, p) {
    const more = (name) => "p95 " + units(seconds(p, name + "_p95_us"), "s") + ", p99 " +
        units(s.window[name].p99 ?? NaN, "s");
    const rows = [["running", units(p.running), units(p.waiting) + " waiting"],
        ["generated", units(perSecond(p, "generation_tokens")), "tokens/s"],
        ["prompt", units(perSecond(p, "prompt_tokens")), "tokens/s"],
        ["first token, mean", units(seconds(p, "ttft_mean_us"), "s"), more("ttft")],
        ["between tokens, mean", units(seconds(p, "itl_mean_us"), "s"), more("itl")],
        ["KV cache in use", units((s.pages.total - s.pages.free - s.pages.cached) / s.pages.total, "%"),
            "of " + units(s.pages.total * s.info.block_size) + " tokens"],
        ["connections", units(s.connections), "of clients"]];
    $("figures").replaceChildren(...rows.map(([name, value, below]) => el("div", {},
        el("dt", {textContent: name}), el("dd", {textContent: value}),
        el("dd", {className: "below", textContent: below}))));
}

function draw() {
    const s = state;
    if (!s || $("dash").hidden) return;
    const last = points[points.length - 1];
    if (last) {
        drawFigures(s, last);
        drawCharts();
        drawSplit(s.window, last.generation_tokens);
    }
    drawMap(s);
    drawTree(s);
    drawMemory(s);
    drawRequests(s);
    drawTotals(s);
}

function showSpan(s) {
    spanS = s;
    for (const [id, value] of [["span-2m", 120], ["span-1h", 3600]])
        $(id).setAttribute("aria-pressed", String(value === s));
    draw();
}
