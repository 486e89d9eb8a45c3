/* options.c: a run's options, by the table in options.def. Flags of the command, configuration files, the saved record
 * (config.json), bounds and errors are all derived from it.
 *
 * A field of zero bytes means "not given". Options are therefore checked and compared by their bytes, and strings are
 * padded with zeros. A row may have an alias, the option's name in earlier versions: it is read everywhere and never
 * written. */
#include "train/options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number_format.h"
#include "base/os/files.h"
#include "base/xxh64.h"
#include "models/hf/weights.h"

/* One option and its field. */
typedef struct row {
    tarn_option option;
    tarn__task_set tasks; /* to which it applies; with STEP or RUN */
    size_t offset, bytes; /* of its field in tarn_train_options */
} row;

/* Tasks in the table, and where an option applies besides a run. */
enum {
    ALL = TARN__TASKS_ALL,
    CLASSIFY = TARN__TASK_CLASSIFY,
    SAMPLES = TARN__TASKS_SAMPLES,
    LANGUAGE = TARN__TASKS_LANGUAGE,
    CHAT = TARN__TASK_CHAT,
    STEP = TARN__TASKS_ALL + 1,
    RUN = 2 * STEP
};

#define NAMED_ROW(name, alias, field, tasks, type, low, high, default_value, value, resumable, help) \
    { \
        {name, type, low, high, default_value, value, help, resumable, alias, ((tasks)&STEP) != 0}, tasks, \
            offsetof(tarn_train_options, field), sizeof(((tarn_train_options *)0)->field) \
    }
#define RENAMED_ROW(alias, field, tasks, type, low, high, default_value, value, resumable, help) \
    NAMED_ROW(#field, alias, field, tasks, type, low, high, default_value, value, resumable, help)
#define ROW(field, tasks, type, low, high, default_value, value, resumable, help) \
    NAMED_ROW(#field, NULL, field, tasks, type, low, high, default_value, value, resumable, help)
#define MAX_COUNT 1e9 /* steps and epochs */
#define MAX_EXACT_INT \
    9007199254740991.0 /* 2^53 - 1: the largest integer that doubles, and thus JSON readers, hold exactly */

static const row rows[] = {
#include "train/options.def"
};
#define ROWS ((int)(sizeof(rows) / sizeof(rows[0])))
enum { MODEL }; /* index of its row */

int tarn_train_option_count(void)
{
    return tarn_failed() ? -1 : ROWS;
}

bool tarn_train_option(int index, tarn_option *option)
{
    if (tarn_failed())
        return false;
    if (index < 0 || index >= ROWS || !option)
        return tarn__raise(TARN_ERROR_ARGUMENT, "train_option: %s %d; options are numbered from 0 to %d",
                           option ? "unknown option" : "the result is NULL for option", index, ROWS - 1);
    *option = rows[index].option;
    return true;
}

/* ---- setting ----------------------------------------------------------------------------------------------------- */

/* "batch-size" equals "batch_size". */
static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if (*a != *b && !(*a == '_' && *b == '-'))
            return false;
    return *a == *b;
}

/* The row of a name or of an alias; NULL: unknown. */
static const row *find(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (same_name(rows[i].option.name, name) || (rows[i].option.alias && same_name(rows[i].option.alias, name)))
            return &rows[i];
    return NULL;
}

/* Raises an error about a value. Returns false. */
static bool invalid(const char *function, const row *r, const char *text, const char *problem)
{
    return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s: '%.200s' %s", function, r->option.name, text, problem);
}

/* A bound: "0.9999999", "9007199254740991". */
static const char *number_text(double value, char text[32])
{
    snprintf(text, 32, value == (double)(int64_t)value ? "%.0f" : "%.15g", value);
    return text;
}

/* NaN is out of bounds too. */
static bool in_bounds(const char *function, const row *r, const char *text, double value)
{
    char problem[128], low[32], high[32];
    if (value >= r->option.low && value <= r->option.high)
        return true;
    snprintf(problem, sizeof(problem), "is out of range; must be from %s to %s", number_text(r->option.low, low),
             number_text(r->option.high, high));
    return invalid(function, r, text, problem);
}

/* Parses the integer at `from`, a part of `text`; `*end` points after it. No leading blanks and no "+". */
static bool parse_int(const char *function, const row *r, const char *text, const char *from, char **end,
                      int64_t *value)
{
    errno = 0;
    *value = strtoll(from, end, 10);
    if (*end == from || from[0] == ' ' || from[0] == '+')
        return invalid(function, r, text, "is not an integer");
    return in_bounds(function, r, text, errno == ERANGE ? INFINITY : (double)*value);
}

/* The field is unchanged after an error, here and below. */
static bool set_int(const char *function, const row *r, const char *text, int64_t *field)
{
    char *end;
    int64_t value;
    if (!parse_int(function, r, text, text, &end, &value))
        return false;
    if (*end)
        return invalid(function, r, text, "is not an integer");
    *field = value;
    return true;
}

/* The only list is mlp_sizes. */
static bool set_ints(const char *function, const row *r, const char *text, tarn_train_options *options)
{
    int64_t values[TARN_TRAIN_MAX_MLP_SIZES] = {0};
    int count = 0;
    for (const char *at = text;;) {
        char *end;
        if (count == TARN_TRAIN_MAX_MLP_SIZES)
            return invalid(function, r, text, "has too many values; at most 8");
        if (!parse_int(function, r, text, at, &end, &values[count++]))
            return false;
        if (!*end)
            break;
        if (*end != ',')
            return invalid(function, r, text, "is not a list of integers, separated by commas");
        at = end + 1;
    }
    memcpy(options->mlp_sizes, values, sizeof(values));
    options->mlp_size_count = count;
    return true;
}

static bool set_real(const char *function, const row *r, const char *text, double *field)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || text[0] == ' ' || !isfinite(value))
        return invalid(function, r, text, "is not a number");
    if (!in_bounds(function, r, text, value))
        return false;
    *field = value;
    return true;
}

