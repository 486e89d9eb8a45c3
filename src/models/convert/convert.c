/* convert.c: model conversion: options, the type of each tensor, GGUF to GGUF, and the check of names. */
#include "models/convert/convert.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/os/files.h"
#include "formats/gguf.h"
#include "models/hf/weights.h"
#include "models/lora/lora.h"

#define FILE_TYPE "general.file_type"
#define QUANT_VERSION "general.quantization_version" /* version of the block formats: 2 */

/* ---- the type of each tensor ------------------------------------------------------------------------------------- */

static bool is_type(tarn_dtype dtype)
{
    return dtype == TARN_F32 || dtype == TARN_F16 || dtype == TARN_BF16 ||
           ((unsigned)dtype < TARN_DTYPE_COUNT && tarn__is_quantized(dtype));
}

/* True if the rows of a tensor are a multiple of a type's block size. */
static bool fits(const tarn__weight_rows *rows, tarn_dtype dtype)
{
    return rows->shape.size[rows->shape.rank - 1] % tarn__dtypes[dtype].block_elements == 0;
}

/* Type of a matrix in a mixture. Where no type with blocks fits, and where another format would only lose precision, it
 * stays as it is. */
static tarn_dtype choose_mixed(tarn__conversion *c, const char *name, const tarn__weight_rows *rows, bool is_head)
{
    int64_t row = rows->shape.size[rows->shape.rank - 1];
    tarn_dtype wanted = tarn__mixture_type(c->mixture, &c->config, name, is_head, c->importance.rows > 0),
               chosen = tarn__mixture_fallback(wanted, row);
    if (chosen != wanted && tarn__is_quantized(rows->from))
        chosen = rows->from;
    if (!fits(rows, chosen))
        chosen = rows->from;
    if (chosen == wanted && wanted != c->mixture->base)
        c->summary.promoted++;
    tarn__fallback_add(&c->fallback, row, wanted, chosen);
    c->summary.fallback = c->fallback.count;
    return chosen;
}

/* Type of a tensor in a GGUF file; counts why it differs from the wanted one. Norms, biases and position embeddings
 * are f32, as llama.cpp requires. */
static tarn_dtype choose_type(tarn__conversion *c, const char *name, const tarn__weight_rows *rows, bool is_head)
{
    tarn_dtype wanted = c->options.quantize ? c->options.type : rows->from;
    if (rows->shape.rank < 2 || strcmp(name, "position_embd.weight") == 0) {
        c->summary.unquantized++;
        return TARN_F32;
    }
    if (c->mixture)
        return choose_mixed(c, name, rows, is_head);
    /* The head is sensitive: llama.cpp promotes it too. */
    if (c->options.quantize && wanted == TARN_Q4_K && is_head && fits(rows, TARN_Q6_K)) {
        c->summary.promoted++;
        return TARN_Q6_K;
    }
    /* q8_0 where it fits; weights that are quantized already would lose precision in another format. */
    int64_t row = rows->shape.size[rows->shape.rank - 1];
    tarn_dtype chosen = tarn__quant_type_for_row(row, wanted, rows->from);
    tarn__fallback_add(&c->fallback, row, wanted, chosen);
    c->summary.fallback = c->fallback.count;
    return chosen;
}

static int64_t count_of(const tarn_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++)
        count *= shape->size[i];
    return count;
}

/* Bytes before and after are summed here, so that progress can be reported against a known total. */
bool tarn__convert_add_as(tarn__conversion *c, const char *name, const tarn__weight_rows *rows)
{
    char *copy = tarn__list_reserve(&c->job, c->jobs, &c->capacity, sizeof(*c->job)) ? tarn__string_copy(name) : NULL;
    if (!copy)
        return false;
    tarn__convert_job *job = &c->job[c->jobs++];
    *job = (tarn__convert_job){*rows, copy, c};
    int64_t count = count_of(&job->rows.shape);
    if (job->rows.shape.rank > 1 && count > 0)
        job->rows.importance = tarn__importance_of(&c->importance, name, count / job->rows.shape.size[0]);
    c->summary.tensors++;
    c->summary.changed += job->rows.to != job->rows.from;
    c->summary.before += tarn__weight_rows_source_bytes(&job->rows, count);
    c->summary.after += tarn__bytes_of(job->rows.to, count);
    c->all = c->summary.after;
    return true;
}

