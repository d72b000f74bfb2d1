
/* ---------------------------------------------------------------- is the server there? */

const ASK_MS = 3000;      // from one look at the server to the next, for the light in the header
const SLOW_MS = 30000;    // the same, while the server is well and nobody touches the page
const PATIENCE_MS = 4000; // for a reply
let timer = 0;
let pause = ASK_MS;       // before the next look
let asking = 0;           // number of the last look; replies of older ones are late
let lastReply = null;     // Date

function health(good, text) {
    $("health").className = good ? "good" : "bad";
    if ($("health").textContent !== text) $("health").textContent = text;
}

function answered(text) {
    lastReply = new Date();
    $("offline").hidden = true;
    health(text === "", text || "ready");
}

function silent() {
    health(false, "offline");
    $("offline").hidden = false;
    $("offline").textContent = "The server does not answer; trying again." +
        (lastReply ? " Its last reply came at " + lastReply.toLocaleTimeString() + "." : "");
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
    state = null;
    points = [];
    if (!hasTemplate) {
        hasTemplate = true;
        $("p-plain").checked = false;
        redraw();
    }
    look();
}

// The state of the server, for all that the page shows of it.
async function look() {
    const asked = chosenModel, number = ++asking;
    const query = new URLSearchParams();
    let s;
    if (asked !== "") query.set("model", asked);
    if (points.length > 0) query.set("since", points[points.length - 1].number);
    try {
        s = await (await api("/api/state?" + query, undefined, AbortSignal.timeout(PATIENCE_MS))).json();
    } catch (e) {
        if (number !== asking) return;
        if (e.status === 404) chosenModel = ""; // another server
        if (e.status > 0) answered(e.message);
        else silent();
        return;
    }
    if (number !== asking) return;
    answered(s.health);
    if (state && state.started_s !== s.started_s && points.length > 0) {
        state = null; // another server: what is known of the old one goes
        points = [];
        return look();
    }
    offerModels(s.models);
    if (chosenModel !== asked && chosenModel !== s.model) return look();
    state = s;
    takeHistory(s.history);
    $("model").textContent = s.model;
    $("model").title = s.model;
    if (hasTemplate && !s.info.chat) {
        hasTemplate = false;
        $("p-plain").checked = true;
        redraw();
    }
    draw();
}

// Without the dashboard a look costs less: whether the server is there and well.
async function ask() {
    try {
        const r = await fetch("/health", {cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS)});
        const back = !lastReply || $("health").textContent === "offline";
        answered(r.ok ? "" : (await r.text()).trim() || "not ready");
        if (back) await look();
    } catch {
        silent();
    }
}

function schedule() {
    clearTimeout(timer);
    if (document.hidden) return;
    if (!$("dash").hidden) pause = ASK_MS;
    timer = setTimeout(async () => {
        await ($("dash").hidden ? ask() : look());
        pause = $("health").className === "good" ? Math.min(2 * pause, SLOW_MS) : ASK_MS;
        schedule();
    }, $("dash").hidden ? pause : 1000);
}

// Somebody is at the page.
function touched() {
    if (pause === ASK_MS || document.hidden) return;
    pause = ASK_MS;
    ask();
    schedule();
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
    if (open) $("settings-close").focus();
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
    $("key-open").hidden = ofTab.get("key") === "";
    const last = kept.get("chat");
    openChat(readChats().some((c) => c.id === last) ? last : "");
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
    $("input").addEventListener("input", fitInput);
    $("new-chat").addEventListener("click", newChat);
    $("chats-open").addEventListener("click", () => showChats(!$("chats").classList.contains("open")));
    $("chats-close").addEventListener("click", () => {
        showChats(false);
        $("chats-open").focus();
    });
    $("chats-clear").addEventListener("click", () => deleteChats(readChats().map((c) => c.id)));
    $("undo").addEventListener("click", undoDelete);
    window.addEventListener("storage", (e) => {
        if (e.key === "sluice.chats") drawChats();
    });
    $("span-2m").addEventListener("click", () => showSpan(120));
    $("span-1h").addEventListener("click", () => showSpan(3600));
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
        else if ($("chats").classList.contains("open")) $("chats-close").click();
        else running?.abort();
    });
    $("key-open").addEventListener("click", askForKey);
    $("key-cancel").addEventListener("click", () => $("key-dialog").close());
    $("key-form").addEventListener("submit", (e) => {
        e.preventDefault();
        ofTab.set("key", $("key").value.trim());
        $("key-dialog").close();
        look();
    });
    for (const event of ["pointerdown", "pointermove", "keydown"])
        document.addEventListener(event, touched, {passive: true});
    document.addEventListener("visibilitychange", () => {
        pause = ASK_MS;
        if (!document.hidden) look();
        schedule();
    });
    window.addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

restore();
listen();
openTab(location.hash === "#dashboard" ? "dash" : "chat");
look();
