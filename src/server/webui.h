/* SPDX-License-Identifier: MIT
 * webui.h - the page at "/": three files that the binary carries (assets/web). They hold nothing
 * secret, so they need no key; what the page shows it asks for with one.
 */
#ifndef SL_SERVER_WEBUI_H
#define SL_SERVER_WEBUI_H

#include "server/route.h"

/* Routes that exist for the page alone: gone with --no-webui, and never for other sites (CORS). */
bool sl_webui_owns(const struct sl_route *route);

#endif