bool tarn__convert_add(tarn__conversion *c, const char *name, const tarn__weight_rows *rows, bool is_head)
{
    tarn__weight_rows chosen = *rows;
    chosen.to = choose_type(c, name, rows, is_head);
    return tarn__convert_add_as(c, name, &chosen);
}

/* ---- writing GGUF files ------------------------------------------------------------------------------------------ */

bool tarn__convert_write(tarn__output *output, void *ctx)
{
    tarn__convert_job *job = ctx;
    tarn__conversion *c = job->conversion;
    if (!tarn__weight_rows_write(output, &job->rows))
        return false;
    c->done += tarn__bytes_of(job->rows.to, count_of(&job->rows.shape));
    if (c->options.progress)
        c->options.progress(c->done, c->all, job->name, c->options.ctx);
    return true;
}

/* The type of most elements in the new file. */
static tarn_dtype main_type(const tarn__conversion *c)
{
    int64_t elements[TARN_DTYPE_COUNT] = {0};
    tarn_dtype main = TARN_F32;
    for (int i = 0; i < c->jobs; i++)
        elements[c->job[i].rows.to] += count_of(&c->job[i].rows.shape);
    for (int i = 0; i < TARN_DTYPE_COUNT; i++)
        main = elements[i] > elements[main] ? (tarn_dtype)i : main;
    return main;
}

/* The file type is llama.cpp's hint for listings; readers do not depend on it. */
bool tarn__convert_put(tarn__conversion *c, tarn_gguf_writer *writer)
{
    uint32_t type = c->mixture ? c->mixture->file_type : tarn__file_type_of(main_type(c));
    bool has_quantized = false;
    tarn__fallback_log(&c->fallback,
                       c->mixture ? c->mixture->base : c->options.type); /* before the write, which takes a while */
    for (int i = 0; i < c->jobs; i++)
        has_quantized |= tarn__is_quantized(c->job[i].rows.to);
    bool good = tarn_gguf_add_value(writer, FILE_TYPE, TARN_GGUF_U32, &type) &&
                (!has_quantized || tarn_gguf_add_value(writer, QUANT_VERSION, TARN_GGUF_U32, &(uint32_t){2}));
    for (int i = 0; good && i < c->jobs; i++) {
        tarn__convert_job *job = &c->job[i];
        job->rows.name = job->name;
        good = tarn__gguf_add_streamed(writer, job->name, job->rows.to, job->rows.shape, tarn__convert_write, job);
    }
    return good;
}

/* ---- GGUF to GGUF ------------------------------------------------------------------------------------------------ */

/* Name of the head; tied embeddings have none of their own. */
static const char *head_of(const tarn_gguf *file)
{
    return tarn_gguf_find(file, "output.weight") >= 0 ? "output.weight" : "token_embd.weight";
}

bool tarn__convert_unknown(const tarn__conversion *c, const char *name, const char *type)
{
    return tarn__raise(TARN_ERROR_UNSUPPORTED,
                       "%s: '%s': tensor '%.200s' is %s, which is not supported; supported are " TARN__GGUF_SUPPORTED,
                       c->function, c->from, name, type);
}

bool tarn__convert_is_head(const tarn_lm_config *config, const char *name)
{
    return strcmp(name, config->tie_embeddings ? "token_embd.weight" : "output.weight") == 0;
}

