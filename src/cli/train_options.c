/* train_options.c: options of a training run as flags, from the library's table (tarn_train_option()).
 *
 * Names, bounds, defaults and help are the library's, so that a new option needs no change here: "batch_size" is
 * --batch-size. `bench train` has the subset that matters for a step.
 *
 * Values are parsed by the library, too, so a flag and a member of a configuration have the same bounds and the same
 * messages. Flags override the configuration, since it is loaded when the words are read. */
#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* "batch_size" → "batch-size" */
static const char *flag_of(const char *name, char *flag, size_t size)
{
    snprintf(flag, size, "%s", name);
    for (char *c = flag; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return flag;
}

/* True when a command has an option of a run: `bench train` measures a step, which has no data, no end and no
 * folder. */
static bool has(tarn__command command, const tarn_option *option)
{
    return command == TARN__TRAIN || (command == TARN__BENCH_TRAIN && option->in_bench);
}

static bool is_flag(const char *name, const char *typed, size_t length)
{
    char flag[32];
    flag_of(name, flag, sizeof(flag));
    return strlen(flag) == length && memcmp(flag, typed, length) == 0;
}

/* An alias is found, but --help and suggestions show present names alone. False also for an option of a run that
 * this command lacks: `bench train` has no --data. */
bool tarn__train_option_find(tarn__command command, const char *flag, size_t length, tarn_option *option)
{
    for (int i = 0; i < tarn_train_option_count(); i++) {
        if (!tarn_train_option(i, option))
            return false;
        if (is_flag(option->name, flag, length) || (option->alias && is_flag(option->alias, flag, length)))
            return has(command, option);
    }
    return false;
}

int tarn__train_option_names(tarn__command command, const char **names)
{
    /* the names live as long as the program, as those of the table do */
    static char flags[TARN__MAX_TRAIN_OPTIONS][32];
    int count = 0;
    tarn_option option;
    for (int i = 0; i < tarn_train_option_count() && count < TARN__MAX_TRAIN_OPTIONS && tarn_train_option(i, &option);
         i++)
        if (has(command, &option)) {
            names[count] = flag_of(option.name, flags[count], sizeof(flags[count]));
            count++;
        }
    return count;
}

/* The library's message without its function; keys stay as in the file. */
static const char *sentence(const char *function)
{
    const char *at = strstr(tarn_error(), function);
    return at ? at + strlen(function) : tarn_error();
}

/* 0 often means the default, so a resumed run cannot be set to it: noted for an error in `tarn train`. */
static bool is_zero(const tarn_option *option, const char *text)
{
    return (option->type == TARN_OPTION_INT || option->type == TARN_OPTION_REAL) && strtod(text, NULL) == 0;
}

int tarn__train_option_set(const char *command_name, const tarn_option *option, const char *text,
                           tarn__options *options)
{
    char problem[TARN__MESSAGE_MAX];
    if (tarn_train_options_set(&options->train, option->name, text)) {
        options->zero = is_zero(option, text) ? option->name : options->zero;
        return TARN__DONE;
    }
    fprintf(stderr, "tarn %s: %s\n", command_name, tarn__user_error(command_name, problem, sizeof(problem)));
    return TARN__MISUSED;
}

int tarn__train_options_file(const char *path, tarn__options *options)
{
    if (tarn_train_options_load(&options->train, path))
        return TARN__DONE;
    /* a build without JSON is no misuse; a wrong configuration is */
    int status = tarn_error_code() == TARN_ERROR_UNSUPPORTED ? TARN__FAILED : TARN__MISUSED;
    const char *problem = sentence("train_options_load: ");
    bool names_it = strstr(problem, tarn__escaped(path)) != NULL;
    fprintf(stderr, "tarn train: %s%s%s\n", names_it ? "" : tarn__escaped(path), names_it ? "" : ": ", problem);
    tarn_clear_error();
    return status;
}

/* A bound: "0.9999999", "9007199254740991". */
static const char *number_text(double value, char text[32])
{
    snprintf(text, 32, value == (double)(int64_t)value ? "%.0f" : "%.15g", value);
    return text;
}

void tarn__train_options_help(tarn__command command)
{
    tarn_option option;
    for (int i = 0; i < tarn_train_option_count() && tarn_train_option(i, &option); i++) {
        char flag[32], left[512], low[32], high[32], bounds[96] = "";
        bool has_default = option.default_value[0] && option.type != TARN_OPTION_FLAG;
        if (!has(command, &option))
            continue;
        snprintf(left, sizeof(left), "--%s%s%s", flag_of(option.name, flag, sizeof(flag)), option.value ? " " : "",
                 option.value ? option.value : "");
        if (option.type != TARN_OPTION_STRING && option.type != TARN_OPTION_WORD && option.type != TARN_OPTION_FLAG)
            snprintf(bounds, sizeof(bounds), ", from %s to %s", number_text(option.low, low),
                     number_text(option.high, high));
        tarn__print_option(left, option.help, bounds, has_default ? option.default_value : "");
    }
}
