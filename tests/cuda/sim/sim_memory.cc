/* SPDX-License-Identifier: MIT
 * sim_memory.cc - device memory, pinned host memory, and how the simulator reports a failure.
 *
 * Device memory is one range of addresses that the host cannot touch: it is mapped only while a
 * kernel or a copy runs, so that host code that follows a device pointer crashes as it should.
 * Freed memory is not given out again.
 */
#include "sim_internal.h"

#include <cstdarg>
#include <cstdio>
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA_SIZE (size_t(1) << 36) /* of a device */
#define RED_ZONE   512u
#define FILL_MAX   (size_t(64) << 20) /* of a larger allocation only the ends are made 0xff */
#define PAGE       4096u
#define HUGE_PAGE  (size_t(2) << 20) /* what is mapped and unmapped at once */

struct allocation {
    size_t n;
    const void *by; /* return address, for the leak report */
    int device;     /* of device memory */
};

static char *arena; /* of all devices, one behind the other */
static size_t arena_used[SIM_DEVICES_MAX], device_bytes[SIM_DEVICES_MAX];
static size_t device_total = size_t(8) << 30;
static int open_depth;
static uint32_t reached = UINT32_MAX;   /* devices whose memory is open when any is */
static uint32_t have_memory;            /* devices with any yet */
static uint32_t peers[SIM_DEVICES_MAX]; /* and those that a device has access to */
static std::map<uintptr_t, allocation> device_allocs, host_allocs;
static std::map<uintptr_t, allocation> pinned; /* memory of the program's own */
static uint64_t seed_state = 1, seed_given = 1;
static int fail_malloc, fail_malloc_host, fail_pin;
struct sl_sim_counts sim_count;
bool sim_check_leaks = true;

/* --- failures --- */

const char *sim_short_file(const char *file)
{
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

/* The function that begins nearest below pc, from the program's own symbol table: kernels are
 * static, so the dynamic one does not have them. */
static const char *elf_symbol(uintptr_t pc, uintptr_t base)
{
    static const char *image;
    if (!image) {
        int fd = open("/proc/self/exe", O_RDONLY);
        off_t size = lseek(fd, 0, SEEK_END);
        void *m = mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, fd, 0);
        close(fd);
        if (m == MAP_FAILED)
            return nullptr;
        image = static_cast<const char *>(m);
    }
    const Elf64_Ehdr *head = reinterpret_cast<const Elf64_Ehdr *>(image);
    const Elf64_Shdr *sections = reinterpret_cast<const Elf64_Shdr *>(image + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const Elf64_Sym *syms = reinterpret_cast<const Elf64_Sym *>(image + sections[i].sh_offset);
        const char *names = image + sections[sections[i].sh_link].sh_offset;
        for (size_t k = 0; k < sections[i].sh_size / sizeof *syms; k++)
            if (ELF64_ST_TYPE(syms[k].st_info) == STT_FUNC && pc >= base + syms[k].st_value &&
                pc < base + syms[k].st_value + syms[k].st_size)
                return names + syms[k].st_name;
    }
    return nullptr;
}

std::string sim_symbol(const void *pc)
{
    char text[32];
    Dl_info info;
    const char *found = nullptr;
    if (dladdr(pc, &info))
        found = elf_symbol(reinterpret_cast<uintptr_t>(pc),
                           reinterpret_cast<uintptr_t>(info.dli_fbase));
    if (!found) {
        snprintf(text, sizeof text, "%p", pc);
        return text;
    }
    int status = 0;
    char *plain = abi::__cxa_demangle(found, nullptr, nullptr, &status);
    std::string name = plain ? plain : found;
    free(plain);
    return name;
}

static void on_death()
{
    std::string where = sim_where();
    if (!where.empty())
        fprintf(stderr, "simulator: died in %s; seed %llu\n", where.c_str(),
                static_cast<unsigned long long>(seed_given));
}

void sim_fail(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    char text[8192];
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    std::string where = sim_where();
    fflush(stdout);
    fprintf(stderr, "simulator: %s%s%s\n  seed %llu\n", where.c_str(), where.empty() ? "" : ": ",
            text, static_cast<unsigned long long>(seed_given));
    if (sim_now && __sanitizer_print_stack_trace)
        __sanitizer_print_stack_trace();
    fflush(stderr);
    abort();
}

/* --- chance --- */

