/* SPDX-License-Identifier: MIT
 * doctor.c - `sluice doctor`: what this machine has, what its memory and links reach, and what is
 * wrong with it.
 */
#include "base/check.h"
#include "base/sys.h"
#include "cmd/flags.h"
#include "machine/machine.h"
#include "machine/nvml.h"

#include <stddef.h>
#include <unistd.h>

struct doctor_options {
    bool json, no_measure;
};

static const struct sl_flag doctor_flags[] = {
    {SL_FLAG_SWITCH_OFF, 0, "measure", NULL, offsetof(struct doctor_options, no_measure), 0, 0,
     NULL, "do not measure memory and links, which takes some seconds"},
    {SL_FLAG_SWITCH, 0, "json", NULL, offsetof(struct doctor_options, json), 0, 0, NULL,
     "print JSON"},
};

static void examine(struct sl_machine *m, bool measure)
{
    struct sl_nvml nvml;
    sl_machine_host(m, "");
    if (sl_nvml_open(&nvml)) {
        sl_machine_gpus(m, &nvml, "");
        sl_nvml_close(&nvml);
    }
    sl_machine_served(m);
    if (measure)
        sl_machine_measure(m);
    sl_machine_judge(m, "");
}

static bool is_bad(const struct sl_machine *m)
{
    for (int32_t i = 0; i < m->n_findings; i++)
        if (m->findings[i].bad)
            return true;
    return false;
}

static int doctor_main(int argc, char **argv)
{
    struct doctor_options opt = {0};
    struct sl_error err = {0};
    struct sl_flag_group groups[] = {{doctor_flags, SL_COUNT(doctor_flags), &opt, 0}};
    int n_positional;
    int rc = sl_flags_parse(&sl_cmd_doctor, groups, SL_COUNT(groups), argc, argv, NULL, 0,
                            &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    struct sl_machine *m = rc == 0 ? sl_calloc(1, sizeof *m) : NULL;
    struct sl_buf b = {0};
    if (rc == 0 && m == NULL)
        rc = sl_fail(&err, SL_ENOMEM, "out of memory for the report");
    if (rc == 0) {
        examine(m, !opt.no_measure);
        if (opt.json)
            sl_machine_json(m, &b);
        else
            sl_machine_text(m, &b);
        rc = sl_buf_ok(&b) ? sl_write_all(STDOUT_FILENO, b.data, b.n_bytes, &err)
                           : sl_fail(&err, SL_ENOMEM, "out of memory for the report");
    }
    const bool bad = rc == 0 && is_bad(m);
    sl_buf_deinit(&b);
    sl_free(m);
    if (rc != 0)
        return sl_command_fail(&sl_cmd_doctor, &err);
    return bad ? SL_EXIT_FAILED : SL_EXIT_OK;
}

const struct sl_command sl_cmd_doctor = {
    .name = "doctor",
    .usage = "[FLAGS]",
    .summary = "show this machine's processors, GPUs, links and their rates, and problems",
    .examples = "  sluice doctor                 facts, measured rates, problems\n"
                "  sluice doctor --no-measure    the same without the measuring\n"
                "  sluice doctor --json | jq '.findings[] | select(.problem)'\n",
    .details = "Exit status 1: a problem was found. Nothing is changed; clocks and settings stay "
               "as they are.\n",
    .run = doctor_main,
};
