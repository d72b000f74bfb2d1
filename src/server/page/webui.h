/* SPDX-License-Identifier: MIT
 * webui.h - the page at "/": three files that the binary carries (assets/web). They hold nothing
 * secret, so they need no key; what the page shows it asks for with one.
 */
#ifndef SL_SERVER_WEBUI_H
#define SL_SERVER_WEBUI_H

#include "server/http/route.h"

/* Routes that exist for the page alone, and never for other sites (CORS). */
bool sl_webui_owns(const struct sl_route *route);
/* Is the route gone with --no-webui? "/" stays, without the page: clients of Ollama ask there. */
bool sl_webui_hides(const struct sl_server_config *cfg, const struct sl_route *route);

#endif