/* True when `word` is one of "sgd|adam|adamw". */
static bool is_one_of(const char *word, const char *words)
{
    size_t length = strlen(word);
    for (const char *at = words; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, word, length) == 0 && (at[length] == '|' || at[length] == 0))
            return true;
    return false;
}

/* "; did you mean 'gpt2'?" for one of the words in "gpt2|lenet", or "". */
static const char *hint(const char *typed, const char *words, char *text, size_t size)
{
    char copy[512], *rest = copy;
    const char *names[64], *suggestion;
    int count = 0;
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *word; count < 64 && (word = strsep(&rest, "|")) != NULL;)
        names[count++] = word;
    suggestion = tarn_suggest(typed, names, count);
    text[0] = 0;
    if (suggestion)
        snprintf(text, size, "; did you mean '%s'?", suggestion);
    return text;
}

/* The present form of a word from earlier versions, or of a delimiter typed as itself; else the word. */
static const char *current_word(const row *r, const char *word)
{
    static const char *const renamed[][3] = {{"recompute", "cheap", "selective"},
                                             {"recompute", "block", "full"},
                                             {"delimiter", ",", "comma"},
                                             {"delimiter", ";", "semicolon"},
                                             {"delimiter", "\t", "tab"}};
    for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++)
        if (strcmp(r->option.name, renamed[i][0]) == 0 && strcmp(word, renamed[i][1]) == 0)
            return renamed[i][2];
    return word;
}

/* Pads with zeros: fields are compared by their bytes. */
static bool set_string(const char *function, const row *r, const char *text, char *field)
{
    char problem[320], suggested[64];
    text = current_word(r, text);
    if (r->option.type == TARN_OPTION_WORD && text[0] && !is_one_of(text, r->option.value)) {
        snprintf(problem, sizeof(problem), "must be one of %s%s", r->option.value,
                 hint(text, r->option.value, suggested, sizeof(suggested)));
        return invalid(function, r, text, problem);
    }
    if (strlen(text) >= r->bytes)
        return invalid(function, r, text, "is too long");
    memset(field, 0, r->bytes);
    memcpy(field, text, strlen(text));
    return true;
}

static bool set_flag(const char *function, const row *r, const char *text, bool *field)
{
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return invalid(function, r, text, "must be true or false");
    *field = text[0] == 't';
    return true;
}