uint64_t sim_rand()
{
    seed_state += 0x9e3779b97f4a7c15ull;
    uint64_t z = seed_state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

uint64_t sl_sim_random()
{
    sim_enter();
    return sim_rand();
}

void sl_sim_seed(uint64_t seed)
{
    sim_enter();
    seed_state = seed_given = seed;
}

/* --- device memory --- */

static void report_leaks()
{
    if (!sim_check_leaks || (device_allocs.empty() && host_allocs.empty() && pinned.empty()))
        return;
    for (auto &a : device_allocs)
        fprintf(stderr, "simulator: leak: %zu bytes of device memory, allocated in %s\n",
                a.second.n, sim_symbol(a.second.by).c_str());
    for (auto &a : host_allocs)
        fprintf(stderr, "simulator: leak: %zu bytes of pinned memory, allocated in %s\n",
                a.second.n, sim_symbol(a.second.by).c_str());
    for (auto &a : pinned)
        fprintf(stderr, "simulator: leak: %zu bytes of memory stay pinned, as they were in %s\n",
                a.second.n, sim_symbol(a.second.by).c_str());
    fflush(stderr);
    fflush(stdout);
    _exit(23);
}

void sim_enter()
{
    static bool entered;
    if (entered)
        return;
    entered = true;
    if (const char *s = getenv("SL_SIM_SEED"))
        seed_state = seed_given = strtoull(s, nullptr, 10);
    if (const char *s = getenv("SL_SIM_SMS"))
        sl_sim_set_sms(static_cast<int>(strtol(s, nullptr, 10)));
    if (const char *s = getenv("SL_SIM_EAGER"))
        sl_sim_set_eager(*s == '1');
    if (const char *s = getenv("SL_SIM_LEAKS"))
        sim_check_leaks = *s != '0';
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(on_death);
    const size_t size = SIM_DEVICES_MAX * ARENA_SIZE;
    void *m = mmap(nullptr, size + HUGE_PAGE, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED)
        sim_fail("no address space for device memory");
    arena = static_cast<char *>(m);
    arena += (0 - reinterpret_cast<uintptr_t>(arena)) % HUGE_PAGE;
    /* Memory is opened and closed all the time, which costs by the page. A hint. */
    madvise(arena, size, MADV_HUGEPAGE);
    atexit(report_leaks);
}

/* The huge pages that something allocated lies in: changes cost by the page, and most of what a
 * test has used is freed. */
static void protect_devices(uint32_t devices, int prot)
{
    uintptr_t from = 0, to = 0;
    for (auto &a : device_allocs) {
        if (!(devices >> a.second.device & 1))
            continue;
        uintptr_t first = (a.first - RED_ZONE) / HUGE_PAGE * HUGE_PAGE;
        uintptr_t end = (a.first + a.second.n + RED_ZONE + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE;
        if (first > to) {
            if (to > from)
                mprotect(reinterpret_cast<void *>(from), to - from, prot);
            from = first;
        }
        to = end;
    }
    if (to > from)
        mprotect(reinterpret_cast<void *>(from), to - from, prot);
}

static void protect_arena(int prot)
{
    protect_devices(prot == PROT_NONE ? UINT32_MAX : reached, prot);
}

/* A kernel of this device runs, which reaches no other memory; below 0: it rests. */
void sim_reach(int device)
{
    const uint32_t all = device < 0 ? UINT32_MAX : 1u << device | peers[device] | ~have_memory;
    const uint32_t was = reached;
    reached = all;
    if (open_depth > 0 && was & ~all)
        protect_devices(was & ~all, PROT_NONE);
    if (open_depth > 0 && all & ~was)
        protect_devices(all & ~was, PROT_READ | PROT_WRITE);
}

bool sim_add_peer(int device, int peer)
{
    const bool was = peers[device] >> peer & 1;
    peers[device] |= 1u << peer;
    return !was;
}

void sim_open_memory()
{
    sim_enter();
    if (open_depth++ == 0)
        protect_arena(PROT_READ | PROT_WRITE);
}

void sim_close_memory()
{
    if (--open_depth == 0)
        protect_arena(PROT_NONE);
}

int sim_hide_memory()
{
    int depth = open_depth;
    open_depth = 0;
    protect_arena(PROT_NONE);
    return depth;
}

void sim_show_memory(int depth)
{
    open_depth = depth;
    protect_arena(PROT_READ | PROT_WRITE);
}

static bool due(int *countdown)
{
    return *countdown > 0 && --*countdown == 0;
}

void sl_sim_fail_malloc(int nth)
{
    fail_malloc = nth;
}
void sl_sim_fail_malloc_host(int nth)
{
    fail_malloc_host = nth;
}
void sl_sim_fail_pin(int nth)
{
    fail_pin = nth;
}
void sl_sim_set_memory(size_t total)
{
    device_total = total;
}

bool sim_device_alloc(void **p, size_t n, int device, const void *by)
{
    sim_count.mallocs++;
    if (due(&fail_malloc) || n > device_total - device_bytes[device])
        return false;
    size_t start = arena_used[device] + RED_ZONE;
    size_t room = (n + 255) / 256 * 256;
    if (start + room + RED_ZONE > ARENA_SIZE)
        return false;
    arena_used[device] = start + room + RED_ZONE; /* which is the next one's, too */
    start += static_cast<size_t>(device) * ARENA_SIZE;
    have_memory |= 1u << device;
    device_allocs[reinterpret_cast<uintptr_t>(arena + start)] = {n, by, device};
    sim_open_memory();
    protect_arena(PROT_READ | PROT_WRITE); /* if it was open already */
    char *at = arena + start;
    if (n <= FILL_MAX) {
        memset(at, 0xff, room);
    } else {
        memset(at, 0xff, FILL_MAX / 2);
        memset(at + room - FILL_MAX / 2, 0xff, FILL_MAX / 2);
    }
    sim_poison(at - RED_ZONE, RED_ZONE);
    sim_poison(at + room, RED_ZONE);
    sim_poison(at + n, room - n);
    sim_close_memory();
    sim_count.bytes += n;
    device_bytes[device] += n;
    *p = at;
    return true;
}

bool sim_device_free(void *p)
{
    auto it = device_allocs.find(reinterpret_cast<uintptr_t>(p));
    if (it == device_allocs.end())
        return false;
    size_t n = it->second.n;
    sim_poison(p, n);
    uintptr_t from = (it->first + PAGE - 1) / PAGE * PAGE, to = (it->first + n) / PAGE * PAGE;
    if (to > from)
        madvise(reinterpret_cast<void *>(from), to - from, MADV_DONTNEED);
    sim_count.bytes -= n;
    device_bytes[it->second.device] -= n;
    if (open_depth > 0)
        protect_arena(PROT_NONE);
    device_allocs.erase(it);
    if (open_depth > 0)
        protect_arena(PROT_READ | PROT_WRITE);
    return true;
}

bool sim_host_alloc(void **p, size_t n, const void *by)
{
    sim_count.host_mallocs++;
    if (due(&fail_malloc_host))
        return false;
    void *at = nullptr;
    if (posix_memalign(&at, PAGE, n ? n : 1))
        return false;
    memset(at, 0xff, n);
    host_allocs[reinterpret_cast<uintptr_t>(at)] = {n, by, 0};
    sim_count.host_bytes += n;
    *p = at;
    return true;
}

bool sim_host_free(void *p)
{
    auto it = host_allocs.find(reinterpret_cast<uintptr_t>(p));
    if (it == host_allocs.end())
        return false;
    sim_count.host_bytes -= it->second.n;
    host_allocs.erase(it);
    free(p);
    return true;
}

/* A copy must lie in one piece, as on a device: neighbours are not joined. */
bool sim_host_pin(void *p, size_t n, const void *by)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    if (due(&fail_pin))
        return false;
    auto it = pinned.lower_bound(at);
    if ((it != pinned.end() && it->first < at + n) ||
        (it != pinned.begin() && std::prev(it)->first + std::prev(it)->second.n > at))
        return false;
    pinned[at] = {n, by, 0};
    return true;
}

bool sim_host_unpin(void *p)
{
    return pinned.erase(reinterpret_cast<uintptr_t>(p)) == 1;
}

static bool within(const std::map<uintptr_t, allocation> &allocs, const void *p, size_t n)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    auto it = allocs.upper_bound(at);
    if (it == allocs.begin())
        return false;
    --it;
    return at - it->first <= it->second.n && n <= it->second.n - (at - it->first);
}

