/* yardstick.c: see yardstick.h. */
#include "cli/yardstick.h"

#include <math.h>
#include <string.h>
#include <tarn/ops.h>

#include "cli/bench_row.h"

/* Large enough for the device to be at its best, small enough to be done in a moment. */
bool tarn__yardstick_measure(tarn_device device, const char *precision, tarn__yardstick *y)
{
    tarn__product found;
    tarn__copies copies = {.device = device, .runs = 5};
    bool on_cpu = tarn_device_equal(device, tarn_device_cpu());
    int64_t bytes = on_cpu ? (int64_t)128 << 20 : (int64_t)1 << 30;
    double peak = tarn_peak_of(device, precision);
    y->peak = peak > 0 ? peak : (double)NAN;
    y->rows = on_cpu ? 1024 : 8192;
    tarn_set_tf32(strcmp(precision, "tf32") == 0);
    bool good = tarn__measure_product(y->rows, strcmp(precision, "bf16") == 0 ? TARN_BF16 : TARN_F32, device, 5, &found);
    tarn_set_tf32(false);
    y->product = good ? 2e6 * pow((double)y->rows, 3) / found.tarn : (double)NAN;
    y->copy = good ? (double)bytes * 1e6 / tarn__copy_time(&copies, bytes) : (double)NAN;
    return good && !tarn_failed();
}

void tarn__print_memory_kinds(const tarn_memory_kinds *m)
{
    printf("  %-10s %s at most:", "memory", tarn__bytes_text(m->peak));
    printf(" parameters %s, gradients %s, optimizer %s, activations %s, workspace %s\n", tarn__bytes_text(m->parameters),
           tarn__bytes_text(m->gradients), tarn__bytes_text(m->state), tarn__bytes_text(m->activations), tarn__bytes_text(m->workspace));
}

void tarn__json_memory_kinds(tarn__json *json, const tarn_memory_kinds *m)
{
    tarn__json_open(json, "memory", '{');
    tarn__json_whole(json, "peak", m->peak);
    tarn__json_whole(json, "parameters", m->parameters);
    tarn__json_whole(json, "gradients", m->gradients);
    tarn__json_whole(json, "optimizer", m->state);
    tarn__json_whole(json, "activations", m->activations);
    tarn__json_whole(json, "workspace", m->workspace);
    tarn__json_close(json, '}');
}
