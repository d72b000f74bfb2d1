/* SPDX-License-Identifier: MIT */
#include "cpu/backend.h"

#include "base/check.h"
#include "base/str.h"

#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const names[] = {
    [SL_ISA_AUTO] = "auto",
    [SL_ISA_C] = "c",
    [SL_ISA_AVX2] = "avx2",
    [SL_ISA_AVX512] = "avx512",
    [SL_ISA_AVX512_VNNI] = "avx512-vnni",
    [SL_ISA_AVX512_BF16] = "avx512-bf16",
    [SL_ISA_AMX] = "amx",
};

const char *sl_cpu_isa_name(enum sl_cpu_isa isa)
{
    return names[isa];
}

/* Bits of cpuid that not every compiler's builtin knows. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static bool has_vnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & (1u << 11)) != 0;
}

static bool has_bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5)) != 0;
}

/* Tiles have 8 KiB of state, which Linux saves only for a process that asked; the threads started
 * afterwards inherit the permission. */
static bool has_amx(void)
{
    enum { REQ_XCOMP_PERM = 0x1023, XTILE_DATA = 18 };
    const unsigned need = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & need) == need &&
           syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILE_DATA) == 0;
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
    if (!has_vnni())
        return SL_ISA_AVX512;
    if (!has_bf16())
        return SL_ISA_AVX512_VNNI;
    return has_amx() ? SL_ISA_AMX : SL_ISA_AVX512_BF16;
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
    return sl_fail(err, SL_EINVAL,
                   "cpu isa %.20s: not one of auto, c, avx2, avx512, avx512-vnni, avx512-bf16, "
                   "amx%s%s%s",
                   name, near != NULL ? " (did you mean " : "", near != NULL ? near : "",
                   near != NULL ? "?)" : "");
}
