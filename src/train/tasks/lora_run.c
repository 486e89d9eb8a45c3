/* lora_run.c: adapters in a run folder, which PEFT can open, their hash check, and merging.
 *
 * Adapters are the parameters that require a gradient; everything else is frozen. Files carry checksums and are
 * verified when loaded. */
#include <stdio.h>
#include <string.h>
#include <tarn/convert.h>
#include <tarn/lora.h>

#include "base/error.h"
#include "base/os/files.h"
#include "formats/safetensors.h"
#include "models/hf/weights.h"
#include "nn/module.h"
#include "train/tasks/finetune.h"

#define PREFIX "base_model.model." /* before every name in PEFT's files */
#define FROZEN_FILE "frozen.json"

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Context of the walk over a model: `writer` when saving, `file` when loading. */
typedef struct adapter_walk {
    const tarn_module *model;
    tarn_safetensors_writer *writer;
    const tarn_safetensors *file;
    int count;
    bool good;
} adapter_walk;

/* PEFT's name of a parameter. False with an error if it does not fit. */
static bool name_of(const adapter_walk *f, const tarn__parameter *parameter, char *name, size_t size)
{
    const char *own = tarn__name_from(f->model, parameter);
    return (size_t)snprintf(name, size, PREFIX "%s", own) < size ||
           tarn__raise(TARN_ERROR_UNSUPPORTED, "the name '%.40s…' is too long for a file", own);
}

static bool save_one(const tarn__parameter *parameter, void *ctx)
{
    adapter_walk *f = ctx;
    char name[512];
    if (parameter->tensor->requires_grad)
        f->good = name_of(f, parameter, name, sizeof(name)) && tarn_safetensors_add(f->writer, name, parameter->tensor);
    return f->good;
}

/* An atomic write: a failure cancels the file. */
bool tarn__adapters_save(const tarn_trainer *t, const char *path)
{
    adapter_walk f = {.model = t->model, .writer = tarn_safetensors_create(path)};
    f.good =
        f.writer && tarn_safetensors_add_metadata(f.writer, "format", "pt") && tarn_safetensors_add_checksums(f.writer);
    if (f.good)
        tarn__module_walk(t->model, save_one, &f);
    if (f.good)
        return tarn_safetensors_finish(f.writer) || tarn__raise_within("trainer_run");
    tarn_safetensors_cancel(f.writer);
    return tarn__raise_within("trainer_run");
}

static bool load_one(const tarn__parameter *parameter, void *ctx)
{
    adapter_walk *f = ctx;
    char name[512];
    if (!parameter->tensor->requires_grad)
        return true;
    f->good = name_of(f, parameter, name, sizeof(name)) && tarn_safetensors_read_into(f->file, name, parameter->tensor);
    f->count++;
    return f->good;
}

/* Every adapter must be in the file, and every tensor of the file must be an adapter. */
bool tarn__adapters_load(const char *function, tarn_trainer *t, const char *path)
{
    tarn_safetensors *file = tarn_safetensors_open(path);
    adapter_walk f = {.model = t->model, .file = file, .good = file && tarn__safetensors_verify(function, file)};
    tarn_no_grad_open(); /* parameters are written to */
    if (f.good)
        tarn__module_walk(t->model, load_one, &f);
    tarn_no_grad_close();
    if (f.good && f.count != tarn_safetensors_count(file))
        f.good = tarn__raise(TARN_ERROR_FORMAT, "'%s' has %d tensors, but the adapters of this run have %d", path,
                             tarn_safetensors_count(file), f.count);
    tarn_safetensors_close(file);
    return f.good || tarn__raise_within(function);
}

/* ---- frozen weights ---------------------------------------------------------------------------------------------- */

/* Runs with adapters only: without adapters all weights are trained. */
bool tarn__frozen_record(const char *function, tarn_trainer *t)
{
    tarn__path path, state_path;
    tarn__frozen_hash before = {0};
    const char *folder = t->options.out;
    if (!t->options.lora)
        return true;
    if (!tarn__frozen_hash_compute(function, t->model, &t->frozen))
        return false;
    if (!t->is_resumed)
        return true;
    if (!tarn__path_exists(tarn__path_in(folder, FROZEN_FILE, &path)) &&
        !tarn__path_exists(tarn__path_in(folder, "trainer.json", &state_path)) &&
        !tarn__path_exists(tarn__path_in(folder, "trainer.json.next", &state_path)))
        return true; /* stopped before its first checkpoint */
    bool good = tarn__frozen_hash_read(function, path.text, &before) &&
                tarn__frozen_hash_check(function, &t->frozen, &before, t->options.base, path.text);
    tarn__frozen_hash_free(&before);
    return good;
}

bool tarn__adapters_write_files(const tarn_trainer *t)
{
    tarn__path path;
    return !t->options.lora ||
           (tarn__frozen_hash_write("trainer_run", &t->frozen, tarn__path_in(t->options.out, FROZEN_FILE, &path)) &&
            (tarn_lora_save(t->model, t->options.out, t->options.base) || tarn__raise_within("trainer_run")));
}

/* Costs one pass over the base; called at the end of a run. */
bool tarn__frozen_verify(const char *function, const tarn_trainer *t)
{
    tarn__frozen_hash now = {0};
    if (!t->frozen.count)
        return true;
    bool good =
        tarn__frozen_hash_compute(function, t->model, &now) &&
        tarn__frozen_hash_check(function, &now, &t->frozen, t->options.base, "the model at the start of the run");
    tarn__frozen_hash_free(&now);
    return good;
}

/* ---- merged ------------------------------------------------------------------------------------------------------ */

/* GGUF stores BPE and SentencePiece tokenizers only. */
bool tarn__adapters_check_merge(const char *function, const tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    bool is_gguf = strcmp(o->merge, "gguf") == 0;
    if (is_gguf && o->add_tokens[0] && tarn__ends_with(o->base, ".gguf"))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: merge is gguf, but tokens cannot be added to the tokenizer of the GGUF file '%s'; use "
                           "merge folder",
                           function, o->base);
    const char *tokenizer = tarn_tokenizer_kind(t->corpus.tokenizer);
    return !is_gguf || strcmp(tokenizer, "bpe") == 0 || strcmp(tokenizer, "spm") == 0 ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: merge is gguf, but GGUF does not support a tokenizer of %s; use merge folder", function,
                       tokenizer);
}

/* Merges from the files of base and best adapters, not from the model in memory, which has the last weights and may be
 * quantized. */
bool tarn__adapters_merge(const tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    tarn__path best, to;
    if (!o->merge[0])
        return true;
    tarn__path_in(o->out, strcmp(o->merge, "gguf") == 0 ? "merged.gguf" : "merged", &to);
    return tarn_model_convert(
               o->base, to.text, NULL,
               &(tarn_convert_options){.replace = true, .adapter = tarn__path_in(o->out, "best", &best)}) ||
           tarn__raise_within("trainer_run");
}