/* Sizes that mixtures depend on, of any architecture; 0 where the file does not say. */
static void read_sizes(tarn__conversion *c, const tarn_gguf *file)
{
    static const char *const names[] = {"block_count", "attention.head_count", "attention.head_count_kv"};
    int64_t *sizes[] = {&c->config.layers, &c->config.heads, &c->config.kv_heads};
    size_t length;
    tarn_gguf_value value;
    const char *arch = tarn_gguf_has(file, TARN__GGUF_ARCHITECTURE, &value) && value.type == TARN_GGUF_STRING
                           ? tarn_gguf_string(file, TARN__GGUF_ARCHITECTURE, &length)
                           : NULL;
    for (int i = 0; arch && i < 3; i++) {
        char key[128];
        snprintf(key, sizeof(key), "%.*s.%s", (int)(length < 64 ? length : 64), arch, names[i]);
        bool is_int = tarn_gguf_has(file, key, &value) && (value.type == TARN_GGUF_U32 || value.type == TARN_GGUF_I32);
        if (is_int)
            tarn_gguf_int(file, key, 0, INT32_MAX, sizes[i]);
    }
}

/* Adds every tensor of a GGUF file of any architecture under its name. */
static bool add_all(tarn__conversion *c, const tarn_gguf *file)
{
    tarn_gguf_entry e;
    read_sizes(c, file);
    for (int i = 0; i < tarn_gguf_count(file) && !tarn_failed(); i++) {
        if (!tarn_gguf_info(file, i, &e))
            return false;
        if (e.dtype == TARN_DTYPE_COUNT && !tarn__gguf_iquant(file, i))
            return tarn__convert_unknown(c, e.name, e.dtype_name);
        const tarn__weight_rows rows = {.function = c->function,
                                        .path = c->from,
                                        .elements = tarn__gguf_elements(file, i),
                                        .shape = e.shape,
                                        .from = e.dtype,
                                        .iquant = tarn__gguf_iquant(file, i)};
        if (!tarn__convert_add(c, e.name, &rows, strcmp(e.name, head_of(file)) == 0))
            return false;
    }
    return !tarn_failed();
}

/* The file type and block version are rewritten by tarn__convert_put(). */
bool tarn__convert_copy_metadata(const tarn_gguf *file, const char *but, tarn_gguf_writer *writer)
{
    tarn_gguf_value value;
    bool good = true;
    for (int i = 0; good && i < tarn_gguf_metadata_count(file); i++)
        good = tarn_gguf_metadata_at(file, i, &value) &&
               (strcmp(value.key, FILE_TYPE) == 0 || strcmp(value.key, QUANT_VERSION) == 0 ||
                (but && strncmp(value.key, but, strlen(but)) == 0) || tarn_gguf_add_from(writer, file, i));
    return good;
}

/* Requantizes a file; metadata is copied. */
static bool gguf_to_gguf(tarn__conversion *c)
{
    if (!c->options.quantize)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' and '%s' are both GGUF files; .quantize is required",
                           c->function, c->from, c->to);
    tarn_gguf *file = tarn_gguf_open(c->from);
    tarn_gguf_writer *writer = file ? tarn_gguf_create(c->to) : NULL;
    bool good =
        writer && tarn__convert_copy_metadata(file, NULL, writer) && add_all(c, file) && tarn__convert_put(c, writer);
    if (good)
        good = tarn_gguf_finish(writer);
    else
        tarn_gguf_cancel(writer);
    tarn_gguf_close(file);
    return good;
}

/* ---- entry point ----------------------------------------------------------------------------------------------------
 */

static bool raise_mixture(const tarn__conversion *c)
{
    if (!c->options.quantize)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .mixture is %.64s, but .quantize is not set", c->function,
                           c->options.mixture);
    char names[160] = "";
    for (int i = 0; tarn_convert_mixture_at(i); i++)
        snprintf(names + strlen(names), sizeof(names) - strlen(names), " %s", tarn_convert_mixture_at(i));
    return tarn__raise(TARN_ERROR_ARGUMENT, "%s: unknown .mixture '%.64s'; must be one of%s", c->function,
                       c->options.mixture, names);
}

