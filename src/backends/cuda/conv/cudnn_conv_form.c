/* cudnn_conv_form.c: which form of a convolution is run: as it was asked for, in the other order of channels, with the
 * weight turned, in wider numbers, by columns (conv_im2col.c), or, the gradient of a weight, by our own kernel
 * (conv_wgrad.h). Chosen by running them, copies included, and remembered on disk (autotune.h).
 *
 * cuDNN's kernels are written for one order of channels and bring operands of the other into it by themselves, not
 * always in the fastest way; and the gradient of x with a stride of 1 is a convolution of the result's gradient with
 * the turned weight, for which there are more kernels. Each form has an engine of its own, the fastest of those that
 * its graph offers (cudnn_conv_tune.c). */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/conv/cudnn_conv.h"
#include "backends/cuda/runtime/autotune.h"

#define BUCKETS 256
#define MOST_FORMS 12

/* What is different from what was asked for, as bits: kept on disk. */
enum {
    OTHER_ORDER = 1, /* of channels: x and y are copied */
    TURNED = 2,      /* the gradient of x as a convolution */
    WIDENED = 4,     /* 16-bit operands as f32, in TF32, which holds them exactly */
    BIAS_AFTER = 8,  /* added to sums of f32 */
    BY_COLUMNS = 16,
    PASSED_ON = 32, /* the gradient of a weight from 16 bits: sums of f32 go through an operation that does nothing */
    DIRECT = 64,    /* the gradient of a weight, by our own kernel */
};

static tarn__conv_algo *tables[TARN__CUDA_MAX_DEVICES][BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Choices that were made without our own kernel among the candidates are kept apart. */
static tarn__cuda_tuning *choices(void)
{
    static tarn__cuda_tuning all = {
        .family = "conv-form-3", .key_bytes = sizeof(tarn__cudnn_conv), .value_bytes = sizeof(uint64_t)};
    static tarn__cuda_tuning fewer = {
        .family = "conv-form-2", .key_bytes = sizeof(tarn__cudnn_conv), .value_bytes = sizeof(uint64_t)};
    tarn__cuda_tuning *kept = tarn__wgrad_is_off() ? &fewer : &all;
    kept->version = tarn__cudnn_open() ? tarn__cudnn_open()->version() : 0;
    return kept;
}

/* ---- forms ------------------------------------------------------------------------------------------------------- */

/* True when the gradient of x is a convolution of the same kind: one result for each pixel, and nothing that lies
 * outside it is read. */
static bool can_be_turned(const tarn__cudnn_conv *v)
{
    bool can = v->what == TARN__CONV_DGRAD && v->groups == 1;
    for (int i = 0; i < 2; i++)
        can = can && v->stride[i] == 1 && v->padding[i] <= v->dilation[i] * (v->kernel[i] - 1);
    return can;
}

/* True where the engines that pass sums on may be asked: they are made for channels last, and gave wrong gradients for
 * a kernel of 3 by 1 with a stride of 3 and a dilation of 3. What is allowed here is what networks have and the tests
 * measure. */
static bool can_be_passed_on(const tarn__cudnn_conv *v)
{
    bool can = v->what == TARN__CONV_WGRAD && v->groups == 1 && v->in % 8 == 0 && v->out % 8 == 0 &&
               v->kernel[0] == v->kernel[1];
    for (int i = 0; i < 2; i++)
        can = can && (v->kernel[i] == 1 || v->kernel[i] == 3) && v->padding[i] == v->kernel[i] / 2 &&
              v->dilation[i] == 1 && v->stride[i] <= 2;
    return can && v->stride[0] == v->stride[1];
}

static bool is_wide(const tarn__cudnn_conv *v)
{
    return v->in_dtype == TARN_F32;
}

/* The convolution that cuDNN is given for one that was asked for. */
static tarn__cudnn_conv formed(const tarn__cudnn_conv *asked, uint64_t form)
{
    tarn__cudnn_conv v = *asked;
    if (form & OTHER_ORDER)
        v.channels_last = !v.channels_last;
    if (form & WIDENED)
        v.in_dtype = v.out_dtype = TARN_F32, v.tf32 = 1;
    if (form & BIAS_AFTER)
        v.adds_bias = 0;
    if (form & PASSED_ON)
        v.passes_on = 1;
    if (form & TURNED) {
        v.what = TARN__CONV_FORWARD;
        v.in = asked->out, v.out = asked->in;
        for (int i = 0; i < 2; i++) {
            v.size[i] = asked->result[i], v.result[i] = asked->size[i];
            v.padding[i] = v.dilation[i] * (v.kernel[i] - 1) - v.padding[i];
        }
    }
    return v;
}

/* Fills in the form and its plan. False when cuDNN has no engine for it, or is not there; `has_failed`: or does not
 * work at all. */
static bool find_plan(int index, const tarn__cudnn_conv *asked, uint64_t code, tarn__conv_algo *form, bool *has_failed)
{
    tarn__cudnn_conv v = formed(asked, code);
    bool is_own = code & BY_COLUMNS;
    *form = (tarn__conv_algo){.asked = *asked, .code = code, .is_turned = code & TURNED};
    if (code & DIRECT)
        return form->is_direct = tarn__wgrad_plan_of(index, &v, &form->weight);
    if (!is_own && !tarn__cudnn_open())
        return false;
    form->plan = is_own ? NULL : tarn__cudnn_conv_plan_of(index, &v);
    *has_failed = *has_failed || (!form->plan && !is_own);
    return is_own || (form->plan && !form->plan->is_none);
}

/* The first of these that there is an engine for: as asked, then what loses no digits. Sums of 16 bits must not be
 * rounded before a bias is added. */
static bool find_nearest(int index, const tarn__cudnn_conv *asked, uint64_t code, tarn__conv_algo *form,
                         bool *has_failed)
{
    static const uint64_t more[] = {0, WIDENED, BIAS_AFTER, WIDENED | BIAS_AFTER};
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        bool widens = more[i] & WIDENED, adds_after = more[i] & BIAS_AFTER;
        if ((widens && is_wide(asked)) || (adds_after && (!asked->adds_bias || (!widens && !is_wide(asked)))))
            continue;
        if (find_plan(index, asked, code | more[i], form, has_failed))
            return true;
        if (*has_failed)
            return false;
    }
    return false;
}

