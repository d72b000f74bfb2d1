/* SPDX-License-Identifier: MIT
 * sim_fiber.cc - stacks and the switch between them, told to AddressSanitizer where it looks at
 * stacks: it takes longer to hear of a switch than the switch does.
 */
#include "sim_internal.h"

#include <cerrno>
#include <cstring>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef SL_SIM_BARE_STACKS /* kernels are compiled without guards around local arrays */
#define TELLS_STACKS false
#else
#define TELLS_STACKS (__sanitizer_start_switch_fiber != nullptr)
#endif

#if !defined(__x86_64__)
#error "the simulator's context switch is written for x86-64"
#endif

/* Saves what the ABI lets a callee keep, swaps the stack pointer, restores. */
extern "C" void sim_swap(void **save, void *load);
asm(".text\n"
    ".p2align 4\n"
    ".globl sim_swap\n"
    ".type sim_swap, @function\n"
    "sim_swap:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size sim_swap, .-sim_swap\n");

void sim_fiber_host(sim_fiber *f)
{
    pthread_attr_t attr;
    void *low = nullptr;
    size_t size = 0;
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstack(&attr, &low, &size);
    pthread_attr_destroy(&attr);
    f->stack = static_cast<char *>(low);
    f->stack_size = size;
}

/* Stacks that no thread has. They are not a block's: Linux lets a process have some 65,000
 * mappings, a stack is two, and each of the blocks that ranks ever had under way may once have had
 * 1,024 threads. */
static std::vector<char *> &spare_stacks = *new std::vector<char *>();

static char *new_stack()
{
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *m = mmap(nullptr, SIM_STACK_SIZE + page, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (m == MAP_FAILED || mprotect(m, page, PROT_NONE))
        sim_fail("no memory for the stack of a thread: %s", strerror(errno));
    return static_cast<char *>(m) + page;
}

void sim_fiber_make(sim_fiber *f, void (*entry)())
{
    if (spare_stacks.empty()) {
        f->stack = new_stack();
    } else {
        f->stack = spare_stacks.back();
        spare_stacks.pop_back();
    }
    f->stack_size = SIM_STACK_SIZE;
    /* Stacks a power of two apart would all use the same few lines of the cache. */
    size_t colour = reinterpret_cast<uintptr_t>(f->stack) / SIM_STACK_SIZE % 16 * 1088;
    void **sp = reinterpret_cast<void **>(f->stack + f->stack_size - colour);
    *--sp = nullptr; /* entry's return address, so that its frame is aligned as after a call */
    *--sp = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++)
        *--sp = nullptr;
    f->sp = sp;
    f->fake = nullptr;
}

void sim_fiber_free(sim_fiber *f)
{
    spare_stacks.push_back(f->stack);
    f->stack = nullptr;
}

void sim_fiber_switch(sim_fiber *from, sim_fiber *to, bool from_ends)
{
    if (TELLS_STACKS)
        __sanitizer_start_switch_fiber(from_ends ? nullptr : &from->fake, to->stack,
                                       to->stack_size);
    sim_swap(&from->sp, to->sp);
    if (TELLS_STACKS)
        __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
}

void sim_fiber_entered()
{
    if (TELLS_STACKS)
        __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
}