/* The field's type follows from the option's: bool, int64_t, double, char array, or mlp_sizes. */
static bool set(const char *function, const row *r, const char *text, tarn_train_options *options)
{
    void *field = (char *)options + r->offset;
    switch (r->option.type) {
    case TARN_OPTION_FLAG: return set_flag(function, r, text, field);
    case TARN_OPTION_INT: return set_int(function, r, text, field);
    case TARN_OPTION_INTS: return set_ints(function, r, text, options);
    case TARN_OPTION_REAL: return set_real(function, r, text, field);
    default: return set_string(function, r, text, field);
    }
}

/* A model is a name, or the path of a base model to fine-tune. */
static bool set_model(const char *function, const row *r, const char *text, tarn_train_options *options)
{
    bool is_path = strchr(text, '/') || tarn__ends_with(text, ".gguf") || tarn__path_exists(text);
    if (!text[0] || is_one_of(text, r->option.value) || !is_path)
        return set_string(function, r, text, options->model);
    return set(function, find("base"), text, options);
}

static bool unknown_name(const char *function, const char *name)
{
    const char *names[ROWS], *suggestion;
    for (int i = 0; i < ROWS; i++)
        names[i] = rows[i].option.name;
    suggestion = tarn_suggest(name, names, ROWS);
    return tarn__raise(TARN_ERROR_ARGUMENT, "%s: unknown option '%.100s'%s%s%s", function, name,
                       suggestion ? "; did you mean '" : "", suggestion ? suggestion : "", suggestion ? "'?" : "");
}

/* The model is special: its value may be a path, which is the option base. */
static bool set_by_name(const char *function, tarn_train_options *options, const char *name, const char *text)
{
    const row *r = find(name);
    if (r == &rows[MODEL])
        return set_model(function, r, text, options);
    return r ? set(function, r, text, options) : unknown_name(function, name);
}

/* Options of a caller with another version of the header: the fields that both have. */
static tarn_train_options own_copy(const tarn_train_options *options, size_t size)
{
    tarn_train_options own = {0};
    memcpy(&own, options, size < sizeof(own) ? size : sizeof(own));
    return own;
}

bool tarn_train_options_set_sized(tarn_train_options *options, size_t options_size, const char *name, const char *text)
{
    if (tarn_failed())
        return false;
    if (!options || !name || !text)
        return tarn__raise(TARN_ERROR_ARGUMENT, "train_options_set: the %s",
                           !options ? "options are NULL"
                           : !name  ? "name is NULL"
                                    : "text is NULL");
    tarn_train_options own = own_copy(options, options_size);
    if (!set_by_name("train_options_set", &own, name, text))
        return false;
    memcpy(options, &own, options_size < sizeof(own) ? options_size : sizeof(own));
    return true;
}

/* ---- all options ------------------------------------------------------------------------------------------------- */

/* True when a field is not zero. */
static bool is_set(const row *r, const tarn_train_options *options)
{
    const char *field = (const char *)options + r->offset;
    for (size_t i = 0; i < r->bytes; i++)
        if (field[i])
            return true;
    return false;
}

/* Formats a field as it would be typed. */
static void format_value(const row *r, const tarn_train_options *options, char *text, size_t size)
{
    const void *field = (const char *)options + r->offset;
    size_t used = 0;
    switch (r->option.type) {
    case TARN_OPTION_FLAG: snprintf(text, size, "%s", *(const bool *)field ? "true" : "false"); break;
    case TARN_OPTION_INT: snprintf(text, size, "%lld", (long long)*(const int64_t *)field); break;
    case TARN_OPTION_REAL:
        snprintf(text, size, "%s", tarn__number_format(*(const double *)field, (char[TARN__NUMBER_SIZE]){0}));
        break;
    case TARN_OPTION_INTS:
        text[0] = 0;
        for (int i = 0; i < options->mlp_size_count && i < TARN_TRAIN_MAX_MLP_SIZES; i++)
            used +=
                (size_t)snprintf(text + used, size - used, "%s%lld", i ? "," : "", (long long)options->mlp_sizes[i]);
        break;
    default: snprintf(text, size, "%.*s", (int)r->bytes, (const char *)field);
    }
}

