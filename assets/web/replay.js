
/* ---------------------------------------------------------------- replay of an answer */

// The same messages, parameters and seed once more: every token's id and log probability must be
// what they were, whatever else the server computes beside it and whatever its cache holds.

const tokenText = (m, i) => JSON.stringify(m.tokens[i][0]) + " (id " + m.ids[i] + ", log probability " +
    m.tokens[i][1] + ")";

// The first place where b is not as a, of b's tokens so far; -1: none.
function firstDifference(a, b, from) {
    for (let i = from; i < b.ids.length; i++) {
        if (i >= a.ids.length || a.ids[i] !== b.ids[i] || a.tokens[i][1] !== b.tokens[i][1]) return i;
    }
    return -1;
}

function replayable(m) {
    return m.settings && !m.error && m.ids?.length > 0 && m.ids.length === m.tokens?.length;
}

// What can be said once b, the replay of a, has ended; stopped: a was cut short by the user.
function verdict(a, b, difference, stopped) {
    const n = a.ids.length;
    if (difference >= 0 && difference < n)
        return {same: false, text: "Different from token " + (difference + 1) + ": " +
            tokenText(a, difference) + " was, " + tokenText(b, difference) + " is."};
    if (!stopped && b.ids.length !== n)
        return {same: false, text: "Different: " + n + " tokens were, " + b.ids.length + " are."};
    if (b.ids.length < n)
        return {same: false, text: "Stopped after " + b.ids.length + " of " + n + " tokens, identical so far."};
    const cached = b.usage?.prompt_tokens_details?.cached_tokens;
    return {same: true, text: "Identical: " + n + (n === 1 ? " token" : " tokens") +
        ", ids and log probabilities" + (cached ? "; " + cached + " prompt tokens came from the cache" : "") + "."};
}

async function replay(m, index) {
    const again = {role: "assistant", content: "", ids: [], tokens: []};
    const stopped = m.finish === "stop button";
    let checked = 0, difference = -1;
    const view = $("messages").children[index];
    running = new AbortController();
    setBusy(true);
    m.replay = {text: "Replaying …"};
    fillMessage(m, view, false);
    try {
        const body = requestBody(m.settings, messages.slice(0, index));
        await readEvents(await api(m.settings.path, body, running.signal), (event) => {
            if (difference >= 0) return; // what was under way when it was found
            takeEvent(again, event, {});
            difference = firstDifference(m, again, checked);
            checked = again.ids.length;
            view.parts.replay.textContent = "Replaying: " + Math.min(checked, m.ids.length) + " of " +
                m.ids.length + " tokens";
            if (difference >= 0 || (stopped && checked >= m.ids.length)) running.abort();
        });
        m.replay = verdict(m, again, difference, stopped);
    } catch (e) {
        m.replay = e.name === "AbortError" ? verdict(m, again, difference, stopped || difference < 0)
            : {same: false, text: "The replay failed: " + e.message};
    }
    running = null;
    setBusy(false);
    redraw();
}
