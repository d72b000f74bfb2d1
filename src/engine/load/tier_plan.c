/* SPDX-License-Identifier: MIT */
#include "engine/load/tier_plan.h"

#include "base/check.h"
#include "base/fs.h"
#include "base/sys.h"
#include "tier/remote.h"

#include <jansson.h>
#include <string.h>

#define GIB                 1073741824.0
#define DEFAULT_DISK        16.0 /* GiB of a folder */
#define DEFAULT_HOST        1.0  /* of host memory in front of it, or of a remote store */
#define DEFAULT_PAIR        4.0  /* of host memory between servers, or less: */
#define PAIR_RAM            8    /* this part of the machine's */
#define DEFAULT_TIMEOUT_MS  100
#define DEFAULT_STORE_AFTER 1
#define DEFAULT_TTL_S       86400
#define DEFAULT_TRACKER     64000 /* blocks whose requests are counted, as in vLLM */
#define MAX_THRESHOLD       1000000

/* What a key may say: only this, or anything that makes no difference here. */
struct tier_key {
    const char *name, *only;
};

static const struct tier_key transfer_keys[] = {
    {"kv_connector", NULL},
    {"kv_role", NULL},
    {"kv_load_failure_policy", "recompute"},
    {"engine_id", NULL},
    {"kv_connector_extra_config", NULL},
};

/* What --kv-transfer-config may ask for. */
struct tier_role {
    const char *connector, *role;
    bool serves, asks;
};

static const struct tier_role roles[] = {
    {"OffloadingConnector", "kv_both", false, false},
    {"NixlConnector", "kv_producer", true, false},
    {"NixlConnector", "kv_consumer", false, true},
    {"NixlConnector", "kv_both", true, true},
};

static const struct tier_key extra_keys[] = {
    {"spec_name", "CPUOffloadingSpec"}, {"eviction_policy", NULL},  {"cpu_bytes_to_use", NULL},
    {"store_threshold", NULL},          {"max_tracker_size", NULL}, {"backends", NULL},
};

static int check_keys(const json_t *o, const struct tier_key *keys, size_t n_keys,
                      struct sl_error *err)
{
    const char *key;
    json_t *v;
    SL_ASSERT(json_is_object(o) && n_keys > 0);
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        size_t i = 0;
        while (i < n_keys && strcmp(keys[i].name, key) != 0)
            i++;
        if (i == n_keys)
            return sl_fail(err, SL_EUNSUPPORTED, "kv-transfer-config: %.40s is not known", key);
        const char *text = json_string_value(v);
        if (keys[i].only != NULL && (text == NULL || strcmp(text, keys[i].only) != 0))
            return sl_fail(err, SL_EUNSUPPORTED, "kv-transfer-config: %s must be \"%s\"", key,
                           keys[i].only);
    }
    return 0;
}

static int read_role(const json_t *o, struct sl_tier_plan *out, struct sl_error *err)
{
    const char *connector = json_string_value(json_object_get(o, "kv_connector"));
    const char *role = json_string_value(json_object_get(o, "kv_role"));
    bool known = false;
    SL_ASSERT(json_is_object(o));
    if (json_object_get(o, "kv_connector") == NULL)
        return sl_fail(err, SL_EINVAL, "kv-transfer-config: kv_connector is missing");
    if (json_object_get(o, "kv_role") == NULL)
        role = "kv_both";
    for (size_t i = 0; i < SL_COUNT(roles) && connector != NULL && role != NULL; i++) {
        known |= strcmp(roles[i].connector, connector) == 0;
        if (strcmp(roles[i].connector, connector) != 0 || strcmp(roles[i].role, role) != 0)
            continue;
        out->serves |= roles[i].serves;
        out->asks |= roles[i].asks;
        return 0;
    }
    return known ? sl_fail(err, SL_EUNSUPPORTED,
                           "kv-transfer-config: kv_role must be \"kv_both\", or kv_producer or "
                           "kv_consumer of a NixlConnector")
                 : sl_fail(err, SL_EUNSUPPORTED,
                           "kv-transfer-config: kv_connector must be \"OffloadingConnector\" or "
                           "\"NixlConnector\"");
}

