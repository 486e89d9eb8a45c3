/* matmul_choice.c: the algorithm of a product, chosen by running the candidates, and remembered on disk.
 *
 * cuBLASLt's first choice is up to a quarter slower than its best. A product of some size is therefore timed once with each candidate, on its
 * own operands and a result to throw away; the fastest that gives the same bits twice is taken. The choice is kept in
 * $XDG_CACHE_HOME/tarn/matmul-RULES-DEVICE-VERSION, one line a product, so that later runs choose the same and get the same bits.
 * TARN_TUNE=off takes first choices, and reads and writes nothing. */
#include "backends/cuda/matmul.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORTH_MEASURING ((double)(1 << 24)) /* multiplications: less than this is over before it matters */
#define MAX_DEVICES 64
#define RULES 3 /* which algorithms are candidates: a change of that makes older choices void */

/* ---- the file -------------------------------------------------------------------------------------------------------------- */

typedef struct choice {
    tarn__cuda_product product;
    cublasLtMatmulAlgo_t algorithm;
    uint64_t workspace;
} choice;

static struct memory {
    bool is_read;
    char path[1024];
    choice *choices;
    int count;
} memories[MAX_DEVICES];

static bool is_off(void)
{
    const char *text = getenv("TARN_TUNE");
    return text && strcmp(text, "off") == 0;
}

/* The folder, made where it is missing; false when there is no place for it. */
static bool cache_folder(char *folder, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && cache[0] == '/')
        snprintf(folder, size, "%s", cache);
    else if (home && home[0] == '/')
        snprintf(folder, size, "%s/.cache", home);
    else
        return false;
    mkdir(folder, 0777);
    snprintf(folder + strlen(folder), size - strlen(folder), "/tarn");
    return mkdir(folder, 0777) == 0 || errno == EEXIST;
}

static void name_file(int index, char *path, size_t size)
{
    char folder[768], name[300];
    struct cudaDeviceProp properties;
    path[0] = 0;
    if (!cache_folder(folder, sizeof(folder)) || cudaGetDeviceProperties(&properties, index) != cudaSuccess)
        return;
    snprintf(name, sizeof(name), "%s", properties.name);
    for (char *c = name; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9')))
            *c = '-';
    snprintf(path, size, "%s/matmul-%d-%s-%zu", folder, RULES, name, cublasLtGetVersion());
}

/* Bytes as hexadecimal digits, and back. */
static void write_hex(const void *bytes, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", ((const unsigned char *)bytes)[i]);
}

static bool read_hex(const char *text, void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1)
            return false;
        ((unsigned char *)bytes)[i] = (unsigned char)value;
    }
    return text[2 * count] == '\n' || text[2 * count] == 0;
}

/* A line that is not a whole choice (another version's, or cut off) is passed over. */
static void read_file(struct memory *memory)
{
    char line[2 * sizeof(choice) + 16];
    FILE *file = memory->path[0] ? fopen(memory->path, "re") : NULL;
    while (file && fgets(line, sizeof(line), file)) {
        choice one;
        if (!read_hex(line, &one, sizeof(one)))
            continue;
        choice *more = realloc(memory->choices, sizeof(choice) * (size_t)(memory->count + 1));
        if (!more)
            break;
        memory->choices = more;
        memory->choices[memory->count++] = one;
    }
    if (file)
        fclose(file);
}

/* One write of one line: two programs that choose at once both keep theirs. */
static void remember(struct memory *memory, const choice *one)
{
    char line[2 * sizeof(choice) + 2];
    write_hex(one, sizeof(*one), line);
    strcat(line, "\n");
    int file = memory->path[0] ? open(memory->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0) {
        ssize_t written = write(file, line, strlen(line));
        (void)written; /* a choice that is not kept is made again */
        close(file);
    }
}

static struct memory *memory_of(int index)
{
    struct memory *memory = &memories[index];
    if (!memory->is_read) {
        name_file(index, memory->path, sizeof(memory->path));
        read_file(memory);
        memory->is_read = true;
    }
    return memory;
}

