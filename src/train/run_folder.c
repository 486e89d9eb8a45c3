/* run_folder.c: the folder of a run: its default name, replacing it, and removing its subfolders.
 *
 * Only files that runs write are ever removed, name by name: a folder with anything else is rejected before anything
 * changes. A run that is replaced is renamed first, as a backup, and removed when the new one has its first checkpoint.
 */
#include "train/run_folder.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/os/files.h"
#include "models/hf/weights.h"

#define DROPPED ".dropped" /* suffix of a folder that is being removed */
#define REPLACED ".replaced"

enum { MAX_NAMES = 100000 };

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Appends a string, with "-" for characters that are unsafe in file names, up to a limit. */
static void append_word(char *name, size_t size, const char *from, size_t length)
{
    size_t used = strlen(name);
    for (size_t i = 0; i < length && used + 1 < size; i++) {
        unsigned char c = (unsigned char)from[i];
        name[used++] = isalnum(c) || c == '.' || c == '_' ? (char)c : '-';
    }
    name[used] = 0;
}

/* "text:books/input.txt" → "input", "digits:500" → "digits", "npy:x.npy,y.npy" → "x", "chats.jsonl" → "chats". */
static void data_name(const char *data, char *name, size_t size)
{
    const char *colon = strchr(data, ':'), *file = colon ? colon + 1 : data;
    static const char *const sets[] = {"digits", "mnist", "cifar10"};
    name[0] = 0;
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        if (strncmp(data, sets[i], strlen(sets[i])) == 0 && (!data[strlen(sets[i])] || data[strlen(sets[i])] == ':')) {
            append_word(name, size, sets[i], strlen(sets[i]));
            return;
        }
    size_t length = strcspn(file, ",");
    while (length > 1 && file[length - 1] == '/')
        length--;
    for (size_t i = 0; i < length; i++)
        if (file[i] == '/' && i + 1 < length) {
            file += i + 1;
            length -= i + 1;
            i = (size_t)-1;
        }
    const char *dot = memchr(file, '.', length);
    append_word(name, size, file, dot && dot > file ? (size_t)(dot - file) : length);
}

/* Language model: layers x hidden size x context; classifier: shape of a sample. */
static void shape_name(const tarn_trainer *t, char *shape, size_t size)
{
    size_t used = 0;
    if (t->options.layers)
        used = (size_t)snprintf(shape, size, "%" PRId64 "x%" PRId64 "x", t->options.layers, t->options.hidden_size);
    for (int i = 0; i < t->data_spec.input.rank; i++)
        used += (size_t)snprintf(shape + used, size - used, "%s%" PRId64, i ? "x" : "", t->data_spec.input.size[i]);
}

/* runs/lenet-digits-1x28x28-cuda-0, runs/gpt2-input-4x128x64-cpu-2 */
void tarn__run_folder_name(tarn_trainer *t)
{
    char device[sizeof(t->options.device)] = "", shape[80], data[48], adapters[32] = "", name[512];
    append_word(device, sizeof(device), t->options.device, strlen(t->options.device));
    data_name(t->options.data, data, sizeof(data));
    shape_name(t, shape, sizeof(shape));
    if (t->options.lora)
        snprintf(adapters, sizeof(adapters), "-lora%" PRId64, t->options.lora);
    snprintf(name, sizeof(name), "runs/%s%s-%s-%s-%s", t->options.model, adapters, data, shape, device);
    snprintf(t->options.out, sizeof(t->options.out), "%s", name);
    for (int i = 2; !t->options.overwrite && tarn__path_exists(t->options.out) && i < MAX_NAMES; i++)
        snprintf(t->options.out, sizeof(t->options.out), "%s-%d", name, i);
}

/* ---- files of a run ---------------------------------------------------------------------------------------------- */

static bool is_numbered(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 && name[length] &&
           strspn(name + length, "0123456789") == strlen(name + length);
}