bool sl_sim_is_device(const void *p, size_t n)
{
    return within(device_allocs, p, n);
}

bool sim_is_arena(const void *p)
{
    return arena && static_cast<const char *>(p) >= arena &&
           static_cast<const char *>(p) < arena + SIM_DEVICES_MAX * ARENA_SIZE;
}

bool sim_is_pinned(const void *p, size_t n)
{
    return within(host_allocs, p, n) || within(pinned, p, n);
}

bool sim_is_mapped(const void *p, size_t n)
{
    return within(device_allocs, p, n) || within(host_allocs, p, n);
}

size_t sim_device_total()
{
    return device_total;
}

size_t sim_device_used(int device)
{
    return device_bytes[device];
}

/* The device whose memory p is, or -1. */
static int device_of(const void *p)
{
    return !sim_is_arena(p)
               ? -1
               : static_cast<int>(static_cast<size_t>(static_cast<const char *>(p) - arena) /
                                  ARENA_SIZE);
}

void sl_sim_peer(const void *p, size_t n)
{
    const int device = device_of(p);
    if (!sl_sim_is_device(p, n))
        sim_fail("%zu bytes at %p are not one allocation of device memory", n, p);
    if (!(reached >> device & 1))
        sim_fail("memory of device %d, to which this one has no peer access", device);
}

void sim_free_all()
{
    while (!device_allocs.empty())
        sim_device_free(reinterpret_cast<void *>(device_allocs.begin()->first));
    while (!host_allocs.empty())
        sim_host_free(reinterpret_cast<void *>(host_allocs.begin()->first));
    memset(peers, 0, sizeof peers);
    pinned.clear();
}

void sl_sim_peek(void *dst, const void *src, size_t n)
{
    if (!sl_sim_is_device(src, n))
        sim_fail("sl_sim_peek: %zu bytes at %p are not device memory", n, src);
    sim_open_memory();
    memcpy(dst, src, n);
    sim_close_memory();
}

struct sl_sim_counts sl_sim_get_counts()
{
    return sim_count;
}
