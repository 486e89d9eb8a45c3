/* run_weights.c: finds the weights of a run: those of the best evaluation, or the last ones. A folder that is not a run
 * is its own weights. Only JSON files are read. */
#include "train/run_folder.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/os/files.h"
#include "models/hf/weights.h"

/* Only a run's config.json has the version of its format and the training options. */
static bool read_config(const char *function, const char *folder, tarn_run_weights *w)
{
    tarn__path path;
    if (!tarn__path_exists(tarn__path_in(folder, "config.json", &path)))
        return true;
    tarn__json_file *document = tarn__json_file_open(function, path.text);
    if (!document)
        return false;
    w->is_run = tarn__json_file_has(document, "format") && tarn__json_file_has(document, "train");
    bool has_type = w->is_run && tarn__json_file_kind(document, "train.quantize") == TARN__MEMBER_STRING;
    const char *type = has_type ? tarn__json_file_string(document, "train.quantize") : "";
    w->quantize = tarn__quant_type_named(type);
    if (w->is_run && tarn__json_file_has(document, "train.ema") &&
        !tarn__json_file_real(document, "train.ema", &w->ema))
        w->ema = 0;
    tarn__json_file_free(document);
    return !tarn_failed();
}

/* Step of the weights; 0 if trainer.json does not have it. Errors are cleared. */
static int64_t step_of(const char *folder, bool is_best)
{
    tarn__path path;
    tarn__error_record none;
    int64_t step = 0;
    tarn__json_file *document = tarn__json_file_open("run_open", tarn__path_in(folder, "trainer.json", &path));
    if (!document || !tarn__json_file_int(document, is_best ? "best.step" : "step", 0, INT64_MAX, &step))
        step = 0;
    tarn__json_file_free(document);
    tarn__error_save(&none);
    return step;
}

static bool exists(const char *folder, const char *name)
{
    tarn__path path;
    return tarn__path_exists(tarn__path_in(folder, name, &path));
}

/* Best weights of a language model (or its adapters) are in a folder of their own, of a classifier in a file. Without
 * them the last weights are used. */
static void find_best(const char *folder, tarn_run_weights *w)
{
    tarn__path best;
    tarn__path_in(folder, "best", &best);
    if (exists(best.text, "config.json") || exists(best.text, "adapter_config.json"))
        snprintf(w->path, sizeof(w->path), "%s", best.text);
    else if (!exists(folder, "best.safetensors"))
        w->checkpoint = TARN_RUN_LAST;
}

bool tarn__run_weights_find(const char *function, const char *folder, tarn_run_checkpoint checkpoint,
                            tarn_run_weights *w)
{
    *w = (tarn_run_weights){.checkpoint = checkpoint, .quantize = TARN_F32};
    if (strlen(folder) >= sizeof(((tarn_train_options *)NULL)->out))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the folder name is too long", function);
    snprintf(w->path, sizeof(w->path), "%s", folder);
    if (!read_config(function, folder, w))
        return false;
    if (!w->is_run)
        return true;
    if (checkpoint == TARN_RUN_BEST)
        find_best(folder, w);
    if (w->checkpoint == TARN_RUN_LAST)
        w->ema = 0; /* the last weights are the run's own */
    w->step = step_of(folder, w->checkpoint == TARN_RUN_BEST);
    return true;
}

bool tarn_run_weights_find(const char *folder, tarn_run_checkpoint checkpoint, tarn_run_weights *weights)
{
    const char *function = "run_weights_find";
    if (tarn_failed())
        return false;
    if (!folder || !folder[0] || !weights)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function,
                           !weights ? "the result is NULL"
                           : folder ? "the folder name is empty"
                                    : "the folder is NULL");
    if (checkpoint != TARN_RUN_BEST && checkpoint != TARN_RUN_LAST)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the checkpoint is %d; it must be TARN_RUN_BEST or TARN_RUN_LAST",
                           function, (int)checkpoint);
    return tarn__run_weights_find(function, folder, checkpoint, weights);
}