/* Also temporary names of atomic writes: ".next", ".new", ".tmp". */
static bool is_run_file(const char *name)
{
    static const char *const names[] = {"config.json",
                                        "model.safetensors",
                                        "best.safetensors",
                                        "optimizer.safetensors",
                                        "ema.safetensors",
                                        "trainer.json",
                                        "metrics.jsonl",
                                        "samples.jsonl",
                                        "report.html",
                                        "profile.json",
                                        "trace.json",
                                        "frozen.json",
                                        "adapter_config.json",
                                        "adapter_model.safetensors",
                                        "tokenizer.json",
                                        "tokenizer.model",
                                        "tokenizer_config.json",
                                        "merged.gguf",
                                        "special_tokens_map.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "added_tokens.json",
                                        "chat_template.jinja",
                                        "generation_config.json"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *end = name + strlen(names[i]);
        if (strncmp(name, names[i], strlen(names[i])) == 0 &&
            (!end[0] || strcmp(end, ".next") == 0 || strcmp(end, ".new") == 0 ||
             (end[0] == '.' && tarn__ends_with(end, ".tmp"))))
            return true;
    }
    return strncmp(name, "events.out.tfevents.", strlen("events.out.tfevents.")) == 0;
}

/* A folder that a killed process was writing or removing. */
static bool is_leftover(const char *name)
{
    return tarn__ends_with(name, DROPPED) || tarn__ends_with(name, TARN__RUN_FOLDER_NEW);
}

static bool is_run_folder(const char *name)
{
    char own[64];
    size_t length = is_leftover(name) ? (size_t)(strrchr(name, '.') - name) : strlen(name);
    snprintf(own, sizeof(own), "%.*s", (int)length, name);
    return strcmp(own, "best") == 0 || strcmp(own, "merged") == 0 || is_numbered(own, "step-");
}

/* ---- checks before replacing ------------------------------------------------------------------------------------- */

typedef struct walk_context {
    const char *function, *path;
    bool is_subfolder; /* in a folder of a run's */
} walk_context;

/* Subfolders are checked one level deep: runs nest no further. */
static bool check_entry(const char *name, bool is_folder, void *ctx)
{
    const walk_context *l = ctx;
    bool is_known = is_folder ? !l->is_subfolder && is_run_folder(name) : is_run_file(name);
    if (!is_known)
        return tarn__raise(TARN_ERROR_IO,
                           "%s: '%s/%.200s' is not a file of a run; .overwrite removes files of a run only; move it, "
                           "or choose another folder",
                           l->function, l->path, name);
    if (!is_folder)
        return true;
    tarn__path below;
    tarn__path_in(l->path, name, &below);
    return tarn__folder_each(l->function, below.text, check_entry, &(walk_context){l->function, below.text, true});
}

/* True if config.json is that of a run. Errors are cleared. */
static bool is_run(const char *function, const char *folder)
{
    tarn_train_options options;
    tarn__data_spec data_spec;
    tarn__error_record none;
    bool is = tarn__config_read(function, folder, &options, &data_spec);
    tarn__data_spec_free(&data_spec);
    tarn__error_save(&none);
    return is;
}

/* Files that the new run reads must not be removed with the old one. */
static bool check_needed(const char *function, const tarn_trainer *t)
{
    const char *const needed[] = {t->options.base, t->options.tokenizer, t->options.val};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (needed[i][0] && tarn__path_is_within(needed[i], t->options.out))
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: .overwrite would remove '%s', which the new run reads; choose another folder",
                               function, needed[i]);
    return true;
}

bool tarn__run_folder_check(const char *function, tarn_trainer *t)
{
    const char *folder = t->options.out;
    bool overwrites = t->options.overwrite;
    t->options.overwrite = false; /* not stored in config.json: a repeated command must ask for it again */
    if (!tarn__path_exists(folder))
        return true;
    if (!overwrites)
        return tarn__raise(
            TARN_ERROR_IO,
            "%s: '%s' already exists; choose another folder, resume the run in it, or replace it with .overwrite",
            function, folder);
    if (!is_run(function, folder))
        return tarn__raise(
            TARN_ERROR_IO,
            "%s: '%s' is not a run folder (it has no config.json of a run); .overwrite replaces run folders only",
            function, folder);
    t->will_overwrite = true;
    return tarn__folder_each(function, folder, check_entry, &(walk_context){function, folder, false}) &&
           check_needed(function, t) && (t->is_dry_run || tarn__folder_lock(&t->folder_lock, function, folder));
}

