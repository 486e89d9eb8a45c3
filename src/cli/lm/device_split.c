/* device_split.c: --device with several devices, and --tensor-split: planning which layers go where, and printing it
 * before the model is loaded. */
#include <stdlib.h>
#include <string.h>

#include "cli/lm/lm_common.h"

/* Parses "3,1" to `count` numbers, not all 0. False: it is something else. */
static bool parse(const char *text, int count, double *shares)
{
    double sum = 0;
    for (int i = 0; i < count; i++) {
        char *end;
        shares[i] = strtod(text, &end);
        if (end == text || *text == ' ' || *end != (i + 1 < count ? ',' : 0) || !(shares[i] >= 0 && shares[i] <= 1e6))
            return false;
        sum += shares[i];
        text = end + 1;
    }
    return sum > 0;
}

int tarn__lm_split_options(const char *command, const tarn__options *o)
{
    double shares[TARN__DEVICES_MAX];
    if (o->tensor_split && o->device_count < 2) {
        fprintf(stderr, "tarn %s: --tensor-split needs several devices: --device FIRST,SECOND\n", command);
        return TARN__MISUSED;
    }
    if (o->gpu_layers && o->device_count > 1) {
        fprintf(stderr, "tarn %s: --gpu-layers is for one device; with several, use --tensor-split\n", command);
        return TARN__MISUSED;
    }
    if (o->tensor_split && !parse(o->tensor_split, o->device_count, shares)) {
        fprintf(stderr,
                "tarn %s: --tensor-split: '%s' must be %d numbers from 0 to 1000000, one per device, not all 0\n",
                command, tarn__escaped(o->tensor_split), o->device_count);
        return TARN__MISUSED;
    }
    return TARN__DONE;
}

bool tarn__lm_on_cpu(const tarn__options *o)
{
    bool good = true;
    for (int i = 0; i < o->device_count; i++)
        good = good && tarn_device_equal(o->devices[i], tarn_device_cpu());
    return good;
}

/* Also on another thread than the main one, whose buffer tarn__bytes_text() has. */
static void print_bytes(int64_t bytes)
{
    bool is_large = bytes >= (int64_t)1 << 30;
    fprintf(stderr, "%.1f %s", (double)bytes / (is_large ? 1 << 30 : 1 << 20), is_large ? "GiB" : "MiB");
}

static void print_split(const tarn_model_split *s)
{
    int64_t layer = 0;
    char device[32];
    for (int i = 0; i < s->count; i++) {
        fprintf(stderr, "%s%s: ", i ? "; " : "(", tarn_device_name(s->device[i], device, sizeof(device)));
        if (s->layers[i])
            fprintf(stderr, "layers %lld to %lld, ", (long long)layer, (long long)(layer + s->layers[i] - 1));
        else
            fprintf(stderr, "no layers, ");
        print_bytes(s->weight_bytes[i] + s->kv_bytes[i]);
        if (s->free_bytes[i]) {
            fprintf(stderr, " of ");
            print_bytes(s->free_bytes[i]);
            fprintf(stderr, " free");
        }
        layer += s->layers[i];
    }
    fprintf(stderr, ")\n");
}

bool tarn__lm_split(const tarn__options *o, const char *path, const tarn_model_open_options *how,
                    const tarn_model_split_options *cache, tarn_model_split *split)
{
    double shares[TARN__DEVICES_MAX];
    tarn_model_split_options plan = *cache;
    plan.dtype = how->dtype, plan.as_stored = how->as_stored, plan.quantize = how->quantize;
    plan.tensor_split = o->tensor_split && parse(o->tensor_split, o->device_count, shares) ? shares : NULL;
    if (!tarn_model_plan_split(path, o->devices, o->device_count, split, &plan))
        return false;
    if (!o->quiet)
        print_split(split);
    return true;
}