static bool is_worth_it(const tarn__cuda_product *p)
{
    return (double)p->m * (double)p->n * (double)p->k * (double)p->batches >= WORTH_MEASURING && !is_off();
}

bool tarn__cuda_recall(int index, tarn__cuda_plan *plan)
{
    if (!is_worth_it(&plan->product))
        return false;
    const struct memory *memory = memory_of(index);
    for (int i = 0; i < memory->count; i++) {
        const choice *one = &memory->choices[i];
        if (memcmp(&one->product, &plan->product, sizeof(plan->product)) != 0)
            continue;
        plan->algorithm = one->algorithm;
        plan->workspace = (size_t)one->workspace;
        return one->workspace <= TARN__CUDA_WORKSPACE;
    }
    return false;
}

bool tarn__cuda_must_measure(const tarn__cuda_product *product)
{
    return is_worth_it(product);
}

/* ---- measuring ------------------------------------------------------------------------------------------------------------- */

/* Memory of its own, taken and given back here: operands of the product's sizes full of random numbers (equal ones would draw less power, and the
 * device would run faster than it does in earnest), and two results. */
typedef struct bench {
    char *memory;
    tarn__cuda_operands operands[2]; /* the second one's result is another */
    size_t result_bytes;
    int *differ;
    cudaEvent_t begin, end;
    cudaStream_t stream;
} bench;

static size_t span(int64_t lines, int64_t line, int64_t batches, int64_t batch, size_t size)
{
    return ((size_t)(lines * line + (batches - 1) * batch) * size + 511) / 256 * 256;
}