/* True when the value is not the default, which with adapters is selective recomputation (complete_memory). */
static bool is_given(const row *r, const tarn_train_options *options)
{
    char text[1100];
    if (r->option.type == TARN_OPTION_INTS)
        return options->mlp_size_count > 0;
    if (!is_set(r, options))
        return false;
    format_value(r, options, text, sizeof(text));
    if (options->lora && (const char *)options + r->offset == options->recompute && strcmp(text, "selective") == 0)
        return false;
    return strcmp(text, r->option.default_value) != 0;
}

bool tarn__train_options_apply(const char *function, const tarn_train_options *options, tarn__task_set task)
{
    static const char *const kinds[] = {[CLASSIFY] = "classifiers",
                                        [SAMPLES] = "classifiers and regressions",
                                        [LANGUAGE] = "language models",
                                        [CHAT] = "chats (FILE.jsonl)",
                                        [CHAT | SAMPLES] = "chats (FILE.jsonl) and tables (FILE.csv)"};
    for (int i = 0; i < ROWS; i++)
        if (!(rows[i].tasks & task) && is_given(&rows[i], options))
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s applies to %s only; the data is '%.200s'", function,
                               rows[i].option.name, kinds[rows[i].tasks & ALL], options->data);
    return true;
}

const char *tarn__train_options_of_run(const tarn_train_options *options)
{
    for (int i = 0; i < ROWS; i++)
        if ((rows[i].tasks & RUN) && is_set(&rows[i], options))
            return rows[i].option.name;
    return NULL;
}

bool tarn__train_option_applies(const char *name, tarn__task_set task)
{
    const row *r = find(name);
    return r && (r->tasks & task);
}

bool tarn__train_options_check(const char *function, const tarn_train_options *options)
{
    if (options->mlp_size_count < 0 || options->mlp_size_count > TARN_TRAIN_MAX_MLP_SIZES)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: mlp_sizes: %d layers; must be from 1 to %d", function,
                           options->mlp_size_count, TARN_TRAIN_MAX_MLP_SIZES);
    for (int i = 0; i < ROWS; i++) {
        /* set into a copy: only the check matters */
        tarn_train_options copy = *options;
        char text[1100];
        if (!is_set(&rows[i], options))
            continue;
        format_value(&rows[i], options, text, sizeof(text));
        if (!set(function, &rows[i], text, &copy))
            return false;
    }
    return true;
}

/* Pretrained weights need a small learning rate, adapters a larger one. */
static void complete_rates(tarn_train_options *o)
{
    if (o->batch_size == 0)
        o->batch_size = o->base[0] ? 16 : 64;
    if (o->lr == 0)
        o->lr = strcmp(o->optimizer, "sgd") == 0 ? 0.05
                : o->finetune[0]                 ? 0.0001
                : !o->base[0]                    ? 0.001
                : o->lora                        ? 0.0002
                                                 : 0.00002;
    if (o->lora && o->lora_alpha == 0)
        o->lora_alpha = 2 * (double)o->lora;
}

/* With adapters alone, activations dominate memory, and selective recomputation costs next to nothing. */
static void complete_memory(tarn_train_options *o)
{
    if (o->lora && !o->recompute[0])
        memcpy(o->recompute, "selective", sizeof("selective"));
}

/* Words of earlier versions that a C program put into the struct. */
static void update_words(tarn_train_options *o)
{
    const row *r = find("recompute");
    const char *word = current_word(r, o->recompute);
    if (word != o->recompute)
        set_string("train_options", r, word, o->recompute);
}

/* Order matters: lr and batch size depend on optimizer, base and adapters, whose defaults come first. */
void tarn__train_options_complete(tarn_train_options *options)
{
    update_words(options);
    complete_memory(options);
    for (int i = 0; i < ROWS; i++)
        if (!is_set(&rows[i], options) && rows[i].option.default_value[0])
            set("train_options", &rows[i], rows[i].option.default_value, options);
    complete_rates(options);
    if (options->lr_gamma == 0 && strcmp(options->schedule, "step") == 0)
        options->lr_gamma = 0.1;
}

