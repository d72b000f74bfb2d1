/* SPDX-License-Identifier: MIT
 * The host's wait for a step.
 *
 * A thread that sleeps until the driver wakes it comes back some 50 us after the step is over. With
 * another step behind it that costs nothing. Where there is none the device stands still meanwhile:
 * twice for each step with drafts, behind it and behind the pass that makes the next ones. There
 * the thread sleeps by the clock until shortly before steps of that kind were over lately, and then
 * looks for a moment.
 */
#include "cuda/step/step.h"

#include <time.h>

#define EARLY_NS 200000u /* what a sleep may take longer than asked for, and a step shorter */
#define LOOK_NS  400000u /* then the driver is asked to wake us after all */
#define GROWS_NS 50000u  /* and an eighth: what a step may have taken longer than the one before */

int32_t sl_cuda_wait_kind(const struct sl_step *step)
{
    int32_t size = 0;
    while (size < SL_CUDA_SIZES - 1 && step->batch.n_tokens >> (size + 1) > 0)
        size++;
    return step->drafts ? SL_CUDA_SIZES + SL_MIN(step->n_again, SL_CUDA_WAITS - SL_CUDA_SIZES - 1)
                        : size;
}

static void sleep_until(uint64_t ns)
{
    const uint64_t now = sl_now_ns();
    if (now >= ns)
        return;
    struct timespec t = {};
    t.tv_sec = static_cast<time_t>((ns - now) / 1000000000u);
    t.tv_nsec = static_cast<long>((ns - now) % 1000000000u);
    nanosleep(&t, NULL); /* an early end only means more looks */
}

/* Is it over before long? At once: it was before the first look. */
static bool look(struct sl_cuda *cu, const struct sl_cuda_slot *slot, bool *at_once)
{
    const uint64_t end = sl_now_ns() + LOOK_NS;
    cudaError_t e = cudaEventQuery(slot->done);
    *at_once = e != cudaErrorNotReady;
    while (e == cudaErrorNotReady && sl_now_ns() < end)
        e = cudaEventQuery(slot->done);
    if (e != cudaErrorNotReady)
        sl_cuda_check(cu, e, "cudaEventQuery");
    return e != cudaErrorNotReady;
}

void sl_cuda_await(struct sl_cuda *cu, struct sl_cuda_steps *s, struct sl_cuda_slot *slot)
{
    const bool last = slot->ticket == s->n_steps;
    uint64_t *took = &s->took_ns[slot->kind];
    SL_ASSERT(slot->ticket != 0 && slot->kind >= 0 && slot->kind < SL_CUDA_WAITS);
    bool over = false, at_once = false;
    if (last && slot->alone) {
        sleep_until(slot->sent_ns + *took - SL_MIN(*took, (uint64_t)EARLY_NS));
        over = look(cu, slot, &at_once);
    }
    if (!over)
        sl_cuda_check(cu, cudaEventSynchronize(slot->done), "cudaEventSynchronize");
    slot->waited = true;
    if (!last || !slot->alone)
        return;
    /* It grows slowly: one step may have been recorded, or the thread had no processor. */
    const uint64_t ns = sl_now_ns() - slot->sent_ns;
    *took = at_once ? *took / 2 : SL_MIN(ns, *took + *took / 8 + GROWS_NS);
}
