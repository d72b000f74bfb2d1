
/* ---------------------------------------------------------------- colours of code */

// One expression per family of languages finds comments, strings, numbers, words; what it finds
// becomes a span with a class, and the text stays as it is. Every alternative takes what it can in
// one go, so that the time grows with the length only.
const MAX_HIGHLIGHT = 100000; // characters; more is shown in one colour

const words = (text) => new Set(text.split(" "));
const STRING = /"(?:[^"\\\n]|\\[^])*(?:"|$|(?=\n))|'(?:[^'\\\n]|\\[^])*(?:'|$|(?=\n))/.source;
const TEMPLATE = /`(?:[^`\\]|\\[^])*(?:`|$)/.source;
const TRIPLE = /"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)/.source;
const SLASHES = /\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)/.source;
const HASH = /#[^\n]*/.source;
const DASHES = /--[^\n]*|\/\*[^]*?(?:\*\/|$)/.source;
const NUMBER = /\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)[a-zA-Z]{0,3}\b/.source;
const WORD = /[@$]?[A-Za-z_][\w]*/.source;

const family = (comment, string, keywords, more) => ({keywords: words(keywords), more,
    find: new RegExp([comment, string, NUMBER, WORD].map((p) => "(" + p + ")").join("|"), "g")});

const C_WORDS = "auto bool break case char const continue default do double else enum extern false float for " +
    "goto if inline int long nullptr NULL restrict return short signed sizeof static struct switch true " +
    "typedef union unsigned void volatile while size_t int8_t int16_t int32_t int64_t uint8_t uint16_t " +
    "uint32_t uint64_t";
const CPP_WORDS = C_WORDS + " catch class constexpr co_await co_return co_yield decltype delete explicit final " +
    "friend mutable namespace new noexcept operator override private protected public template this throw " +
    "try typename using virtual __global__ __device__ __shared__ __host__";
const JS_WORDS = "abstract any as async await boolean break case catch class const continue debugger default " +
    "delete do else enum export extends false finally for from function get if implements import in " +
    "instanceof interface let new null number of private public readonly return set static string super " +
    "switch this throw true try type typeof undefined var void while yield";
const FAMILIES = {
    c: family(SLASHES + "|" + /^[ \t]*#[^\n]*/.source.replace("^", "(?<![^\\n])"), STRING, C_WORDS),
    cpp: family(SLASHES + "|" + /^[ \t]*#[^\n]*/.source.replace("^", "(?<![^\\n])"), STRING, CPP_WORDS),
    js: family(SLASHES, STRING + "|" + TEMPLATE, JS_WORDS),
    java: family(SLASHES, TRIPLE + "|" + STRING, "abstract boolean break byte case catch char class const continue " +
        "default do double else enum extends false final finally float for fun if implements import in " +
        "instanceof int interface internal is let long namespace new null object out override package " +
        "private protected public record ref return short static string super switch this throw throws " +
        "true try using val var virtual void when while data sealed"),
    go: family(SLASHES, STRING + "|" + TEMPLATE, "break case chan const continue default defer else error " +
        "fallthrough false for func go goto if import int int32 int64 interface make map nil package range " +
        "return select string struct switch true type uint8 uint32 uint64 var bool byte rune float64"),
    rust: family(SLASHES, /"(?:[^"\\]|\\[^])*(?:"|$)/.source, "as async await bool break const continue crate dyn " +
        "else enum extern f32 f64 false fn for i8 i16 i32 i64 if impl in let loop match mod move mut pub ref " +
        "return self Self static str struct super trait true type u8 u16 u32 u64 unsafe use usize where " +
        "while String Vec Option Result Some None Ok Err"),
    python: family(HASH, TRIPLE + "|" + STRING, "and as assert async await break class continue def del elif else " +
        "except False finally for from global if import in is lambda match case None nonlocal not or pass " +
        "raise return self True try while with yield"),
    shell: family("(?<![^\\s])" + HASH, /"(?:[^"\\]|\\[^])*(?:"|$)|'[^']*(?:'|$)/.source, "case do done elif else " +
        "esac export fi for function if in local return set then until while cd echo exit sudo"),
    ruby: family(HASH, STRING, "alias and begin break case class def do else elsif end ensure false for if in " +
        "local function module next nil not or redo rescue retry return self super then true undef unless " +
        "until when while yield repeat"),
    sql: family(DASHES, STRING, "add all alter and as asc between by case create database default delete desc " +
        "distinct drop else end exists foreign from full group having in index inner insert into is join " +
        "key left like limit not null offset on or order outer primary references right select set table " +
        "then union unique update values view when where with", "i"),
    data: family("(?<![^\\s])" + HASH, STRING, "true false null yes no on off"),
    markup: {keywords: words(""),
        find: /(<!--[^]*?(?:-->|$))|("[^"\n<>]*"|'[^'\n<>]*')|(&#?\w{1,10};)|(<[/?!]?[\w:.-]+|[/?]?>)/g, more: "tag"},
    css: {keywords: words(""),
        find: /(\/\*[^]*?(?:\*\/|$))|("[^"\n]*"|'[^'\n]*')|(#[\da-fA-F]{3,8}\b|\b\d+(?:\.\d+)?[a-z%]{0,4})|(@?[\w-]+)/g,
        more: "css"},
};
const LANGUAGES = {c: "c", h: "c", cpp: "cpp", "c++": "cpp", cc: "cpp", cxx: "cpp", hpp: "cpp", cuda: "cpp", cu: "cpp",
    objc: "cpp", js: "js", javascript: "js", jsx: "js", mjs: "js", ts: "js", typescript: "js", tsx: "js", java: "java",
    kotlin: "java", kt: "java", scala: "java", cs: "java", csharp: "java", "c#": "java", swift: "java", dart: "java",
    php: "java", go: "go", golang: "go", rust: "rust", rs: "rust", python: "python", py: "python", python3: "python",
    sh: "shell", bash: "shell", shell: "shell", zsh: "shell", console: "shell", dockerfile: "shell", makefile: "shell",
    make: "shell", ruby: "ruby", rb: "ruby", lua: "ruby", elixir: "ruby", sql: "sql", json: "data", yaml: "data",
    yml: "data", toml: "data", ini: "data", html: "markup", xml: "markup", svg: "markup", css: "css", scss: "css"};

function highlightDiff(text, parent) {
    for (const line of text.split(/(?<=\n)/)) {
        const kind = {"+": "hl-add", "-": "hl-del", "@": "hl-num"}[line[0]];
        parent.append(kind ? el("span", {className: kind, textContent: line}) : line);
    }
}

function highlight(lang, text, parent) {
    const name = lang.toLowerCase();
    const f = Object.hasOwn(LANGUAGES, name) ? FAMILIES[LANGUAGES[name]] : null;
    if (text.length > MAX_HIGHLIGHT) parent.textContent = text;
    else if (name === "diff" || name === "patch") highlightDiff(text, parent);
    else if (!f) parent.textContent = text;
    else {
        let at = 0;
        for (const m of text.matchAll(f.find)) {
            const [all, comment, string, number, word] = m;
            const after = text[m.index + all.length];
            const kind = comment !== undefined ? "hl-com" : string !== undefined ? "hl-str"
                : number !== undefined ? "hl-num" : f.more === "tag" || (f.more === "css" && (word[0] === "@" || after === ":")) ? "hl-key"
                : f.keywords.has(f.more === "i" ? word.toLowerCase() : word) ? "hl-key"
                : after === "(" ? "hl-fun" : "";
            if (kind === "") continue;
            if (m.index > at) parent.append(text.slice(at, m.index));
            parent.append(el("span", {className: kind, textContent: all}));
            at = m.index + all.length;
        }
        if (at < text.length) parent.append(text.slice(at));
    }
}