/* ---- removing ---------------------------------------------------------------------------------------------------- */

static bool remove_entry(const char *name, bool is_folder, void *ctx)
{
    const walk_context *l = ctx;
    tarn__path path;
    tarn__path_in(l->path, name, &path);
    if (is_folder && !l->is_subfolder && is_run_folder(name)) {
        tarn__folder_each(l->function, path.text, remove_entry, &(walk_context){l->function, path.text, true});
        tarn__folder_remove(path.text);
    } else if (!is_folder && is_run_file(name)) {
        tarn__file_remove(path.text);
    }
    return true;
}

/* Works while an error is pending; files that cannot be removed stay. */
static void remove_all(const char *path, bool is_subfolder)
{
    tarn__error_record pending;
    tarn__error_save(&pending);
    tarn__folder_each("trainer_run", path, remove_entry, &(walk_context){"trainer_run", path, is_subfolder});
    tarn__folder_remove(path);
    tarn_clear_error();
    tarn__error_restore(&pending);
}

static const char *backup_name(const tarn_trainer *t, tarn__path *to)
{
    snprintf(to->text, sizeof(to->text), "%s" REPLACED, t->options.out);
    for (int i = 2; !t->has_backup && tarn__path_exists(to->text) && i < MAX_NAMES; i++)
        snprintf(to->text, sizeof(to->text), "%s" REPLACED "-%d", t->options.out, i);
    return to->text;
}

bool tarn__run_folder_back_up(const char *function, tarn_trainer *t)
{
    if (!t->will_overwrite)
        return true;
    tarn__path to;
    if (!tarn__file_rename(function, t->options.out, backup_name(t, &to)))
        return false;
    snprintf(t->backup_path, sizeof(t->backup_path), "%s", to.text);
    t->will_overwrite = false;
    t->has_backup = true;
    tarn__folder_unlock(&t->folder_lock); /* it was the old folder's */
    return true;
}

void tarn__run_folder_remove_backup(tarn_trainer *t)
{
    if (t->has_backup)
        remove_all(t->backup_path, false);
    t->has_backup = false;
}

void tarn__run_folder_restore_backup(tarn_trainer *t)
{
    tarn__error_record pending;
    if (!t->has_backup)
        return;
    tarn__folder_unlock(&t->folder_lock);
    remove_all(t->options.out, false);
    tarn__error_save(&pending);
    if (tarn__file_rename("trainer_run", t->backup_path, t->options.out)) {
        t->has_backup = t->is_resumed = false;
        t->will_overwrite = true;
    }
    tarn_clear_error();
    tarn__error_restore(&pending);
}

/* ---- subfolders -------------------------------------------------------------------------------------------------- */

void tarn__run_folder_drop(const char *folder, const char *name)
{
    tarn__path from, to;
    tarn__error_record none;
    char dropped[80];
    snprintf(dropped, sizeof(dropped), "%s" DROPPED, name);
    if (!tarn__path_exists(tarn__path_in(folder, name, &from)))
        return;
    if (tarn__path_exists(tarn__path_in(folder, dropped, &to)))
        remove_all(to.text, true);
    if (tarn__file_rename("trainer_run", from.text, to.text))
        remove_all(to.text, true);
    tarn__error_save(&none);
}

static bool drop_leftover(const char *name, bool is_folder, void *ctx)
{
    tarn__path path;
    if (is_folder && is_leftover(name) && is_run_folder(name))
        remove_all(tarn__path_in(ctx, name, &path), true);
    return true;
}

void tarn__run_folder_drop_leftovers(const char *folder)
{
    tarn__error_record pending, none;
    tarn__error_save(&pending);
    tarn__folder_each("trainer_run", folder, drop_leftover, (void *)folder);
    tarn__error_save(&none);
    tarn__error_restore(&pending);
}