/* A number of the extra configuration that counts something; *out stays if it is not there. */
static int read_count(const json_t *extra, const char *key, int32_t least, int32_t most,
                      int32_t *out, struct sl_error *err)
{
    const json_t *n = json_object_get(extra, key);
    if (n == NULL)
        return 0;
    if (!json_is_integer(n) || json_integer_value(n) < least || json_integer_value(n) > most)
        return sl_fail(err, SL_EINVAL,
                       "kv-transfer-config: %s must be a whole number between %d and %d", key,
                       (int)least, (int)most);
    *out = (int32_t)json_integer_value(n);
    return 0;
}

/* Which pages are kept: vLLM's eviction_policy, store_threshold and max_tracker_size. */
static int read_policy(const json_t *extra, struct sl_tier_plan *out, struct sl_error *err)
{
    const json_t *v = json_object_get(extra, "eviction_policy");
    const char *policy = v != NULL ? json_string_value(v) : "lru";
    SL_ASSERT(json_is_object(extra));
    out->arc = policy != NULL && strcmp(policy, "arc") == 0;
    if (policy == NULL || (!out->arc && strcmp(policy, "lru") != 0))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "kv-transfer-config: eviction_policy must be \"lru\" or \"arc\"");
    int rc = read_count(extra, "store_threshold", 0, MAX_THRESHOLD, &out->store_threshold, err);
    if (rc == 0)
        rc = read_count(extra, "max_tracker_size", 1, SL_MAX_TIER_PAGES, &out->max_tracker_size,
                        err);
    return rc;
}

/* "backends": ["UCX"] of a NixlConnector: as vLLM has it, but without it TCP carries pages. */
static int read_backends(const json_t *list, struct sl_tier_plan *out, struct sl_error *err)
{
    const char *name = json_string_value(json_array_get(list, 0));
    if (list == NULL)
        return 0;
    if (json_array_size(list) != 1 || name == NULL || strcmp(name, "UCX") != 0)
        return sl_fail(err, SL_EUNSUPPORTED, "kv-transfer-config: backends must be [\"UCX\"]");
    if (!out->serves && !out->asks)
        return sl_fail(err, SL_EINVAL, "kv-transfer-config: backends are those of a NixlConnector");
    out->nixl = "UCX";
    return 0;
}

/* {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config":
 * {"cpu_bytes_to_use": 8000000000}}, as vLLM has it. */
static int read_transfer(const json_t *o, struct sl_tier_plan *out, struct sl_error *err)
{
    const json_t *extra = json_object_get(o, "kv_connector_extra_config");
    int rc = check_keys(o, transfer_keys, SL_COUNT(transfer_keys), err);
    if (rc == 0)
        rc = read_role(o, out, err);
    if (rc != 0)
        return rc;
    if (extra == NULL || json_is_null(extra))
        return 0;
    if (!json_is_object(extra))
        return sl_fail(err, SL_EINVAL,
                       "kv-transfer-config: kv_connector_extra_config must be an object");
    rc = check_keys(extra, extra_keys, SL_COUNT(extra_keys), err);
    if (rc == 0)
        rc = read_policy(extra, out, err);
    if (rc == 0)
        rc = read_backends(json_object_get(extra, "backends"), out, err);
    const json_t *n = json_object_get(extra, "cpu_bytes_to_use");
    if (rc != 0 || n == NULL)
        return rc;
    if (!json_is_number(n) || !(json_number_value(n) >= 1 && json_number_value(n) <= 0x1p50))
        return sl_fail(err, SL_EINVAL,
                       "kv-transfer-config: cpu_bytes_to_use must be a number of bytes");
    out->host_bytes = (uint64_t)json_number_value(n);
    return 0;
}

