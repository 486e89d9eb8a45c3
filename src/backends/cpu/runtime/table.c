/* table.c: registers every unit of the CPU backend (base/kernel/families.def) at one instruction level. Units register
 * different kernels, except those of AArch64's own levels and of amx, which replace single rows afterwards
 * (backend.c). */
#include "backends/cpu/runtime/level.h"

#define REGISTER_YES(unit) TARN__AT_LEVEL(tarn__cpu_register_##unit)(rows);
#define REGISTER_F64(unit) TARN__AT_F64_LEVEL(tarn__cpu_register_##unit)(rows);
#define REGISTER_NO(unit)

void TARN__AT_LEVEL(tarn__cpu_table)(tarn__kernel_row *rows)
{
#define UNIT(family, unit, cpu, cuda, opencl) REGISTER_##cpu(unit)
#include "base/kernel/families.def"
#undef UNIT
}