static bool has_code(const tarn__conv_algo *forms, int count, uint64_t code)
{
    for (int i = 0; i < count; i++)
        if (forms[i].code == code)
            return true;
    return false;
}

/* Adds the ways from 16 bits to f32 that are not in the list yet. */
static int find_widening(int index, const tarn__cudnn_conv *asked, tarn__conv_algo *forms, int count, bool *has_failed)
{
    const uint64_t codes[] = {asked->channels_last ? PASSED_ON : PASSED_ON | OTHER_ORDER, WIDENED,
                              WIDENED | OTHER_ORDER};
    bool has_sums = can_be_passed_on(asked);
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]) && asked->in_dtype != asked->out_dtype && !*has_failed; i++)
        if ((has_sums || !(codes[i] & PASSED_ON)) && !has_code(forms, count, codes[i]))
            count += find_plan(index, asked, codes[i], &forms[count], has_failed);
    return count;
}

/* Our own kernel takes channels last. */
static bool find_direct(int index, const tarn__cudnn_conv *asked, tarn__conv_algo *form, bool *has_failed)
{
    return find_plan(index, asked, asked->channels_last ? DIRECT : DIRECT | OTHER_ORDER, form, has_failed);
}

/* All forms that can be run, the one that was asked for first, columns last. */
static int find_all(int index, const tarn__cudnn_conv *asked, tarn__conv_algo *forms, bool *has_failed)
{
    static const uint64_t codes[] = {0, TURNED, OTHER_ORDER, OTHER_ORDER | TURNED};
    int count = 0;
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]) && !*has_failed; i++)
        if (!(codes[i] & TURNED) || can_be_turned(asked))
            count += find_nearest(index, asked, codes[i], &forms[count], has_failed);
    count = find_widening(index, asked, forms, count, has_failed);
    count += !*has_failed && find_direct(index, asked, &forms[count], has_failed);
    if (count > 0)
        find_plan(index, asked, BY_COLUMNS, &forms[count++], has_failed);
    return count;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

typedef struct bench {
    const tarn__cudnn_conv *asked;
    const tarn__conv_algo *forms;
    int count;
    char *memory;
    void *results[2];
    size_t result_bytes;
    int *differ;
    tarn__conv_call as; /* on images in their order and a weight by rows */
} bench;

static size_t bytes_of(const tarn__view *v)
{
    return ((size_t)tarn__view_count(v) * tarn__dtype_bytes(v->dtype) + 255) / 256 * 256;
}

/* Memory of its own, given back by the caller: x, w, y and a bias full of random numbers, a second result, and the
 * scratch that any form needs. */
static bool take_memory(bench *t, cudaStream_t stream)
{
    tarn__view *views[] = {&t->as.x, &t->as.w, &t->as.y, &t->as.bias};
    size_t operands = 0, scratch = 0;
    for (int i = 0; i < 4; i++)
        operands += bytes_of(views[i]);
    for (int i = 0; i < t->count; i++) {
        size_t bytes = tarn__conv_algo_call(&t->as.call, &t->forms[i], false);
        scratch = bytes > scratch ? bytes : scratch;
    }
    t->result_bytes = bytes_of(t->as.call.out[0]);
    if (cudaMalloc((void **)&t->memory, operands + t->result_bytes + 256 + scratch) != cudaSuccess) {
        cudaGetLastError();
        t->memory = NULL;
        return false;
    }
    char *at = t->memory;
    for (int i = 0; i < 4; at += bytes_of(views[i++]))
        views[i]->memory = at;
    t->results[0] = t->as.call.out[0]->memory;
    t->results[1] = at;
    t->differ = (int *)(void *)(at + t->result_bytes);
    t->as.call.scratch = at + t->result_bytes + 256;
    t->as.call.scratch_bytes = scratch;
    return tarn__cuda_noise(t->memory, operands, (tarn_dtype)t->asked->in_dtype, stream);
}