static int parse_transfer(const char *text, struct sl_tier_plan *out, struct sl_error *err)
{
    json_error_t je;
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &je);
    int rc = 0;
    if (!json_is_object(o))
        rc = sl_fail(err, SL_EINVAL, "kv-transfer-config: %s",
                     o == NULL ? je.text : "it must be an object");
    if (rc == 0)
        rc = read_transfer(o, out, err);
    json_decref(o);
    return rc;
}

static int check_size(const char *name, float gib, struct sl_error *err)
{
    if (gib >= 0 && gib <= 1048576)
        return 0;
    return sl_fail(err, SL_EINVAL, "%s: %g is not between 0 and 1048576 GiB", name, (double)gib);
}

/* Redis' own tools take the password from the same variable, so that no command line shows it. */
static int plan_remote(const struct sl_engine_config *cfg, struct sl_tier_plan *out,
                       struct sl_error *err)
{
    const struct sl_remote_kind *kind;
    const char *load = cfg->kv_remote_load;
    const int32_t ttl = cfg->kv_remote_ttl_s;
    if (cfg->kv_remote_url == NULL) {
        if (cfg->kv_remote_timeout_ms == 0 && cfg->kv_remote_store_after == 0 && ttl == 0 &&
            load == NULL)
            return 0;
        return sl_fail(err, SL_EINVAL,
                       "kv-remote-load, kv-remote-timeout, kv-remote-store-after, kv-remote-ttl: "
                       "they need --kv-remote-url");
    }
    out->always_load = load != NULL && strcmp(load, "always") == 0;
    if (load != NULL && !out->always_load && strcmp(load, "auto") != 0)
        return sl_fail(err, SL_EINVAL, "kv-remote-load: '%.20s' is not one of: auto, always", load);
    if (cfg->kv_remote_timeout_ms < 0 || cfg->kv_remote_store_after < 0 || ttl < -1)
        return sl_fail(err, SL_EINVAL,
                       "kv-remote-timeout, kv-remote-store-after, kv-remote-ttl: less than 0");
    out->remote_url = cfg->kv_remote_url;
    out->remote_password = sl_environment("REDISCLI_AUTH");
    out->remote_timeout_ms =
        (uint32_t)(cfg->kv_remote_timeout_ms > 0 ? cfg->kv_remote_timeout_ms : DEFAULT_TIMEOUT_MS);
    out->remote_store_after = (uint32_t)(cfg->kv_remote_store_after > 0 ? cfg->kv_remote_store_after
                                                                        : DEFAULT_STORE_AFTER);
    SL_ASSERT(out->remote_timeout_ms > 0 && out->remote_store_after > 0);
    out->remote_ttl_s = ttl > 0 ? (uint32_t)ttl : ttl == 0 ? DEFAULT_TTL_S : 0;
    return sl_remote_find(cfg->kv_remote_url, &kind, err);
}

static int read_coding(const char *text, enum sl_coding *out, struct sl_error *err)
{
    static const char *const names[] = {
        [SL_CODING_NONE] = "none", [SL_CODING_AUTO] = "auto", [SL_CODING_ALWAYS] = "always"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        if (strcmp(text, names[i]) != 0)
            continue;
        *out = (enum sl_coding)i;
        return 0;
    }
    return sl_fail(err, SL_EINVAL, "kv-cache-coding: '%.20s' is not one of: auto, always, none",
                   text);
}

static int plan_disk(const struct sl_engine_config *cfg, struct sl_tier_plan *out,
                     struct sl_error *err)
{
    SL_ASSERT(out->dir == NULL && out->disk_bytes == 0);
    if (cfg->kv_cache_dir == NULL)
        return cfg->kv_cache_coding == NULL
                   ? 0
                   : sl_fail(err, SL_EINVAL, "kv-cache-coding: it needs --kv-cache-dir");
    const float gib = cfg->kv_cache_disk_size;
    out->dir = cfg->kv_cache_dir;
    out->disk_bytes = (uint64_t)((gib > 0 ? (double)gib : DEFAULT_DISK) * GIB);
    return read_coding(cfg->kv_cache_coding != NULL ? cfg->kv_cache_coding : "auto", &out->coding,
                       err);
}