/* Raises invalid options and an existing target. */
static bool check(const tarn__conversion *c)
{
    if (!c->from || !c->from[0] || !c->to || !c->to[0])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the path %s is missing", c->function,
                           c->from && c->from[0] ? "to write to" : "of the model");
    if (c->options.mixture && (!c->options.quantize || !c->mixture))
        return raise_mixture(c);
    if (c->options.quantize && !c->mixture && !is_type(c->options.type))
        return tarn__raise(TARN_ERROR_DTYPE, "%s: .type is %s; it must be f32, f16, bf16 or a quantized dtype",
                           c->function, tarn_dtype_name(c->options.type));
    if (c->options.quantize && !tarn__ends_with(c->to, ".gguf"))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' must end in \".gguf\": only GGUF files can be quantized",
                           c->function, c->to);
    if (c->options.importance && !c->options.quantize)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .importance is for .quantize, which is not set", c->function);
    if (c->options.importance && c->options.adapter)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: .importance and .adapter exclude each other; merge the adapter first", c->function);
    if (c->options.adapter && !c->options.adapter[0])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the folder of the adapter is empty", c->function);
    if (!c->options.adapter && !tarn__ends_with(c->from, ".gguf") && !tarn__ends_with(c->to, ".gguf"))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: neither '%s' nor '%s' is a GGUF file; one name must end in \".gguf\"", c->function,
                           c->from, c->to);
    if (tarn__ends_with(c->to, ".gguf") && !c->options.replace && tarn__path_exists(c->to))
        return tarn__raise(TARN_ERROR_IO, "%s: '%s' already exists; set .replace (--force) to replace it", c->function,
                           c->to);
    return true;
}

/* Raises an existing model in the target folder, before anything is read. */
static bool check_target(const tarn__conversion *c)
{
    tarn__model_path config, weights;
    if (!tarn__model_path_in(c->function, c->to, "config.json", &config) ||
        !tarn__model_path_in(c->function, c->to, "model.safetensors", &weights))
        return false;
    return c->options.replace || !(tarn__path_exists(config.text) || tarn__path_exists(weights.text)) ||
           tarn__raise(TARN_ERROR_IO, "%s: '%s' already has a model; set .replace (--force) to replace it", c->function,
                       c->to);
}

/* Frees the jobs and their names. */
static void release_jobs(tarn__conversion *c)
{
    for (int i = 0; i < c->jobs; i++)
        tarn__string_free(c->job[i].name);
    tarn__release(c->job, sizeof(*c->job) * (size_t)c->capacity);
}

/* A folder of adapters alone stands for the model that it names, with the adapters. */
static bool resolve_adapters(tarn__conversion *c, tarn__model_path *base)
{
    bool is_model = !c->from || !c->from[0] || c->options.adapter || tarn__ends_with(c->from, ".gguf");
    if (is_model || !tarn__lora_is_folder(c->function, c->from))
        return !tarn_failed();
    c->options.adapter = c->from;
    c->from = base->text;
    return tarn__lora_base_of(c->function, c->options.adapter, base);
}

/* Training may have set another chat template: the tokenizer of the adapters' folder goes with them. */
static bool choose_tokenizer(tarn__conversion *c)
{
    tarn__model_path path;
    c->text = c->from;
    if (c->options.adapter && !tarn__model_path_in(c->function, c->options.adapter, "tokenizer.json", &path))
        return false;
    if (c->options.adapter && tarn__path_exists(path.text))
        c->text = c->options.adapter;
    return true;
}

/* Dispatches by the suffixes of source and target. */
static bool convert(tarn__conversion *c)
{
    if (c->options.adapter)
        return tarn__convert_merged(c);
    if (!tarn__ends_with(c->from, ".gguf"))
        return tarn__convert_from_hf(c);
    return tarn__ends_with(c->to, ".gguf") ? gguf_to_gguf(c) : tarn__convert_to_hf(c);
}

