/* fused.c: matmul fused with GELU or with the bias gradient. Composed (base/kernel/compose.h): a CPU's caches hold the
 * intermediate that a GPU would write and read again. The parts come from a table of this level's own. */
#include <pthread.h>

#include "backends/cpu/runtime/level.h"
#include "base/kernel/compose.h"

#if defined(TARN__AMX)
void tarn__cpu_register_matmul_amx(tarn__kernel_row *rows, tarn__kernel_row *avx512);
#endif

static const tarn__kernel_row *level_rows(void);
TARN__COMPOSED(matmul_gelu, level_rows())
TARN__COMPOSED(matmul_gelu_grad, level_rows())
TARN__COMPOSED(matmul_bias_grad, level_rows())

static tarn__kernel_row rows[TARN__KERNEL_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* matmul_gelu_grad with column sums is composed of the one without. */
static void fill_rows(void)
{
    TARN__AT_LEVEL(tarn__cpu_register_elementwise)(rows);
    TARN__AT_LEVEL(tarn__cpu_register_matmul)(rows);
    TARN__AT_LEVEL(tarn__cpu_register_reduce)(rows);
    rows[TARN__K_matmul_gelu_grad] =
        tarn__row_planned(prepare_composed_matmul_gelu_grad, kernel_composed_matmul_gelu_grad, TARN__FLOATS);
#if defined(TARN__AMX)
    static tarn__kernel_row avx512;
    tarn__cpu_register_matmul_amx(rows, &avx512);
#endif
}

/* The kernels of this level, also where the registered table has been overwritten by a higher one. */
static const tarn__kernel_row *level_rows(void)
{
    pthread_once(&once, fill_rows);
    return rows;
}

#if defined(TARN__AMX) /* everything above is of the level avx512 */
#undef TARN__LEVEL
#define TARN__LEVEL amx
void tarn__cpu_register_fused_amx(tarn__kernel_row *rows);
#endif

void TARN__AT_LEVEL(tarn__cpu_register_fused)(tarn__kernel_row *table)
{
    table[TARN__K_matmul_gelu] =
        tarn__row_planned(prepare_composed_matmul_gelu, kernel_composed_matmul_gelu, TARN__FLOATS);
    table[TARN__K_matmul_gelu_grad] =
        tarn__row_planned(prepare_composed_matmul_gelu_grad, kernel_composed_matmul_gelu_grad, TARN__FLOATS);
    table[TARN__K_matmul_bias_grad] =
        tarn__row_planned(prepare_composed_matmul_bias_grad, kernel_composed_matmul_bias_grad, TARN__NUMBERS);
}
