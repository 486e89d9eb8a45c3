/* option_values.c: values of options, parsed and checked by their row of the table.
 *
 * A wrong value is reported on standard error: the option as typed, the value, the problem.
 *
 * Values go to the field of tarn__options that the row names by its offset; the type of the row is the type of the
 * field. Strings are borrowed from the arguments. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/options.h"

/* Prints the message of a wrong value: option as typed, value, problem. */
static int invalid(const char *command, const tarn__option_row *row, const char *text, const char *problem)
{
    fprintf(stderr, "tarn %s: --%s: '%s' %s\n", command, row->name, tarn__escaped(text), problem);
    return TARN__MISUSED;
}

/* Bytes of the unit after a number; 0: not a unit. */
static int64_t unit_of(const char *text)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } units[] = {{"", 1}, {"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(text, units[i].name) == 0)
            return units[i].bytes;
    return 0;
}

/* Overflow is checked before the multiplication by the unit. "64MiB" is 67108864. strtoll() skips leading space,
 * which is refused. */
static int read_number(const char *command, const tarn__option_row *row, const char *text, int64_t *number)
{
    char *end, problem[96];
    errno = 0;
    long long value = strtoll(text, &end, 10);
    /* a word in place of a size: those of a model's tensors */
    if (row->type == TARN__OPT_BYTES && strcmp(text, "model") == 0) {
        *number = TARN__MODEL_SIZE;
        return TARN__DONE;
    }
    int64_t unit = end == text || isspace((unsigned char)text[0]) ? 0
                   : row->type == TARN__OPT_BYTES                 ? unit_of(end)
                                                                  : *end == 0;
    if (unit == 0)
        return invalid(command, row, text,
                       row->type == TARN__OPT_BYTES ? "is not a size; expected 4096, 4KiB, 64MiB or model"
                                                    : "is not an integer");
    if (errno == ERANGE || value > row->high / unit || value * unit < row->low) {
        snprintf(problem, sizeof(problem), "is out of range; must be from %lld to %lld", (long long)row->low,
                 (long long)row->high);
        return invalid(command, row, text, problem);
    }
    *number = value * unit;
    return TARN__DONE;
}

/* NaN and infinity are rejected, though strtod() reads them. TARN__OPT_ABOVE leaves the lower bound itself out: a
 * rate of 0 has no meaning. */
static int read_real(const char *command, const tarn__option_row *row, const char *text, double *place)
{
    char *end, problem[96];
    double value = strtod(text, &end);
    if (end == text || *end || text[0] == ' ' || !isfinite(value))
        return invalid(command, row, text, "is not a number");
    bool is_low = row->type == TARN__OPT_ABOVE && value == (double)row->low;
    snprintf(problem, sizeof(problem),
             row->type == TARN__OPT_ABOVE ? "is out of range; must be above %lld and at most %lld"
                                          : "is out of range; must be from %lld to %lld",
             (long long)row->low, (long long)row->high);
    if (is_low || value < (double)row->low || value > (double)row->high)
        return invalid(command, row, text, problem);
    *place = value;
    return TARN__DONE;
}

const char *tarn__element_name(tarn__element element)
{
    return element.tf32 ? "tf32" : tarn_dtype_name(element.dtype);
}

/* tf32 is accepted only where several element types are. */
static int read_element(const char *command, const tarn__option_row *row, const char *text, tarn__element *element)
{
    static const tarn__element elements[] = {
        {TARN_F32, false}, {TARN_F64, false}, {TARN_BF16, false}, {TARN_F16, false}, {TARN_F32, true}};
    int known = row->high > 1 ? 5 : 4;
    for (int i = 0; i < known; i++)
        if (strcmp(text, tarn__element_name(elements[i])) == 0) {
            *element = elements[i];
            return TARN__DONE;
        }
    return invalid(command, row, text,
                   known == 5 ? "must be f32, f64, bf16, f16 or tf32" : "must be f32, f64, bf16 or f16");
}

static int read_word(const char *command, const tarn__option_row *row, const char *text, char *word, size_t size)
{
    if (strlen(text) >= size)
        return invalid(command, row, text, "is too long for a name");
    snprintf(word, size, "%s", text);
    return TARN__DONE;
}

/* Opening a device may fail at run time, so this is FAILED, not MISUSED. */
static int read_device(const char *command, const tarn__option_row *row, const char *text, tarn__options *options)
{
    tarn_device device = tarn_device_parse(text);
    if (tarn_failed()) {
        char message[TARN__MESSAGE_MAX];
        fprintf(stderr, "tarn %s: --device: %s\n", command, tarn__user_error(command, message, sizeof(message)));
        return TARN__FAILED;
    }
    /* "cuda" and "cuda:0" are one device, so devices are compared and not their names */
    for (int i = 0; i < options->device_count; i++)
        if (tarn_device_equal(device, options->devices[i]))
            return invalid(command, row, text, "is given twice");
    options->devices[options->device_count] = device;
    options->device = options->devices[0];
    return TARN__DONE;
}

/* Problem of a list with more entries than the option allows. */
static const char *too_many(const tarn__option_row *row, int max_count)
{
    if (row->type == TARN__OPT_DEVICE)
        return max_count == 1   ? "names several devices; expected one"
               : max_count == 2 ? "names more than two devices"
                                : "names too many devices";
    return row->type == TARN__OPT_DTYPES && max_count == 1 ? "has several element types; expected one" : "is too long";
}

/* Values separated by commas replace the default; an empty value is an empty list. "f32,bf16" are two; "f32,,bf16"
 * has an empty one in the middle, which is no element type. */
static int read_list(const char *command, const tarn__option_row *row, const char *text, tarn__options *options)
{
    char copy[1024], *rest = copy;
    int *count = (int *)((char *)options + row->count), status = TARN__DONE;
    int max_count = row->type == TARN__OPT_DTYPES || row->type == TARN__OPT_DEVICE ? (int)row->high : TARN__LIST_MAX;
    if (strlen(text) >= sizeof(copy))
        return invalid(command, row, text, "is too long");
    snprintf(copy, sizeof(copy), "%s", text);
    *count = 0;
    if (row->type == TARN__OPT_DEVICE)
        options->device_text = text;
    for (char *part; status == TARN__DONE && text[0] && (part = strsep(&rest, ",")) != NULL;) {
        if (*count == max_count)
            return invalid(command, row, text, too_many(row, max_count));
        if (row->type == TARN__OPT_DTYPES)
            status = read_element(command, row, part, &options->dtypes[*count]);
        else if (row->type == TARN__OPT_DEVICE)
            status = read_device(command, row, part, options);
        else if (row->type == TARN__OPT_WORDS)
            status = read_word(command, row, part, options->only[*count], sizeof(options->only[0]));
        else
            status = read_number(command, row, part, &options->sizes[*count]);
        ++*count;
    }
    return status;
}

/* A flag that is given twice stays true; of other options the last value counts, and of TARN__OPT_STRINGS all. */
int tarn__option_read(const char *command, const tarn__option_row *row, const char *text, tarn__options *options)
{
    char *place = (char *)options + row->offset;
    if (row->type == TARN__OPT_FLAG) {
        *(bool *)place = true;
        return TARN__DONE;
    }
    if (row->type == TARN__OPT_STRING) {
        *(const char **)place = text;
        return TARN__DONE;
    }
    if (row->type == TARN__OPT_STRINGS) {
        int *count = (int *)((char *)options + row->count);
        if (*count == row->high)
            return invalid(command, row, text, "is one too many");
        ((const char **)place)[(*count)++] = text;
        return TARN__DONE;
    }
    if (row->type == TARN__OPT_REAL || row->type == TARN__OPT_ABOVE)
        return read_real(command, row, text, (double *)place);
    return row->type == TARN__OPT_INT ? read_number(command, row, text, (int64_t *)place)
                                      : read_list(command, row, text, options);
}
