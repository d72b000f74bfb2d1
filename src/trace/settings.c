/* SPDX-License-Identifier: MIT */
#include "trace/settings.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "base/sys.h"
#include "sluice.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MAX_URL      2048
#define MAX_FLUSH_MS 5000 /* the end of the server does not wait longer */
#define MAX_PAIRS    128
#define MAX_VARIABLE 16384 /* bytes of a list */
#define TRACES_PATH  "v1/traces"

/* A variable for traces alone goes before the one for all signals. */
static const char *settings_either(const char *traces, const char *all, const char **name)
{
    const char *v = sl_environment(traces);
    *name = v != NULL ? traces : all;
    return v != NULL ? v : sl_environment(all);
}

static int32_t read_count(const char *name, const char *text, int32_t min, int32_t fallback)
{
    uint64_t x;
    SL_ASSERT(min >= 0 && fallback >= min);
    if (text == NULL)
        return fallback;
    if (sl_parse_u64(text, strlen(text), &x) && x >= (uint64_t)min && x <= INT32_MAX)
        return (int32_t)x;
    sl_log(SL_LOG_WARN, "%s: '%.60s' is not a number of at least %d: using %d", name, text, min,
           fallback);
    return fallback;
}

/* ---- lists: name=value,name=value with %-escapes, as in W3C Baggage */

static void trim(const char **s, const char **end)
{
    while (*s < *end && (**s == ' ' || **s == '\t'))
        ++*s;
    while (*s < *end && ((*end)[-1] == ' ' || (*end)[-1] == '\t'))
        --*end;
    SL_ASSERT(*s <= *end);
}

/* false: an escape is none, or stands for a control character. */
static bool settings_unescape(struct sl_buf *out, const char *s, const char *end)
{
    while (s < end) {
        uint64_t c = (unsigned char)*s;
        if (c == '%') {
            if (end - s < 3 || !sl_parse_hex_u64(s + 1, 2, &c))
                return false;
            s += 2;
        }
        s++;
        SL_ASSERT(s <= end && c <= 0xff);
        if (c < 0x20 || c == 0x7f)
            return false;
        sl_buf_putc(out, (char)c);
    }
    return sl_buf_ok(out);
}

typedef bool (*take_fn)(struct sl_trace_settings *s, const char *key, const char *value);

/* Gives the pairs of a list to take; false if one of them is none. */
static bool walk_list(struct sl_trace_settings *s, const char *text, take_fn take)
{
    struct sl_buf key = {0}, value = {0};
    size_t n = strlen(text);
    bool ok = n <= MAX_VARIABLE;
    int n_pairs = 0;
    const char *at = text, *end = text + n;
    while (ok && at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma != NULL ? comma : end;
        const char *next = comma != NULL ? comma + 1 : end;
        trim(&at, &stop);
        if (at < stop) { /* an empty member is none */
            const char *equals = memchr(at, '=', (size_t)(stop - at));
            const char *key_end = equals != NULL ? equals : stop;
            const char *from = equals != NULL ? equals + 1 : stop;
            trim(&at, &key_end);
            trim(&from, &stop);
            sl_buf_clear(&key);
            sl_buf_clear(&value);
            ok = equals != NULL && at < key_end && ++n_pairs <= MAX_PAIRS &&
                 settings_unescape(&key, at, key_end) && settings_unescape(&value, from, stop) &&
                 take(s, key.data, value.data != NULL && value.n_bytes > 0 ? value.data : "");
        }
        SL_ASSERT(next > text && next <= end);
        at = next;
    }
    sl_buf_deinit(&key);
    sl_buf_deinit(&value);
    return ok;
}

/* ---- headers */

static void drop_headers(struct sl_trace_settings *s)
{
    while (s->n_headers > 0)
        sl_free(s->headers[--s->n_headers]);
}

