/* run_config.c: config.json of a run.
 *
 * config.json has the model (for a language model also the keys of transformers), all options, the data spec and a
 * checksum. It is an atomic write; a run needs nothing else to create its model without weights. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "train/data/data_source.h"
#include "train/tasks/task.h"

#define FORMAT 1 /* of config.json */

const char *tarn__path_in(const char *folder, const char *name, tarn__path *path)
{
    snprintf(path->text, sizeof(path->text), "%s/%s", folder, name);
    return path->text;
}

bool tarn__config_write(const char *function, const tarn_trainer *t)
{
    tarn__path path;
    tarn__json_file *document = tarn__json_file_new(function);
    bool good = document && tarn__json_file_set_int(document, "format", FORMAT) &&
                tarn__json_file_add_checksum(document) &&
                tarn__json_file_set_string(document, "tarn", tarn_version()) &&
                t->task->write_model(function, t, document) && tarn__train_options_write(&t->options, document) &&
                tarn__data_paths_write(document) && tarn__data_spec_write(&t->data_spec, document) &&
                tarn__json_file_save(document, tarn__path_in(t->options.out, "config.json", &path));
    tarn__json_file_free(document);
    return good;
}

/* Earlier versions wrote no checksum, and a user who edits the file removes it. */
bool tarn__config_verify(const tarn__json_file *document)
{
    return !tarn__json_file_has(document, "checksum") ||
           tarn__json_file_verify(document,
                                  "restore the file from a copy, or remove its line \"checksum\" if it was edited");
}

bool tarn__config_read(const char *function, const char *folder, tarn_train_options *options,
                       tarn__data_spec *data_spec)
{
    tarn__path path;
    int64_t format;
    *options = (tarn_train_options){0};
    *data_spec = (tarn__data_spec){0};
    tarn__json_file *document = tarn__json_file_open(function, tarn__path_in(folder, "config.json", &path));
    if (document && !tarn__json_file_has(document, "format") && tarn__json_file_has(document, "model_type"))
        tarn__raise(TARN_ERROR_FORMAT,
                    "%s: '%s' is a model without training state; resume the folder of its run, or a numbered "
                    "checkpoint (step-N)",
                    function, folder);
    bool good = document && tarn__json_file_int(document, "format", FORMAT, FORMAT, &format) &&
                tarn__train_options_read(function, options, document, "train") &&
                tarn__data_spec_read(data_spec, document) && tarn__config_verify(document) &&
                tarn__data_paths_read(document, options);
    tarn__json_file_free(document);
    tarn__train_options_complete(options);
    if (good && !options->model[0])
        good = tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no model name", function, path.text);
    snprintf(options->out, sizeof(options->out), "%s", folder);
    return good;
}