bool tarn__train_options_change(const char *function, tarn_train_options *options, const tarn_train_options *given)
{
    tarn_train_options own = *given, *changes = &own;
    update_words(changes);
    for (int i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        if (!is_set(r, changes) ||
            memcmp((char *)options + r->offset, (const char *)changes + r->offset, r->bytes) == 0)
            continue;
        if (!r->option.resumable)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s cannot be changed when a run is resumed; start a new run",
                               function, r->option.name);
        memcpy((char *)options + r->offset, (const char *)changes + r->offset, r->bytes);
    }
    return true;
}

uint64_t tarn__train_options_hash(const tarn_train_options *options)
{
    static const char *const own[] = {"data",   "out",     "base",      "tokenizer",     "val",
                                      "device", "workers", "overwrite", "ignore_memory", "rank_timeout"};
    tarn__xxh64 sum;
    tarn__xxh64_begin(&sum);
    for (int i = 0; i < ROWS; i++) {
        bool is_shared = true;
        for (size_t k = 0; k < sizeof(own) / sizeof(own[0]); k++)
            is_shared = is_shared && strcmp(rows[i].option.name, own[k]) != 0;
        if (is_shared)
            tarn__xxh64_add(&sum, (const char *)options + rows[i].offset, rows[i].bytes);
    }
    return tarn__xxh64_end(&sum);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

bool tarn__train_options_write(const tarn_train_options *options, tarn__json_file *document)
{
    bool good = true;
    for (int i = 0; i < ROWS && good; i++) {
        const row *r = &rows[i];
        const void *field = (const char *)options + r->offset;
        char key[64];
        bool is_number = r->option.type == TARN_OPTION_INT || r->option.type == TARN_OPTION_REAL;
        if (is_number && !r->option.default_value[0] && !is_set(r, options))
            continue; /* not used by this model, and 0 may be out of range */
        snprintf(key, sizeof(key), "train.%s", r->option.name);
        switch (r->option.type) {
        case TARN_OPTION_FLAG: good = tarn__json_file_set_bool(document, key, *(const bool *)field); break;
        case TARN_OPTION_INT: good = tarn__json_file_set_int(document, key, *(const int64_t *)field); break;
        case TARN_OPTION_REAL: good = tarn__json_file_set_real(document, key, *(const double *)field); break;
        case TARN_OPTION_INTS:
            for (int k = 0; k < options->mlp_size_count && good; k++)
                good = tarn__json_file_add_int(document, key, options->mlp_sizes[k]);
            break;
        default: good = tarn__json_file_set_string(document, key, field);
        }
    }
    return good;
}

/* is_given: rows that the file has set. */
typedef struct reader {
    const char *function;
    tarn_train_options *options;
    bool is_given[ROWS];
} reader;

/* Called per member of the JSON object; numbers arrive as strings, with all their digits. */
static bool read_member(const char *name, const char *text, void *ctx)
{
    reader *r = ctx;
    const row *found = find(name);
    if (found && r->is_given[found - rows]) /* "batch-size" and "batch_size", or a name and its alias */
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s is given twice", r->function, found->option.name);
    if (found)
        r->is_given[found - rows] = true;
    return set_by_name(r->function, r->options, name, text);
}

bool tarn__train_options_read(const char *function, tarn_train_options *options, const tarn__json_file *document,
                              const char *key)
{
    reader r = {.function = function, .options = options};
    return tarn__json_file_each(document, key, read_member, &r);
}

bool tarn_train_options_load_sized(tarn_train_options *options, size_t options_size, const char *path)
{
    if (tarn_failed())
        return false;
    if (!options || !path || !path[0])
        return tarn__raise(TARN_ERROR_ARGUMENT, "train_options_load: %s",
                           !options ? "the options are NULL" : "the path is missing");
    tarn__json_file *document = tarn__json_file_open("train_options_load", path);
    if (!document)
        return false;
    tarn_train_options own = own_copy(options, options_size);
    bool good = tarn__train_options_read("train_options_load", &own, document,
                                         tarn__json_file_has(document, "train") ? "train" : "");
    tarn__json_file_free(document);
    if (good)
        memcpy(options, &own, options_size < sizeof(own) ? options_size : sizeof(own));
    return good;
}
