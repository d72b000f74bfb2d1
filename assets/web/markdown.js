
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
    const code = el("code");
    highlight(lang, text, code);
    return el("div", {className: "block"}, el("div", {className: "bar"}, el("span", {}, lang),
        copyButton(() => text)), el("pre", {tabIndex: 0}, code));
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