/* Writes to a temporary folder, which replaces the target when it is complete. */
static bool convert_staged(tarn__conversion *c)
{
    tarn__staging staging;
    if (!check_target(c) || !tarn__staging_open(&staging, c->function, c->to))
        return false;
    c->to = staging.temporary;
    if (convert(c))
        return tarn__staging_commit(&staging);
    tarn__staging_discard(&staging);
    return false;
}

/* A scope holds tensors of merged models until everything is written. */
bool tarn_model_convert_sized(const char *from, const char *to, tarn_convert_summary *summary,
                              const tarn_convert_options *options, size_t options_size)
{
    tarn__conversion c = {.function = "model_convert", .from = from, .to = to};
    if (options)
        memcpy(&c.options, options, options_size < sizeof(c.options) ? options_size : sizeof(c.options));
    c.mixture = c.options.mixture ? tarn__mixture_named(c.options.mixture) : NULL;
    tarn__model_path base;
    if (tarn_failed() || !resolve_adapters(&c, &base) || !check(&c) || !choose_tokenizer(&c))
        return false;
    tarn_scope *scope = tarn_scope_open();
    bool good =
        scope &&
        (!c.options.importance || tarn__importance_open(c.function, c.from, c.options.importance, &c.importance)) &&
        (tarn__ends_with(to, ".gguf") ? convert(&c) : convert_staged(&c));
    tarn_scope_close(scope);
    release_jobs(&c);
    tarn__importance_free(&c.importance);
    if (!good)
        return tarn__raise_within(c.function);
    if (summary)
        *summary = c.summary;
    return true;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Checks that the tensors of a conversion are exactly those of the model. */

/* Search for a name. */
typedef struct search {
    const tarn__conversion *conversion;
    bool in_folder;
    const char *name; /* to find; NULL: count all names of the model */
    int known;
} search;

/* True if a tensor of that name was added. */
static bool has_job(const tarn__conversion *c, const char *name)
{
    for (int i = 0; i < c->jobs; i++)
        if (strcmp(c->job[i].name, name) == 0)
            return true;
    return false;
}

/* Visits a folder name of the model; raises if no tensor has it. */
static bool is_there(void *ctx, const char *folder_name)
{
    search *s = ctx;
    char other[TARN__GGUF_NAME_CAPACITY] = "";
    tarn__gguf_name_of(s->conversion->arch, folder_name, other); /* always succeeds */
    s->known++;
    return has_job(s->conversion, s->in_folder ? folder_name : other) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no tensor '%s', which a %s of this configuration has",
                       s->conversion->function, s->conversion->from, s->in_folder ? other : folder_name,
                       s->conversion->config.arch);
}

/* The same; false if it is the name searched for. */
static bool is_other(void *ctx, const char *folder_name)
{
    const search *s = ctx;
    char other[TARN__GGUF_NAME_CAPACITY] = "";
    tarn__gguf_name_of(s->conversion->arch, folder_name, other);
    return strcmp(s->in_folder ? folder_name : other, s->name) != 0;
}

/* Raises a tensor that the model lacks, by its name in the source. Always false. */
static bool raise_unknown(const search *s)
{
    const tarn__conversion *c = s->conversion;
    char source[TARN__GGUF_NAME_CAPACITY] = "";
    (s->in_folder ? tarn__gguf_name_of : tarn__gguf_folder_name_of)(c->arch, s->name, source);
    return tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%s' has an unknown tensor '%s'; a %s of this configuration has none of that name",
                       c->function, c->from, source, s->conversion->config.arch);
}

/* Every name of the model must be found; only if there are more tensors than that, each is searched. */
bool tarn__convert_check_names(const tarn__conversion *c, bool in_folder)
{
    search s = {.conversion = c, .in_folder = in_folder};
    if (!tarn__gguf_each_name(&c->config, is_there, &s))
        return false;
    for (int i = 0; s.known < c->jobs && i < c->jobs; i++) {
        s.name = c->job[i].name;
        if (tarn__gguf_each_name(&c->config, is_other, &s))
            return raise_unknown(&s);
    }
    return true;
}
