
/* ---------------------------------------------------------------- list of conversations */

// In localStorage: sluice.chats is the list, [{id, title, at, named}], newest first, and sluice.chat.ID
// the messages of one. Other tabs write there too, so the list is read anew before each change.
const MAX_CHATS = 200;
const ICON_RENAME = "M11.5 1.8 14.2 4.5 5.2 13.5 1.8 14.2 2.5 10.8Z";
const ICON_DELETE = "M3 4.5H13M6.5 4.5V2.5H9.5V4.5M4.5 4.5 5 13.5H11L11.5 4.5";
let chatId = "";
let deleted = []; // that can be brought back: [entry, messages as text]

function readChats() {
    try {
        const list = JSON.parse(kept.get("chats") || "[]");
        return Array.isArray(list) ? list.filter((c) => typeof c?.id === "string") : [];
    } catch {
        return [];
    }
}

function writeChats(list) {
    list.sort((a, b) => b.at - a.at);
    for (const c of list.splice(MAX_CHATS)) kept.remove("chat." + c.id);
    kept.set("chats", JSON.stringify(list));
    drawChats();
}

function titleOf(list) {
    const text = (list.find((m) => m.role === "user")?.content || "").trim().replace(/\s+/g, " ");
    return text.length > 60 ? text.slice(0, 59) + "…" : text || "Conversation";
}

// What a replay said is true for that moment only, so that it is not kept.
const withoutReplay = (name, value) => name === "replay" ? undefined : value;
// Where there is little room, the text counts: without tokens there is nothing to replay.
const textOnly = (name, value) => ["replay", "tokens", "ids"].includes(name) ? undefined : value;

function keepMessages() {
    if (messages.length === 0) return;
    if (chatId === "") chatId = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
    if (!kept.set("chat." + chatId, JSON.stringify(messages, withoutReplay)) &&
        !kept.set("chat." + chatId, JSON.stringify(messages, textOnly)))
        note("The browser has no room for this conversation: delete others to keep it.", true);
    const list = readChats();
    let entry = list.find((c) => c.id === chatId);
    if (!entry) list.push(entry = {id: chatId, named: false});
    if (!entry.named) entry.title = titleOf(messages);
    entry.at = Date.now();
    writeChats(list);
    kept.set("chat", chatId);
}

function openChat(id) {
    running?.abort();
    chatId = id;
    kept.set("chat", id);
    try {
        messages = JSON.parse(kept.get("chat." + id) || "[]");
    } catch {
        messages = [];
    }
    note("");
    drawChats();
    redraw();
    showChats(false);
}

function newChat() {
    openChat("");
    $("input").focus();
}

function renameChat(id, title) {
    const list = readChats();
    const entry = list.find((c) => c.id === id);
    if (entry && title.trim() !== "") {
        entry.title = title.trim().slice(0, 120);
        entry.named = true;
    }
    writeChats(list);
}

function deleteChats(ids) {
    const list = readChats();
    deleted = list.filter((c) => ids.includes(c.id)).map((c) => [c, kept.get("chat." + c.id)]);
    ids.forEach((id) => kept.remove("chat." + id));
    writeChats(list.filter((c) => !ids.includes(c.id)));
    $("chats-undo").hidden = false;
    $("chats-undo-text").textContent = ids.length === 1 ? "Deleted." : ids.length + " deleted.";
    const open = $("chats").classList.contains("open");
    if (ids.includes(chatId)) openChat("");
    if (open) showChats(true);
    $("undo").focus();
}

function undoDelete() {
    const list = readChats();
    for (const [entry, text] of deleted) {
        list.push(entry);
        kept.set("chat." + entry.id, text);
    }
    deleted = [];
    $("chats-undo").hidden = true;
    writeChats(list);
    $("chat-list").querySelector("button")?.focus();
}

function editTitle(row, c) {
    const input = el("input", {value: c.title, maxLength: 120});
    input.setAttribute("aria-label", "Name of the conversation");
    let done = false;
    const end = (keep) => {
        if (done) return;
        done = true;
        if (keep) renameChat(c.id, input.value);
        else drawChats();
        document.querySelector(`#chat-list [data-id="${CSS.escape(c.id)}"] .open`)?.focus();
    };
    input.addEventListener("blur", () => end(true));
    input.addEventListener("keydown", (e) => {
        if (e.key !== "Enter" && e.key !== "Escape") return;
        e.preventDefault();
        e.stopPropagation();
        end(e.key === "Enter");
    });
    row.replaceChildren(input);
    input.select();
}

function drawChats() {
    const list = readChats();
    const focused = document.activeElement?.closest("#chat-list li")?.dataset.id;
    $("chat-list").replaceChildren(...list.map((c) => {
        const open = button(c.title, () => openChat(c.id));
        open.className = "open";
        open.title = c.title;
        if (c.id === chatId) open.setAttribute("aria-current", "true");
        const row = el("li", {}, open,
            iconButton("Rename " + c.title, ICON_RENAME, () => editTitle(row, c)),
            iconButton("Delete " + c.title, ICON_DELETE, () => deleteChats([c.id])));
        row.dataset.id = c.id;
        return row;
    }));
    if (focused) $("chat-list").querySelector(`[data-id="${CSS.escape(focused)}"] .open`)?.focus();
    $("chats-none").hidden = list.length > 0;
    $("chats-clear").hidden = list.length < 2;
}

// On narrow screens the list lies over the conversation.
function showChats(open) {
    $("chats").classList.toggle("open", open);
    $("chats-open").setAttribute("aria-expanded", String(open));
    if (open) $("new-chat").focus();
}
