/* table.c: registers every unit of the CPU backend at one instruction level. Order does not matter: units register
 * different kernels, except matmul and quant on AArch64, whose levels replace single rows afterwards (backend.c).
 *
 * A new unit needs a prototype in level.h, a call here and a source file that registers its kernels; CMake finds the
 * file. */
#include "backends/cpu/runtime/level.h"

void TARN__AT_LEVEL(tarn__cpu_table)(tarn__kernel_row *rows)
{
    TARN__AT_LEVEL(tarn__cpu_elementwise)(rows);
    TARN__AT_LEVEL(tarn__cpu_copy)(rows);
    TARN__AT_LEVEL(tarn__cpu_random)(rows);
    TARN__AT_LEVEL(tarn__cpu_reduce)(rows);
    TARN__AT_LEVEL(tarn__cpu_var_grad)(rows);
    TARN__AT_F64_LEVEL(tarn__cpu_gather)(rows);
    TARN__AT_F64_LEVEL(tarn__cpu_scatter)(rows);
    TARN__AT_F64_LEVEL(tarn__cpu_sort)(rows);
    TARN__AT_LEVEL(tarn__cpu_matmul)(rows);
    TARN__AT_LEVEL(tarn__cpu_quant)(rows);
    TARN__AT_LEVEL(tarn__cpu_kv_q8)(rows);
    TARN__AT_LEVEL(tarn__cpu_fused)(rows);
    TARN__AT_LEVEL(tarn__cpu_scale_grad)(rows);
    TARN__AT_LEVEL(tarn__cpu_conv)(rows);
    TARN__AT_LEVEL(tarn__cpu_pool)(rows);
    TARN__AT_LEVEL(tarn__cpu_softmax)(rows);
    TARN__AT_LEVEL(tarn__cpu_layernorm)(rows);
    TARN__AT_LEVEL(tarn__cpu_batchnorm)(rows);
    TARN__AT_LEVEL(tarn__cpu_groupnorm)(rows);
    TARN__AT_LEVEL(tarn__cpu_attention)(rows);
    TARN__AT_LEVEL(tarn__cpu_rope)(rows);
    TARN__AT_LEVEL(tarn__cpu_cross_entropy)(rows);
    TARN__AT_LEVEL(tarn__cpu_optimizer)(rows);
    TARN__AT_LEVEL(tarn__cpu_clip)(rows);
}
