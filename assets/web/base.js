// SPDX-License-Identifier: MIT
// The page at "/": a conversation with the model, and a look at the server. No text of a model or a
// user ever becomes markup: elements are made one by one and texts are text nodes. The build joins
// the files of this folder to page.js, in the order base, markdown, highlight, chats, chat, replay,
// dashboard, start.
"use strict";

const $ = (id) => document.getElementById(id);

// el("p", {className: "x"}, "text", otherElement)
function el(tag, props, ...children) {
    const e = Object.assign(document.createElement(tag), props);
    for (const child of children)
        if (child !== null && child !== undefined) e.append(child);
    return e;
}

function button(text, act) {
    const b = el("button", {type: "button", textContent: text});
    b.addEventListener("click", act);
    return b;
}

// A button with a picture for its text: `d` is the path of an icon of 16 x 16.
function iconButton(name, d, act) {
    const b = button("", act);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", d);
    svg.append(path);
    b.append(svg);
    b.className = "icon";
    b.title = name;
    b.setAttribute("aria-label", name);
    return b;
}

// The clipboard's interface exists on secure origins only: elsewhere a selection is copied.
async function copyText(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = el("textarea", {value: text, className: "sr", readOnly: true});
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    if (!done) throw new Error("the browser refused");
}

function copyButton(text) {
    const b = button("Copy", async () => {
        try {
            await copyText(text());
            b.textContent = "Copied";
        } catch {
            b.textContent = "Cannot copy";
        }
        setTimeout(() => { b.textContent = "Copy"; }, 2000);
    });
    return b;
}

/* ---------------------------------------------------------------- what the browser keeps */

// Settings and conversations stay in the browser; the key lives as long as the tab. A browser may
// refuse to keep anything: set() then says false.
function keeper(storage) {
    return {
        get(name) {
            try { return storage().getItem("sluice." + name) || ""; } catch { return ""; }
        },
        set(name, value) {
            try { storage().setItem("sluice." + name, value); } catch { return false; }
            return true;
        },
        remove(name) {
            try { storage().removeItem("sluice." + name); } catch { /* then nothing is kept */ }
        },
    };
}
const ofTab = keeper(() => sessionStorage);
const kept = keeper(() => localStorage);

/* ---------------------------------------------------------------- server */

// A reply of the server; status is 0 in the error where there is none.
async function api(path, body, signal) {
    const headers = {};
    const key = ofTab.get("key");
    if (key) headers.Authorization = "Bearer " + key;
    if (body) headers["Content-Type"] = "application/json";
    let r;
    try {
        r = await fetch(path, {method: body ? "POST" : "GET", headers, signal, cache: "no-store",
            body: body ? JSON.stringify(body) : undefined});
    } catch (e) {
        throw e.name === "AbortError" ? e : lostConnection();
    }
    if (r.ok) return r;
    let message = r.status + " " + r.statusText;
    try { message = (await r.json()).error.message; } catch { /* not OpenAI's error object */ }
    if (r.status === 401) askForKey();
    const error = new Error(message);
    error.status = r.status;
    throw error;
}

function lostConnection() {
    return Object.assign(new Error("The server does not answer."), {status: 0});
}

function askForKey() {
    $("key-open").hidden = false;
    if ($("key-dialog").open) return;
    $("key").value = ofTab.get("key");
    $("key-dialog").showModal();
}

// Server-sent events of a reply: calls take with each data line's JSON.
async function readEvents(reply, take) {
    const reader = reply.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
        const {done, value} = await reader.read().catch((e) => {
            throw e.name === "AbortError" ? e : lostConnection();
        });
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

