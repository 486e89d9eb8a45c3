/* find.c: a parameter or buffer by its name, and the names nearest to one that is not there. */
#include <stdio.h>
#include <string.h>

#include "nn/module.h"

#define NEAR 3      /* names that an error lists */
#define COMPARED 95 /* characters of a name that count */

/* How many letters must be put in, taken out or changed to make one text of the other. */
static int edits_between(const char *a, const char *b)
{
    int row[COMPARED + 1], length = (int)strlen(b);
    length = length < COMPARED ? length : COMPARED;
    for (int j = 0; j <= length; j++)
        row[j] = j;
    for (int i = 0; a[i] && i < COMPARED; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 1; j <= length; j++) {
            int change = diagonal + (a[i] != b[j - 1]), other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < other ? change : other;
        }
    }
    return row[length];
}

typedef struct search {
    const tarn_module *module;
    const char *name;
    tarn_tensor *found;
    const char *near[NEAR]; /* the nearest first */
    int edits[NEAR];
    int count;
} search;

static bool look_at(const tarn__parameter *parameter, void *ctx)
{
    search *s = ctx;
    const char *name = tarn__name_from(s->module, parameter);
    if (strcmp(name, s->name) == 0) {
        s->found = parameter->tensor;
        return false;
    }
    int edits = edits_between(s->name, name), at = s->count < NEAR ? s->count++ : NEAR;
    for (; at > 0 && edits < s->edits[at - 1]; at--)
        if (at < NEAR) {
            s->near[at] = s->near[at - 1];
            s->edits[at] = s->edits[at - 1];
        }
    if (at < NEAR) {
        s->near[at] = name;
        s->edits[at] = edits;
    }
    return true;
}

tarn_tensor *tarn_module_find(const tarn_module *module, const char *name)
{
    if (!tarn__check_module("module_find", module))
        return NULL;
    if (!name) {
        tarn__raise(TARN_ERROR_ARGUMENT, "module_find: the name is NULL");
        return NULL;
    }
    search s = {.module = module, .name = name};
    tarn__module_walk_over(module, TARN__MODULE_STATE, look_at, &s);
    if (s.found)
        return s.found;
    char near[NEAR * (COMPARED + 5)] = "";
    for (int i = 0; i < s.count; i++)
        snprintf(near + strlen(near), sizeof(near) - strlen(near), "%s'%.*s'", i ? ", " : "", COMPARED, s.near[i]);
    tarn__raise(TARN_ERROR_ARGUMENT, "module_find: there is no parameter or buffer '%s'; %s%s", name,
                s.count ? "the nearest names are " : "the module has no parameters", near);
    return NULL;
}
