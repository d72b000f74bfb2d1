/* SPDX-License-Identifier: MIT
 * config_check.c - what can be refused of a server's configuration before a model is loaded.
 *
 * Files and folders are opened and closed again: the server opens them for good when it starts.
 */
#include "server/api/request_log.h"
#include "server/formats.h"
#include "server/http/listen.h"
#include "server/jobs/file_store.h"
#include "server/server.h"

static int check_request_log(const struct sl_server_config *cfg, struct sl_error *err)
{
    int fd = -1;
    int rc = sl_request_log_open(cfg->request_log, &fd, err);
    sl_request_log_close(fd);
    return rc;
}

static int check_file_storage(const struct sl_server_config *cfg, struct sl_error *err)
{
    struct sl_file_store *store = NULL;
    if (cfg->file_storage == NULL)
        return 0;
    int rc = sl_file_store_open(cfg->file_storage, cfg->max_file_bytes, &store, err);
    sl_file_store_close(store);
    return rc;
}

int sl_server_config_check(const struct sl_server_config *cfg, struct sl_error *err)
{
    if (cfg->replicas && (cfg->lora_updates || cfg->weight_updates))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "data_parallel_size: adapters and weights cannot be changed while several "
                       "replicas serve (--allow-runtime-lora-updating, --allow-weight-updates)");
    int rc = sl_formats_check(cfg->tool_call_parser, cfg->reasoning_parser, err);
    if (rc == 0)
        rc = check_request_log(cfg, err);
    if (rc == 0)
        rc = check_file_storage(cfg, err);
    if (rc == 0 && cfg->port_file != NULL)
        rc = sl_listen_check_port_file(cfg->port_file, err);
    return rc;
}
