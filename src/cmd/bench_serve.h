/* SPDX-License-Identifier: MIT
 * bench_serve.h - `sluice bench serve`: a load generator for OpenAI-compatible servers.
 */
#ifndef SL_CMD_BENCH_SERVE_H
#define SL_CMD_BENCH_SERVE_H

/* argv[0] is "serve"; returns the exit status. */
int sl_bench_serve(int argc, char **argv);

#endif
