/* SPDX-License-Identifier: MIT */
#include "cpu/backend.h"

#include "base/check.h"
#include "base/str.h"

#include <cpuid.h>
#include <string.h>

static const char *const names[] = {
    [SL_ISA_AUTO] = "auto", [SL_ISA_C] = "c", [SL_ISA_AVX2] = "avx2", [SL_ISA_AVX512] = "avx512"};

const char *sl_cpu_isa_name(enum sl_cpu_isa isa)
{
    return names[isa];
}

static bool has_f16c(void) /* which not every compiler's builtin knows */
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

enum sl_cpu_isa sl_cpu_isa_best(void)
{
    /* These builtins also ask the operating system whether it saves the wide registers. */
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return SL_ISA_C;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return SL_ISA_AVX2;
    return SL_ISA_AVX512;
}

int sl_cpu_isa_parse(const char *name, enum sl_cpu_isa *out, struct sl_error *err)
{
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        if (strcmp(name, names[i]) != 0)
            continue;
        if ((enum sl_cpu_isa)i > sl_cpu_isa_best())
            return sl_fail(err, SL_EUNSUPPORTED, "cpu isa %s: this processor has up to %s", name,
                           names[sl_cpu_isa_best()]);
        *out = (enum sl_cpu_isa)i;
        return 0;
    }
    const char *near = sl_nearest(name, names, SL_COUNT(names));
    return sl_fail(err, SL_EINVAL, "cpu isa %.20s: not one of auto, c, avx2, avx512%s%s%s", name,
                   near != NULL ? " (did you mean " : "", near != NULL ? near : "",
                   near != NULL ? "?)" : "");
}
