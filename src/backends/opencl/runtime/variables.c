/* variables.c: what the variables TARN_OPENCL_… may say. They are looked at when the backend is opened: one that says
 * something else is an error, for whoever set it would not get what was asked for. An empty one counts as none. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/opencl/runtime/opencl.h"

/* Either of two words, or else a whole number from `least` on. */
typedef struct variable {
    const char *name, *word, *other;
    unsigned long long least;
} variable;

static const variable variables[] = {
    {"TARN_OPENCL_CACHE", "off", "on", 0}, {"TARN_OPENCL_FP64", "0", "1", 0},
    {"TARN_OPENCL_FP16", "0", "1", 0},     {"TARN_OPENCL_SUBGROUPS", "0", "1", 0},
    {"TARN_OPENCL_LOCAL", "1", "0", 0},    {"TARN_OPENCL_MEMORY", NULL, NULL, 1},
    {"TARN_OPENCL_GROUP", NULL, NULL, 1},  {"TARN_OPENCL_GROUP_MEMORY", NULL, NULL, 1},
    {"TARN_OPENCL_TILE", NULL, NULL, 0},
};

static bool is_whole(const char *text, unsigned long long least)
{
    char *end;
    errno = 0;
    return strspn(text, "0123456789") == strlen(text) && strtoull(text, &end, 10) >= least && errno == 0;
}

static bool is_good(const variable *v, const char *text, char *why, size_t why_size)
{
    if (v->word) {
        snprintf(why, why_size, "%s is '%s'; it may be '%s' or '%s'", v->name, text, v->word, v->other);
        return strcmp(text, v->word) == 0 || strcmp(text, v->other) == 0;
    }
    snprintf(why, why_size, "%s is '%s'; it may be a whole number from %llu on", v->name, text, v->least);
    return is_whole(text, v->least);
}

bool tarn__cl_check_variables(char *why, size_t why_size)
{
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        const char *text = getenv(variables[i].name);
        if (text && *text && !is_good(&variables[i], text, why, why_size))
            return false;
    }
    return tarn__cl_check_disabled(why, why_size);
}
