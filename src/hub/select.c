/* select.c: which files of a repository a user of tarn needs.
 *
 * A repository often has the same weights several times: safetensors, pickles, ONNX, and GGUF files of ten types. What
 * is chosen is what tarn opens: config, tokenizer and chat template beside one set of safetensors; else the only GGUF
 * file. Pickles are never chosen: opening one runs the code in it. */
#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
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

/* "-00002-of-00003.gguf": a shard; a projector of images and an importance matrix are no language models. The first
 * shard is one as well: tarn opens GGUF models in one file. */
static bool is_shard(const char *name)
{
    return matches("*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", name);
}

bool tarn__hub_is_gguf_model(const char *name)
{
    static const char *const others[] = {"mmproj*", "*-mmproj-*", "*imatrix*"};
    return matches("*.gguf", name) && !is_shard(name) && !MATCHES(others, base_name(name));
}

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

/* Marks the only GGUF model. Zero with an error: several, which it lists. */
static size_t mark_gguf(const char *repo, tarn__hub_listing *listing)
{
    size_t found = 0;
    char list[700] = "", entry[TARN__HUB_FILE + 32];
    for (size_t i = 0; i < listing->count; i++) {
        tarn__hub_file *file = &listing->files[i];
        if (!tarn__hub_is_gguf_model(file->name))
            continue;
        if (file->bytes >= 0)
            snprintf(entry, sizeof(entry), "%s (%.1f GiB)", file->name, (double)file->bytes / (1 << 30));
        else
            snprintf(entry, sizeof(entry), "%s", file->name);
        add_text(list, sizeof(list), entry);
        file->is_selected = true;
        found++;
    }
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
                              "'%s' has GGUF files in shards alone, such as '%.200s'; tarn opens GGUF models in one "
                              "file",
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