/* A candidate that fails has only lost. */
static bool run_candidate(void *context, int candidate, int result)
{
    bench *t = context;
    tarn__view to = *t->as.call.out[0];
    tarn__call call = t->as.call;
    to.memory = t->results[result];
    call.out[0] = &to;
    tarn__cuda_device *device = tarn__cuda_at(call.device);
    bool had_failed = device->has_failed;
    device->has_failed = false;
    tarn__conv_algo_call(&call, &t->forms[candidate], true);
    bool is_good = !device->has_failed;
    device->has_failed = had_failed;
    return is_good;
}

/* The fastest form that gives the same bits twice; columns where none does, and the first where there is no memory to
 * time them in. */
static int fastest(int index, const tarn__cudnn_conv *asked, const tarn__conv_algo *forms, int count)
{
    cudaStream_t stream = tarn__cuda_at(index)->stream;
    bench t = {.asked = asked, .forms = forms, .count = count};
    int best = 0;
    tarn__conv_describe_call(&t.as, asked, index, stream);
    tarn__view_set_row_major(&t.as.w);
    if (take_memory(&t, stream)) {
        best = tarn__cuda_autotune_run(&(tarn__cuda_autotune){.count = count,
                                                              .context = &t,
                                                              .run = run_candidate,
                                                              .results = {t.results[0], t.results[1]},
                                                              .result_bytes = t.result_bytes,
                                                              .differ = t.differ,
                                                              .stream = stream});
        best = best < 0 ? count - 1 : best;
    }
    if (t.memory)
        cudaFree(t.memory);
    cudaGetLastError();
    return best;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

/* The form that was chosen before, the fastest, or the nearest to what was asked for. False when cuDNN does not work.
 */
static bool choose(int index, const tarn__cudnn_conv *asked, tarn__conv_algo *chosen)
{
    tarn__conv_algo forms[MOST_FORMS];
    uint64_t code;
    bool has_failed = false;
    if (tarn__wgrad_is_forced() && find_direct(index, asked, chosen, &has_failed))
        return true;
    if (!tarn__cudnn_conv_must_tune(asked)) {
        if (!find_nearest(index, asked, 0, chosen, &has_failed) && !has_failed)
            find_plan(index, asked, BY_COLUMNS, chosen, &has_failed);
        return !has_failed;
    }
    if (tarn__cuda_tuning_find(choices(), index, asked, &code) && find_plan(index, asked, code, chosen, &has_failed))
        return true;
    int count = has_failed ? 0 : find_all(index, asked, forms, &has_failed),
        best = count > 1 ? fastest(index, asked, forms, count) : 0;
    if (has_failed)
        return false;
    if (count == 0)
        return find_plan(index, asked, BY_COLUMNS, chosen, &has_failed);
    *chosen = forms[best];
    tarn__cuda_tuning_store(choices(), index, asked, &chosen->code);
    return true;
}

/* Nothing is chosen inside a capture: forms are run to choose one. */
static tarn__conv_algo *make_form(int index, const tarn__cudnn_conv *asked)
{
    tarn__cuda_device *device = tarn__cuda_at(index);
    if (device && device->is_capturing) {
        tarn__cuda_fail("no engine has been chosen for this convolution; run the step once before capturing it");
        return NULL;
    }
    tarn__conv_algo *form = device ? calloc(1, sizeof(*form)) : NULL;
    if (form && choose(index, asked, form))
        return form;
    free(form);
    return NULL;
}

tarn__conv_algo *tarn__conv_algo_of(int index, const tarn__cudnn_conv *asked)
{
    static _Thread_local tarn__conv_algo *last; /* scratch and run ask for the same one */
    static _Thread_local int last_index;
    if (last && last_index == index && memcmp(&last->asked, asked, sizeof(*asked)) == 0)
        return last;
    tarn__conv_algo **bucket = &tables[index][tarn__cudnn_conv_hash(asked) % BUCKETS];
    pthread_mutex_lock(&lock);
    tarn__conv_algo *form = *bucket;
    while (form && memcmp(&form->asked, asked, sizeof(*asked)) != 0)
        form = form->next;
    if (!form && (form = make_form(index, asked)) != NULL) {
        form->next = *bucket;
        *bucket = form;
    }
    pthread_mutex_unlock(&lock);
    last = form;
    last_index = index;
    return form;
}
