/* select.c: which files of a repository a user of tarn needs.
 *
 * A repository often has the same weights several times: safetensors, pickles, ONNX, and GGUF files of ten types. What
 * is chosen is what tarn opens: config, tokenizer and chat template beside one set of safetensors; else the only GGUF
 * model, with all its shards. Pickles are never chosen: opening one runs the code in it. */
#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tarn/base.h>

#include "hub/hub.h"

/* Without FNM_PATHNAME '*' matches '/' as well, as the patterns of huggingface_hub do: "*.gguf" finds
 * "q4/model.gguf". */
static bool matches(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, 0) == 0;
}

static bool matches_any(const char *const *patterns, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (matches(patterns[i], name))
            return true;
    return false;
}

#define MATCHES(patterns, name) matches_any(patterns, (int)(sizeof(patterns) / sizeof((patterns)[0])), name)

static const char *base_name(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

/* ---- shards of GGUF models --------------------------------------------------------------------------------------- */

/* Bytes from the end of "-00002-of-00003.gguf" to the number, to what follows that, and to the count. */
enum { NUMBER = 19, AFTER_NUMBER = 14, COUNT = 10, DIGITS = NUMBER - AFTER_NUMBER };

static bool is_shard(const char *name)
{
    return matches("*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", name);
}

/* A number at some bytes before the end of a shard's name. */
static int number_at(const char *name, size_t before_end)
{
    return atoi(name + strlen(name) - before_end);
}

/* True when a name is that of a shard but for its number. */
static bool same_model(const char *shard, const char *name)
{
    size_t length = strlen(shard), head = length - NUMBER;
    return strlen(name) == length && memcmp(name, shard, head) == 0 && strspn(name + head, "0123456789") == DIGITS &&
           strcmp(name + length - AFTER_NUMBER, shard + length - AFTER_NUMBER) == 0;
}

/* Marks the other shards of models of which one is marked: one alone cannot be opened. */
static void mark_shards(tarn__hub_listing *listing)
{
    for (size_t i = 0; i < listing->count; i++) {
        tarn__hub_file *file = &listing->files[i];
        bool is_candidate = !file->is_selected && is_shard(file->name);
        for (size_t k = 0; is_candidate && !file->is_selected && k < listing->count; k++)
            file->is_selected = listing->files[k].is_selected && same_model(file->name, listing->files[k].name);
    }
}

/* Bytes of a model, all shards of it; negative: unknown. A double: sizes are what a hub says. */
static double model_bytes(const tarn__hub_listing *listing, const tarn__hub_file *model)
{
    double bytes = (double)model->bytes;
    size_t count = is_shard(model->name) ? listing->count : 0;
    for (size_t i = 0; i < count && bytes >= 0; i++) {
        const tarn__hub_file *file = &listing->files[i];
        if (file != model && same_model(model->name, file->name))
            bytes = file->bytes < 0 ? -1 : bytes + (double)file->bytes;
    }
    return bytes;
}

/* A first shard stands for its model; a projector of images and an importance matrix are no language models. */
bool tarn__hub_is_gguf_model(const char *name)
{
    static const char *const others[] = {"mmproj*", "*-mmproj-*", "*imatrix*"};
    return matches("*.gguf", name) && !MATCHES(others, base_name(name)) &&
           (!is_shard(name) || number_at(name, NUMBER) == 1);
}

/* ---- settings and weights ---------------------------------------------------------------------------------------- */

/* Configuration, tokenizer, chat template and terms, at the top of the repository or, for the pipelines of sentence
 * embedders, one folder down. */
static bool is_setting(const char *name)
{
    static const char *const wanted[] = {"*.json",     "merges.txt", "vocab.txt", "*.model",
                                         "*.tiktoken", "*.jinja",    "LICENSE*"};
    static const char *const other[] = {"*.index.json", "tf_*", "flax_*", "*.msgpack*"};
    /* "1_Pooling/config.json", "2_Dense/model.safetensors": steps after the transformer, by their number */
    static const char *const steps[] = {"[0-9]_*/config.json", "[0-9]_*/model.safetensors"};
    return strchr(name, '/') ? MATCHES(steps, name) : MATCHES(wanted, name) && !MATCHES(other, name);
}

static bool has(const tarn__hub_listing *listing, const char *name)
{
    for (size_t i = 0; i < listing->count; i++)
        if (strcmp(listing->files[i].name, name) == 0)
            return true;
    return false;
}

/* Marks what matches one of some patterns. Returns their number. */
static size_t mark(tarn__hub_listing *listing, const char *const *patterns, int count)
{
    size_t marked = 0;
    for (size_t i = 0; i < listing->count; i++)
        if (matches_any(patterns, count, listing->files[i].name)) {
            listing->files[i].is_selected = true;
            marked++;
        }
    return marked;
}

/* Marks one set of safetensors: the file that tarn opens first, or shards with their index, or adapters. A whole
 * file goes before shards, as opening a folder does; never both, which would be the weights twice. */
static size_t mark_safetensors(tarn__hub_listing *listing)
{
    static const char *const whole[] = {"model.safetensors"}, *const adapter[] = {"adapter_model.safetensors"};
    static const char *const shards[] = {"model.safetensors.index.json", "model-*-of-*.safetensors"};
    if (has(listing, whole[0]))
        return mark(listing, whole, 1);
    if (has(listing, shards[0]))
        return mark(listing, shards, 2);
    return mark(listing, adapter, 1);
}

static void add_text(char *text, size_t size, const char *more)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? ", " : "", more);
}

