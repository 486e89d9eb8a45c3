/* amx.c: whether AMX can be used here. */
#include "backends/cpu/runtime/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

#define LEAF_1_OSXSAVE (1u << 27)
#define LEAF_7_AMX (1u << 22 | 1u << 24 | 1u << 25) /* edx: bf16, tile, int8 */
#define XCR0_TILES (3u << 17)                       /* configuration and data */
#define REQUEST_XCOMP_PERM 0x1023                   /* ARCH_REQ_XCOMP_PERM, which older headers lack */
#define XFEATURE_TILE_DATA 18

/* The state components that the system saves. */
static uint32_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

bool tarn__cpu_amx_usable(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & LEAF_1_OSXSAVE) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
        (d & LEAF_7_AMX) != LEAF_7_AMX)
        return false;
    if ((xcr0() & XCR0_TILES) != XCR0_TILES || !__builtin_cpu_supports("avx512vnni"))
        return false;
    if (syscall(SYS_arch_prctl, REQUEST_XCOMP_PERM, XFEATURE_TILE_DATA) == 0)
        return true;
    /* an alternate signal stack without space for the tiles, or a filter of system calls */
    tarn__log(TARN_LOG_WARNING, "the instruction level amx is not used: the system refuses the state of tiles: %s",
              strerror(errno));
    return false;
}
#else
bool tarn__cpu_amx_usable(void)
{
    return false;
}
#endif