/* Prefill and decode in servers of their own. */
static int read_mode(const struct sl_engine_config *cfg, struct sl_tier_plan *out,
                     struct sl_error *err)
{
    const char *mode = cfg->disaggregation_mode != NULL ? cfg->disaggregation_mode : "null";
    const bool both = strcmp(mode, "both") == 0;
    if (!both && strcmp(mode, "null") != 0 && strcmp(mode, "prefill") != 0 &&
        strcmp(mode, "decode") != 0)
        return sl_fail(err, SL_EINVAL,
                       "disaggregation-mode: '%.20s' is not null, prefill, decode or both", mode);
    out->serves |= both || strcmp(mode, "prefill") == 0;
    out->asks |= both || strcmp(mode, "decode") == 0;
    int rc = sl_netlist_read(cfg->kv_transfer_peers, "kv-transfer-peers", &out->peers, err);
    if (rc == 0 && !out->serves && !out->asks &&
        (cfg->kv_transfer_peers != NULL || cfg->kv_transfer_host != NULL))
        rc = sl_fail(err, SL_EINVAL,
                     "kv-transfer-peers, kv-transfer-host: they need --disaggregation-mode");
    return rc;
}

int sl_tier_plan_read(const struct sl_engine_config *cfg, struct sl_tier_plan *out,
                      struct sl_error *err)
{
    *out = (struct sl_tier_plan){.max_tracker_size = DEFAULT_TRACKER};
    int rc = check_size("kv-offloading-size", cfg->kv_offloading_size, err);
    if (rc == 0)
        rc = check_size("kv-cache-disk-size", cfg->kv_cache_disk_size, err);
    if (rc == 0 && cfg->kv_offloading_backend != NULL &&
        strcmp(cfg->kv_offloading_backend, "native") != 0)
        rc = sl_fail(err, SL_EUNSUPPORTED, "kv-offloading-backend: '%.20s' is not one of: native",
                     cfg->kv_offloading_backend);
    if (rc == 0 && cfg->kv_cache_disk_size > 0 && cfg->kv_cache_dir == NULL)
        rc = sl_fail(err, SL_EINVAL, "kv-cache-disk-size: it needs --kv-cache-dir");
    if (rc == 0 && cfg->kv_transfer_config != NULL)
        rc = parse_transfer(cfg->kv_transfer_config, out, err);
    if (rc == 0)
        rc = read_mode(cfg, out, err);
    if (rc == 0 && out->serves && out->store_threshold > 1)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "kv-transfer-config: store_threshold: other servers read every prompt's pages "
                     "from the store");
    if (rc != 0)
        return rc;
    if (cfg->kv_offloading_size > 0)
        out->host_bytes = (uint64_t)((double)cfg->kv_offloading_size * GIB);
    if ((out->serves || out->asks) && out->host_bytes == 0) {
        const uint64_t ram = sl_ram_bytes() / PAIR_RAM;
        out->host_bytes = (uint64_t)(DEFAULT_PAIR * GIB);
        if (ram > 0)
            out->host_bytes = SL_MIN(out->host_bytes, ram);
    }
    if (cfg->kv_transfer_config != NULL && out->host_bytes == 0)
        return sl_fail(err, SL_EINVAL,
                       "kv-transfer-config: cpu_bytes_to_use, or --kv-offloading-size, must say "
                       "how much memory to use");
    rc = plan_disk(cfg, out, err);
    if (rc == 0)
        rc = plan_remote(cfg, out, err);
    if (rc == 0 && (out->dir != NULL || out->remote_url != NULL) && out->host_bytes == 0)
        out->host_bytes = (uint64_t)(DEFAULT_HOST * GIB);
    return rc;
}