static bool open_bench(bench *t, const tarn__cuda_product *p, cudaStream_t stream)
{
    size_t in = tarn__dtype_bytes((tarn_dtype)p->in_dtype), out = tarn__dtype_bytes((tarn_dtype)p->out_dtype);
    size_t a = span(p->a_by_columns ? p->k : p->m, p->lda, p->batches, p->batch_a, in);
    size_t b = span(p->b_by_columns ? p->n : p->k, p->ldb, p->batches, p->batch_b, in);
    size_t c = span(p->m, p->ldc, p->batches, p->batch_c, out), bias = (size_t)(p->m + p->n) * 8 + 256;
    size_t extra = p->ldx ? span(p->m, p->ldx, 1, 0, out) : 0;
    size_t all = a + b + 2 * c + bias + extra + TARN__CUDA_WORKSPACE + 256;
    memset(t, 0, sizeof(*t));
    if (cudaMalloc((void **)&t->memory, all) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    t->stream = stream;
    t->result_bytes = c;
    char *at = t->memory + TARN__CUDA_WORKSPACE;
    bool has_bias = p->epilogue != CUBLASLT_EPILOGUE_DEFAULT && p->epilogue != CUBLASLT_EPILOGUE_GELU && p->epilogue != CUBLASLT_EPILOGUE_GELU_AUX &&
                    p->epilogue != CUBLASLT_EPILOGUE_DGELU;
    t->operands[0] = (tarn__cuda_operands){.a = at, .b = at + a, .c = at + a + b, .bias = has_bias ? at + a + b + 2 * c : NULL,
                                           .extra = extra ? at + a + b + 2 * c + bias : NULL, .workspace = t->memory};
    t->operands[1] = t->operands[0];
    t->operands[1].c = at + a + b + c;
    t->differ = (int *)(void *)(t->memory + all - 256);
    return cudaMemsetAsync(t->memory, 0, all, stream) == cudaSuccess && tarn__cuda_noise(at, a + b, (tarn_dtype)p->in_dtype, stream) &&
           cudaEventCreate(&t->begin) == cudaSuccess && cudaEventCreate(&t->end) == cudaSuccess;
}

static void close_bench(bench *t)
{
    if (t->begin)
        cudaEventDestroy(t->begin);
    if (t->end)
        cudaEventDestroy(t->end);
    if (t->memory)
        cudaFree(t->memory);
    cudaGetLastError();
}

#define NEVER 1e30f

/* Milliseconds of one of `count` runs in a row; NEVER for a candidate that fails. */
static float time_runs(int index, const tarn__cuda_plan *plan, const cublasLtMatmulHeuristicResult_t *one, bench *t, int count)
{
    float took = 0;
    cudaEventRecord(t->begin, t->stream);
    for (int i = 0; i < count; i++)
        if (tarn__cuda_plan_try(index, plan, &one->algo, one->workspaceSize, &t->operands[0], 1, plan->product.accumulates ? 1 : 0, t->stream) !=
            CUBLAS_STATUS_SUCCESS)
            return NEVER;
    cudaEventRecord(t->end, t->stream);
    if (cudaEventSynchronize(t->end) != cudaSuccess || cudaEventElapsedTime(&took, t->begin, t->end) != cudaSuccess)
        return NEVER;
    return took / (float)count;
}

/* The better of two measurements of about a millisecond, after one that warms up; a candidate far behind the best one is left at that. */
static float time_candidate(int index, const tarn__cuda_plan *plan, const cublasLtMatmulHeuristicResult_t *one, bench *t, float best)
{
    float first = time_runs(index, plan, one, t, 2);
    if (first > 2 * best)
        return first;
    int count = (int)(1.0f / (first > 0.02f ? first : 0.02f)) + 1;
    float a = time_runs(index, plan, one, t, count), b = time_runs(index, plan, one, t, count);
    return a < b ? a : b;
}

/* Runs it twice, into two results that must be equal. */
static bool repeats_itself(int index, const tarn__cuda_plan *plan, const cublasLtMatmulHeuristicResult_t *one, bench *t)
{
    int differ = 1;
    for (int i = 0; i < 2; i++) {
        cudaMemsetAsync(t->operands[i].c, 0, t->result_bytes, t->stream);
        if (tarn__cuda_plan_try(index, plan, &one->algo, one->workspaceSize, &t->operands[i], 1, 0, t->stream) != CUBLAS_STATUS_SUCCESS)
            return false;
    }
    return tarn__cuda_differs(t->operands[0].c, t->operands[1].c, t->result_bytes, t->differ, t->stream) &&
           cudaMemcpyAsync(&differ, t->differ, sizeof(differ), cudaMemcpyDeviceToHost, t->stream) == cudaSuccess &&
           cudaStreamSynchronize(t->stream) == cudaSuccess && differ == 0;
}

/* A candidate must be faster by 1 % to pass one that cuBLASLt itself puts before it. */
static int fastest(int index, const tarn__cuda_plan *plan, const cublasLtMatmulHeuristicResult_t *candidates, int count, bench *t)
{
    float time[64];
    int best = 0;
    for (int i = 0; i < count && i < 64; i++) {
        time[i] = candidates[i].state == CUBLAS_STATUS_SUCCESS ? time_candidate(index, plan, &candidates[i], t, i ? time[best] : NEVER) : NEVER;
        if (time[i] < 0.99f * time[best])
            best = i;
    }
    while (time[best] < NEVER && !repeats_itself(index, plan, &candidates[best], t)) {
        time[best] = NEVER;
        for (int i = 0; i < count && i < 64; i++)
            best = time[i] < time[best] ? i : best;
    }
    return time[best] < NEVER ? best : -1;
}

void tarn__cuda_choose(int index, tarn__cuda_plan *plan, cublasLtMatmulHeuristicResult_t *candidates, int count)
{
    int first = 0;
    while (first < count - 1 && candidates[first].state != CUBLAS_STATUS_SUCCESS)
        first++;
    plan->algorithm = candidates[first].algo;
    plan->workspace = candidates[first].workspaceSize;
    tarn__cuda_device *d = tarn__cuda_at(index);
    if (!d || !is_worth_it(&plan->product) || count < 2)
        return;
    bench t;
    int best = open_bench(&t, &plan->product, d->stream) ? fastest(index, plan, candidates, count, &t) : -1;
    close_bench(&t);
    if (best < 0)
        return;
    plan->algorithm = candidates[best].algo;
    plan->workspace = candidates[best].workspaceSize;
    choice one;
    memset(&one, 0, sizeof(one));
    one.product = plan->product;
    one.algorithm = plan->algorithm;
    one.workspace = plan->workspace;
    remember(memory_of(index), &one);
}
