/* convert_check.c: checks that the tensors of a conversion are exactly those of the model. */
#include <string.h>

#include "base/error.h"
#include "models/convert/convert.h"

/* Search for a name. */
typedef struct search {
    const tarn__conversion *conversion;
    bool in_folder;
    const char *name; /* to find; NULL: count all names of the model */
    int known;
} search;

/* True if a tensor of that name was added. */
static bool has_job(const tarn__conversion *c, const char *name)
{
    for (int i = 0; i < c->jobs; i++)
        if (strcmp(c->job[i].name, name) == 0)
            return true;
    return false;
}

/* Visits a folder name of the model; raises if no tensor has it. */
static bool is_there(void *ctx, const char *folder_name)
{
    search *s = ctx;
    char other[TARN__GGUF_NAME_CAPACITY] = "";
    tarn__gguf_name_of(s->conversion->arch, folder_name, other); /* always succeeds */
    s->known++;
    return has_job(s->conversion, s->in_folder ? folder_name : other) ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no tensor '%s', which a %s of this configuration has",
                       s->conversion->function, s->conversion->from, s->in_folder ? other : folder_name,
                       s->conversion->traits.arch);
}

/* The same; false if it is the name searched for. */
static bool is_other(void *ctx, const char *folder_name)
{
    const search *s = ctx;
    char other[TARN__GGUF_NAME_CAPACITY] = "";
    tarn__gguf_name_of(s->conversion->arch, folder_name, other);
    return strcmp(s->in_folder ? folder_name : other, s->name) != 0;
}

/* Raises a tensor that the model lacks, by its name in the source. Always false. */
static bool raise_unknown(const search *s)
{
    const tarn__conversion *c = s->conversion;
    char source[TARN__GGUF_NAME_CAPACITY] = "";
    (s->in_folder ? tarn__gguf_name_of : tarn__gguf_folder_name_of)(c->arch, s->name, source);
    return tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%s' has an unknown tensor '%s'; a %s of this configuration has none of that name",
                       c->function, c->from, source, s->conversion->traits.arch);
}

/* Every name of the model must be found; only if there are more tensors than that, each is searched. */
bool tarn__convert_check_names(const tarn__conversion *c, bool in_folder)
{
    search s = {.conversion = c, .in_folder = in_folder};
    if (!tarn__gguf_each_name(c->arch, &c->traits, is_there, &s))
        return false;
    for (int i = 0; s.known < c->jobs && i < c->jobs; i++) {
        s.name = c->job[i].name;
        if (tarn__gguf_each_name(c->arch, &c->traits, is_other, &s))
            return raise_unknown(&s);
    }
    return true;
}
