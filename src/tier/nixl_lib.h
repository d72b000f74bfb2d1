/* SPDX-License-Identifier: MIT
 * nixl_lib.h - NVIDIA's NIXL through its C interface (libnixl_capi.so), loaded when pages are to be
 * carried by it.
 *
 * It is not linked: with its back ends it is more than 200 MB, and comes as a Python package
 * (nixl-cu12, nixl-cu13), whose files lie beside one another. There is no header in it and no
 * version; the declarations are those of 1.5.1. A library without one of the calls is refused.
 */
#ifndef SL_TIER_NIXL_LIB_H
#define SL_TIER_NIXL_LIB_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a call returns; below 0: it failed. */
enum { SL_NIXL_OK = 0, SL_NIXL_UNDER_WAY = 1 };
enum { SL_NIXL_DRAM = 0 }; /* kind of memory */
enum { SL_NIXL_READ = 0 }; /* from another agent's memory into this one's */

struct sl_nixl_agent_config {
    bool progress_thread, listen_thread;
    int listen_port;
    int thread_sync; /* 0: all calls come from one thread */
    unsigned n_workers;
    uint64_t progress_delay_us, listen_delay_us;
    bool telemetry;
};

/* Objects of the library. */
typedef void *sl_nixl_obj;

#define SL_NIXL_CALLS(X)                                                                \
    X(create_configured_agent, const char *name, const struct sl_nixl_agent_config *,   \
      sl_nixl_obj *agent)                                                               \
    X(destroy_agent, sl_nixl_obj agent)                                                 \
    X(get_plugin_params, sl_nixl_obj agent, const char *plugin, sl_nixl_obj *mems,      \
      sl_nixl_obj *params)                                                              \
    X(destroy_mem_list, sl_nixl_obj mems)                                               \
    X(destroy_params, sl_nixl_obj params)                                               \
    X(create_backend, sl_nixl_obj agent, const char *plugin, sl_nixl_obj params,        \
      sl_nixl_obj *backend)                                                             \
    X(destroy_backend, sl_nixl_obj backend)                                             \
    X(create_opt_args, sl_nixl_obj *args)                                               \
    X(destroy_opt_args, sl_nixl_obj args)                                               \
    X(opt_args_add_backend, sl_nixl_obj args, sl_nixl_obj backend)                      \
    X(create_reg_dlist, int kind, sl_nixl_obj *list)                                    \
    X(destroy_reg_dlist, sl_nixl_obj list)                                              \
    X(reg_dlist_add_desc, sl_nixl_obj list, uintptr_t addr, size_t n, uint64_t device,  \
      const void *meta, size_t n_meta)                                                  \
    X(register_mem, sl_nixl_obj agent, sl_nixl_obj list, sl_nixl_obj args)              \
    X(deregister_mem, sl_nixl_obj agent, sl_nixl_obj list, sl_nixl_obj args)            \
    X(get_local_md, sl_nixl_obj agent, void **data, size_t *n)                          \
    X(load_remote_md, sl_nixl_obj agent, const void *data, size_t n, char **name)       \
    X(invalidate_remote_md, sl_nixl_obj agent, const char *name)                        \
    X(create_xfer_dlist, int kind, sl_nixl_obj *list)                                   \
    X(destroy_xfer_dlist, sl_nixl_obj list)                                             \
    X(xfer_dlist_add_desc, sl_nixl_obj list, uintptr_t addr, size_t n, uint64_t device) \
    X(create_xfer_req, sl_nixl_obj agent, int op, sl_nixl_obj to, sl_nixl_obj from,     \
      const char *remote, sl_nixl_obj *req, sl_nixl_obj args)                           \
    X(post_xfer_req, sl_nixl_obj agent, sl_nixl_obj req, sl_nixl_obj args)              \
    X(get_xfer_status, sl_nixl_obj agent, sl_nixl_obj req)                              \
    X(release_xfer_req, sl_nixl_obj agent, sl_nixl_obj req)                             \
    X(destroy_xfer_req, sl_nixl_obj req)                                                \
    X(create_notif_map, sl_nixl_obj *map)                                               \
    X(destroy_notif_map, sl_nixl_obj map)                                               \
    X(get_notifs, sl_nixl_obj agent, sl_nixl_obj map, sl_nixl_obj args)

struct sl_nixl_lib {
#define SL_X(name, ...) int (*name)(__VA_ARGS__);
    SL_NIXL_CALLS(SL_X)
#undef SL_X
    void (*release)(void *p); /* what get_local_md and load_remote_md hand out */
};

/* Loaded once and kept; any thread. SL_EUNSUPPORTED says where it was looked for, and what to
 * install. SLUICE_NIXL is the file or its folder; else it is beside NIXL_PLUGIN_DIR, where the
 * system finds libraries, or in a folder of Python packages. */
SL_MUST_CHECK int sl_nixl_load(const struct sl_nixl_lib **out, struct sl_error *err);

#endif