/* Raises the first shard that the repository lacks of a model. */
static bool check_shards(const char *repo, const tarn__hub_listing *listing, const char *first)
{
    char name[TARN__HUB_FILE], digits[16];
    snprintf(name, sizeof(name), "%s", first);
    for (int i = 1; i <= number_at(first, COUNT); i++) {
        snprintf(digits, sizeof(digits), "%05d", i);
        memcpy(name + strlen(name) - NUMBER, digits, DIGITS);
        if (!has(listing, name))
            return tarn_set_error(TARN_ERROR_FORMAT, "'%s' has '%.200s', but not its shard '%.200s'", repo, first,
                                  name);
    }
    return true;
}

/* Marks the only GGUF model. Zero with an error: several, which it lists, or one without all of its shards. */
static size_t mark_gguf(const char *repo, tarn__hub_listing *listing)
{
    size_t found = 0;
    char list[700] = "", entry[TARN__HUB_FILE + 32];
    const char *model = NULL;
    for (size_t i = 0; i < listing->count; i++) {
        tarn__hub_file *file = &listing->files[i];
        if (!tarn__hub_is_gguf_model(file->name))
            continue;
        double bytes = model_bytes(listing, file);
        if (bytes >= 0)
            snprintf(entry, sizeof(entry), "%s (%.1f GiB)", file->name, bytes / (1 << 30));
        else
            snprintf(entry, sizeof(entry), "%s", file->name);
        add_text(list, sizeof(list), entry);
        file->is_selected = true;
        model = file->name;
        found++;
    }
    if (found == 1 && is_shard(model) && !check_shards(repo, listing, model))
        return 0;
    mark_shards(listing);
    if (found <= 1)
        return found;
    tarn_set_error(TARN_ERROR_ARGUMENT, "'%s' has %zu GGUF models; choose one with --include NAME: %s", repo, found,
                   list);
    return 0;
}

/* Why nothing was found: with what the repository has instead. */
static bool raise_nothing(const char *repo, const tarn__hub_listing *listing)
{
    static const char *const pickles[] = {"*.bin", "*.pt", "*.pth", "*.ckpt"};
    const char *shard = NULL, *pickle = NULL;
    for (size_t i = 0; i < listing->count; i++) {
        const char *name = listing->files[i].name;
        shard = !shard && is_shard(name) ? name : shard;
        pickle = !pickle && MATCHES(pickles, name) ? name : pickle;
    }
    if (shard)
        return tarn_set_error(TARN_ERROR_UNSUPPORTED,
                              "'%s' has shards of GGUF models, such as '%.200s', but none is the first of its model",
                              repo, shard);
    return tarn_set_error(TARN_ERROR_UNSUPPORTED,
                          "'%s' has no model.safetensors, adapters, GGUF file or tokenizer%s%.200s%s; --include "
                          "PATTERN downloads other files",
                          repo, pickle ? "; '" : "", pickle ? pickle : "", pickle ? "' is a pickle" : "");
}

/* Two names that a file system may hold to be one. On such a disk the second link would replace the first, and a
 * model would have another file's contents. Only what is downloaded counts. */
static bool check_case(const char *repo, const tarn__hub_listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        for (size_t k = i + 1; listing->files[i].is_selected && k < listing->count; k++)
            if (listing->files[k].is_selected && strcasecmp(listing->files[i].name, listing->files[k].name) == 0)
                return tarn_set_error(TARN_ERROR_FORMAT,
                                      "'%s' has files whose names differ in case alone: '%.200s' and '%.200s'; nothing "
                                      "was downloaded",
                                      repo, listing->files[i].name, listing->files[k].name);
    return true;
}

bool tarn__hub_select(const char *repo, tarn__hub_listing *listing, const char *const *patterns, int pattern_count)
{
    static const char *const tokenizers[] = {"tokenizer.json", "tokenizer.model", "*.tiktoken", "vocab.json"};
    if (pattern_count > 0) {
        if (mark(listing, patterns, pattern_count) == 0)
            return tarn_set_error(TARN_ERROR_ARGUMENT, "no file of '%s' matches --include '%.200s'", repo, patterns[0]);
        mark_shards(listing);
        return check_case(repo, listing);
    }
    size_t weights = mark_safetensors(listing);
    bool is_gguf = weights == 0 && (weights = mark_gguf(repo, listing)) > 0;
    /* zero models without an error goes on, several end here */
    if (tarn_failed())
        return false;
    /* no weights at all: a repository with a tokenizer alone is worth pulling */
    if (weights == 0 && mark(listing, tokenizers, 4) == 0)
        return raise_nothing(repo, listing);
    for (size_t i = 0; i < listing->count && !is_gguf; i++)
        listing->files[i].is_selected |= is_setting(listing->files[i].name);
    return check_case(repo, listing);
}
