/* hub_names.c: models by their name on a hub, ORG/NAME, where the commands take a path.
 *
 * A path that exists is one; else a model in the cache is replaced by its path there, before the command sees it. What
 * is not in the cache stays as it is, and the library's error says what to do. */
#include <string.h>

#include "cli/cli.h"
#include "hub/hub.h"

/* Commands whose first argument is a model; all arguments of `serve` are. */
#define OPENS_MODEL \
    (TARN__EVAL | TARN__PREDICT | TARN__OPENS_LM | TARN__BENCH_SERVE | TARN__INSPECT | TARN__QUANTIZE | TARN__CONVERT)

enum { MAX_NAMES = TARN__MODELS_MAX + 5 }; /* arguments, and five options */

/* The path of a model in the cache, in static storage; else `name`. */
static const char *path_of(const char *name)
{
    static char paths[MAX_NAMES][TARN__HUB_PATH];
    static int used;
    return name && used < MAX_NAMES && tarn__hub_open(name, paths[used]) ? paths[used++] : name;
}

static bool is_gguf(const char *path)
{
    size_t length = strlen(path);
    return length > 5 && strcmp(path + length - 5, ".gguf") == 0;
}

/* The same for an argument; its NAME for a folder, else NULL. */
static const char *replace_word(char **word)
{
    const char *path = path_of(*word);
    if (path == *word)
        return NULL;
    char *name = strchr(*word, '/') + 1;
    name[strcspn(name, "@/")] = 0;
    *word = (char *)(uintptr_t)path;
    return is_gguf(path) ? NULL : name;
}

bool tarn__hub_words(tarn__command command, int count, char **words, const char *names[TARN__MODELS_MAX])
{
    int models = !(command & OPENS_MODEL) ? 0 : command == TARN__SERVE ? TARN__MODELS_MAX : 1;
    for (int i = 0; i < models; i++)
        names[i] = NULL;
    for (int i = 0; i < models && i < count && words[i][0] != '-' && !tarn_failed(); i++)
        names[i] = replace_word(&words[i]);
    return !tarn_failed();
}

/* The same for a string that the options hold. */
static void replace(char *name, size_t size)
{
    char path[TARN__HUB_PATH];
    if (!tarn_failed() && name[0] && tarn__hub_open(name, path)) {
        if (strlen(path) < size)
            memcpy(name, path, strlen(path) + 1);
        else
            tarn_set_error(TARN_ERROR_ARGUMENT, "the path of '%s' in the cache of models has more than %d bytes", name,
                           (int)size - 1);
    }
}

bool tarn__hub_options(tarn__options *options)
{
    const char **const names[] = {&options->model, &options->adapter, &options->convert_base, &options->tokenizer,
                                  &options->draft_model};
    _Static_assert(sizeof(names) / sizeof(names[0]) + TARN__MODELS_MAX <= MAX_NAMES, "MAX_NAMES is too small");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !tarn_failed(); i++)
        *names[i] = path_of(*names[i]);
    replace(options->train.base, sizeof(options->train.base));
    replace(options->train.tokenizer, sizeof(options->train.tokenizer));
    return !tarn_failed();
}