static bool take_header(struct sl_trace_settings *s, const char *key, const char *value)
{
    struct sl_buf b = {0};
    SL_ASSERT(s->n_headers >= 0 && s->n_headers <= SL_TRACE_MAX_HEADERS);
    for (const char *p = key; *p != '\0'; p++) {
        bool word =
            (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z');
        if (!word && strchr("!#$%&'*+-.^_`|~", *p) == NULL)
            return false;
    }
    SL_ASSERT(key[0] != '\0' && strpbrk(value, "\r\n") == NULL); /* no header within a header */
    if (s->n_headers == SL_TRACE_MAX_HEADERS)
        return false;
    /* libcurl sends a header without a value only when it is written like this. */
    sl_buf_printf(&b, value[0] != '\0' ? "%s: %s" : "%s;", key, value);
    char *line = sl_buf_steal(&b, NULL);
    if (line == NULL)
        return false;
    s->headers[s->n_headers++] = line;
    return true;
}

/* They may be keys, so that the log does not have them. */
static void read_headers(struct sl_trace_settings *s)
{
    const char *name;
    const char *text =
        settings_either("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS", &name);
    if (text == NULL || walk_list(s, text, take_header))
        return;
    drop_headers(s);
    sl_log(SL_LOG_WARN, "%s: not a list of name=value with commas between them: no header is sent",
           name);
}

/* ---- the resource: what is true of every span */

void sl_trace_put_string(struct sl_buf *b, const char *key, size_t n_key, const char *value,
                         size_t n_value)
{
    if (b->n_bytes > 0 && b->data[b->n_bytes - 1] == '}')
        sl_buf_putc(b, ',');
    sl_buf_puts(b, "{\"key\":");
    sl_buf_json_string(b, key, n_key);
    sl_buf_puts(b, ",\"value\":{\"stringValue\":");
    sl_buf_json_string(b, value, n_value);
    sl_buf_puts(b, "}}");
}

static void settings_put(struct sl_buf *b, const char *key, const char *value)
{
    sl_trace_put_string(b, key, strlen(key), value, strlen(value));
}

/* service.name comes from where it takes precedence. */
static bool take_resource(struct sl_trace_settings *s, const char *key, const char *value)
{
    if (strcmp(key, "service.name") == 0 && sl_environment("OTEL_SERVICE_NAME") != NULL)
        return true;
    settings_put(&s->resource, key, value);
    return sl_buf_ok(&s->resource);
}

static bool has_attribute(const struct sl_buf *b, const char *key)
{
    char text[64];
    snprintf(text, sizeof text, "{\"key\":\"%s\",", key);
    return b->n_bytes > 0 && strstr(b->data, text) != NULL;
}

static int read_resource(struct sl_trace_settings *s, struct sl_error *err)
{
    const char *list = sl_environment("OTEL_RESOURCE_ATTRIBUTES");
    const char *service = sl_environment("OTEL_SERVICE_NAME");
    uint64_t id[2];
    char uuid[40];
    if (list != NULL && !walk_list(s, list, take_resource)) {
        sl_buf_clear(&s->resource);
        sl_log(SL_LOG_WARN, "OTEL_RESOURCE_ATTRIBUTES: not a list of name=value with commas "
                            "between them: none is used");
    }
    SL_ASSERT(s->resource.n_bytes == 0 || s->resource.data[s->resource.n_bytes - 1] == '}');
    if (service != NULL || !has_attribute(&s->resource, "service.name"))
        settings_put(&s->resource, "service.name", service != NULL ? service : "sluice");
    if (!has_attribute(&s->resource, "service.version"))
        settings_put(&s->resource, "service.version", SLUICE_VERSION);
    int rc = sl_random(id, sizeof id, err);
    if (rc != 0)
        return rc;
    snprintf(uuid, sizeof uuid, "%08x-%04x-4%03x-%04x-%012llx", (unsigned)(id[0] >> 32),
             (unsigned)(id[0] >> 16 & 0xffff), (unsigned)(id[0] & 0xfff),
             (unsigned)(id[1] >> 48 & 0x3fff) | 0x8000u,
             (unsigned long long)(id[1] & 0xffffffffffffu));
    if (!has_attribute(&s->resource, "service.instance.id"))
        settings_put(&s->resource, "service.instance.id", uuid);
    settings_put(&s->resource, "telemetry.sdk.name", "sluice");
    settings_put(&s->resource, "telemetry.sdk.language", "c");
    settings_put(&s->resource, "telemetry.sdk.version", SLUICE_VERSION);
    return sl_buf_ok(&s->resource) ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
}

/* ---- where they go */

static int check_url(const char *name, const char *url, struct sl_error *err)
{
    bool secure = strncasecmp(url, "https://", 8) == 0;
    if (!secure && strncasecmp(url, "http://", 7) != 0)
        return sl_fail(err, SL_EINVAL,
                       "%s: '%.80s' is no URL of OTLP over HTTP: http://HOST:4318/" TRACES_PATH
                       " is one (gRPC is not supported)",
                       name, url);
    const char *host = url + (secure ? 8 : 7);
    SL_ASSERT(host[-1] == '/');
    if (host[0] == '\0' || strchr("/:?#", host[0]) != NULL)
        return sl_fail(err, SL_EINVAL, "%s: '%.80s' has no host", name, url);
    if (strlen(url) > MAX_URL)
        return sl_fail(err, SL_EINVAL, "%s: longer than %d bytes", name, MAX_URL);
    for (const char *p = url; *p != '\0'; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f)
            return sl_fail(err, SL_EINVAL, "%s: a space or control character in the URL", name);
    if (strpbrk(host, "/?") == NULL)
        sl_log(SL_LOG_WARN,
               "%s: %s has no path, and none is added: collectors take traces at "
               "/" TRACES_PATH,
               name, url);
    return 0;
}

/* The flag and the variable for traces are whole URLs; the one for all signals is a base. */
static int read_endpoint(struct sl_trace_settings *s, const char *flag, struct sl_error *err)
{
    const char *name = "--otlp-traces-endpoint";
    struct sl_buf b = {0};
    const char *url = flag != NULL ? flag
                                   : settings_either("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                                                     "OTEL_EXPORTER_OTLP_ENDPOINT", &name);
    if (url == NULL)
        return 0;
    sl_buf_puts(&b, url);
    if (strcmp(name, "OTEL_EXPORTER_OTLP_ENDPOINT") == 0)
        sl_buf_puts(&b, sl_ends_with(url, "/") ? TRACES_PATH : "/" TRACES_PATH);
    s->endpoint = sl_buf_steal(&b, NULL);
    if (s->endpoint == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory");
    return check_url(name, s->endpoint, err);
}

static int check_protocol(struct sl_error *err)
{
    const char *name;
    const char *p =
        settings_either("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL", &name);
    /* A collector that takes protobuf over HTTP takes JSON at the same place. */
    if (p == NULL || strcmp(p, "http/json") == 0 || strcmp(p, "http/protobuf") == 0)
        return 0;
    return sl_fail(err, SL_EUNSUPPORTED,
                   "%s: '%.40s' is not supported: OTLP over HTTP is (http/json, port 4318); "
                   "OTEL_TRACES_EXPORTER=none sends no traces",
                   name, p);
}

/* ---- which */

static void read_sampler(struct sl_trace_settings *s)
{
    static const struct {
        const char *name;
        enum sl_trace_sampler sampler;
        bool follow_parent;
    } rows[] = {
        {"parentbased_always_on", SL_SAMPLE_ALL, true}, /* the default */
        {"parentbased_always_off", SL_SAMPLE_NONE, true},
        {"parentbased_traceidratio", SL_SAMPLE_RATIO, true},
        {"always_on", SL_SAMPLE_ALL, false},
        {"always_off", SL_SAMPLE_NONE, false},
        {"traceidratio", SL_SAMPLE_RATIO, false},
    };
    const char *name = sl_environment("OTEL_TRACES_SAMPLER");
    const char *arg = sl_environment("OTEL_TRACES_SAMPLER_ARG");
    size_t row = 0;
    while (name != NULL && row < SL_COUNT(rows) && strcmp(name, rows[row].name) != 0)
        row++;
    if (row == SL_COUNT(rows)) {
        sl_log(SL_LOG_WARN,
               "OTEL_TRACES_SAMPLER: '%.40s' is not known: parentbased_always_on is "
               "used",
               name);
        row = 0;
    }
    SL_ASSERT(row < SL_COUNT(rows));
    s->sampler = rows[row].sampler;
    s->follow_parent = rows[row].follow_parent;
    s->ratio = 1.0;
    if (s->sampler != SL_SAMPLE_RATIO || arg == NULL)
        return;
    double ratio;
    if (sl_parse_double(arg, strlen(arg), &ratio) && ratio >= 0 && ratio <= 1)
        s->ratio = ratio;
    else
        sl_log(SL_LOG_WARN, "OTEL_TRACES_SAMPLER_ARG: '%.40s' is not a number from 0 to 1: using 1",
               arg);
}

/* Is a word among those with commas? */
static bool list_names(const char *list, const char *word)
{
    size_t n_word = strlen(word);
    for (const char *at = list; *at != '\0';) {
        size_t n = strcspn(at, ",");
        const char *from = at, *stop = at + n;
        trim(&from, &stop);
        SL_ASSERT(from <= stop && stop <= at + n);
        if ((size_t)(stop - from) == n_word && memcmp(from, word, n_word) == 0)
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

static bool switched_off(void)
{
    const char *disabled = sl_environment("OTEL_SDK_DISABLED");
    const char *exporter = sl_environment("OTEL_TRACES_EXPORTER");
    if (disabled != NULL && strcasecmp(disabled, "true") == 0)
        return true;
    return exporter != NULL && !list_names(exporter, "otlp");
}

static void settings_read_numbers(struct sl_trace_settings *s)
{
    const char *name, *text;
    text =
        settings_either("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT", &name);
    s->timeout_ms = read_count(name, text, 1, 10000);
    name = "OTEL_BSP_SCHEDULE_DELAY";
    s->delay_ms = read_count(name, sl_environment(name), 0, 5000);
    name = "OTEL_BSP_EXPORT_TIMEOUT";
    s->flush_ms = SL_MIN(read_count(name, sl_environment(name), 0, 30000), MAX_FLUSH_MS);
    name = "OTEL_BSP_MAX_QUEUE_SIZE";
    s->max_queue = SL_MIN(read_count(name, sl_environment(name), 1, 2048), 1 << 20);
    name = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE";
    s->max_batch = SL_MIN(read_count(name, sl_environment(name), 1, 512), s->max_queue);
}

static void read_files(struct sl_trace_settings *s)
{
    const char *name;
    s->ca_file = settings_either("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
                                 "OTEL_EXPORTER_OTLP_CERTIFICATE", &name);
    if (s->ca_file == NULL)
        s->ca_file = sl_environment("SSL_CERT_FILE");
    s->cert_file = settings_either("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
                                   "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &name);
    s->key_file = settings_either("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
                                  "OTEL_EXPORTER_OTLP_CLIENT_KEY", &name);
}

int sl_trace_settings_read(struct sl_trace_settings *s, const char *endpoint, struct sl_error *err)
{
    const char *propagators = sl_environment("OTEL_PROPAGATORS");
    *s = (struct sl_trace_settings){0};
    if (switched_off()) {
        if (endpoint != NULL)
            sl_log(SL_LOG_WARN, "--otlp-traces-endpoint: the environment switches traces off "
                                "(OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER)");
        return 0;
    }
    int rc = read_endpoint(s, endpoint, err);
    if (rc != 0 || s->endpoint == NULL)
        return rc;
    rc = check_protocol(err);
    if (rc != 0)
        return rc;
    read_headers(s);
    settings_read_numbers(s);
    read_files(s);
    read_sampler(s);
    s->propagate = propagators == NULL || list_names(propagators, "tracecontext");
    SL_ASSERT(s->max_batch <= s->max_queue && s->ratio >= 0 && s->ratio <= 1);
    rc = read_resource(s, err);
    s->enabled = rc == 0;
    return rc;
}

void sl_trace_settings_deinit(struct sl_trace_settings *s)
{
    sl_free(s->endpoint);
    drop_headers(s);
    sl_buf_deinit(&s->resource);
    *s = (struct sl_trace_settings){0};
}
