/* lora_match.c: layer names in adapter_config.json, matched as PEFT does: by regular expressions, and by the number of
 * the block that a layer is in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "models/lora/lora.h"
#include "text/tokenizer/tokenizer.h"

#define MAX_PATTERN 1000 /* bytes */

/* Compiles a pattern between anchors. The caller owns it. NULL with an error. */
static tarn__regex *compile(const char *function, const char *path, const char *pattern, tarn__lora_anchor anchor)
{
    char text[MAX_PATTERN + 32];
    if (strlen(pattern) > MAX_PATTERN) {
        tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': a pattern has %zu bytes; at most %d are supported", function,
                    path, strlen(pattern), MAX_PATTERN);
        return NULL;
    }
    snprintf(text, sizeof(text), "\\A%s(?:%s)\\z", anchor == TARN__LORA_SUFFIX ? "(?:.*\\.)?" : "", pattern);
    return tarn__regex_new(function, path, text);
}

/* `found` is called for each layer whose path matches, in the order of the list. */
bool tarn__lora_each_match(const char *function, const char *path, const char *pattern, tarn__lora_anchor anchor,
                           const tarn__lora_layers *list, void (*found)(tarn__lora_layer *layer, void *ctx), void *ctx)
{
    tarn__regex *regex = compile(function, path, pattern, anchor);
    tarn__matcher *matcher = regex ? tarn__matcher_new() : NULL;
    bool good = matcher != NULL;
    for (int i = 0; good && i < list->count; i++) {
        size_t begin, end;
        const char *name = list->layer[i].path;
        int matches = tarn__regex_next(regex, matcher, name, strlen(name), 0, &begin, &end);
        good = matches >= 0;
        if (matches > 0)
            found(&list->layer[i], ctx);
    }
    tarn__matcher_free(matcher);
    tarn__regex_free(regex);
    return good;
}

/* For a list of one layer: whether it matched. */
static void set_flag(tarn__lora_layer *layer, void *ctx)
{
    (void)layer;
    *(bool *)ctx = true;
}

/* "model.layers.0.self_attn.q_proj": a number between dots. Without a pattern it has two parts before it, as in PEFT;
 * with one, the part before it ends in what the pattern matches. */
int64_t tarn__lora_block_of(const char *function, const char *path, const char *pattern, const char *layer)
{
    int parts = 0;
    for (const char *at = layer, *dot; (dot = strchr(at, '.')) != NULL; at = dot + 1, parts++) {
        size_t digits = strspn(at, "0123456789");
        if (digits == 0 || at + digits != dot || digits > 9)
            continue;
        if (!pattern && parts >= 2)
            return strtoll(at, NULL, 10);
        if (!pattern || parts < 1)
            continue;
        char before[512];
        bool is_it = false;
        snprintf(before, sizeof(before), "%.*s", (int)(at - layer - 1), layer);
        tarn__lora_layer one = {.path = before};
        tarn__lora_layers list = {.layer = &one, .count = 1};
        if (!tarn__lora_each_match(function, path, pattern, TARN__LORA_SUFFIX, &list, set_flag, &is_it))
            return -2;
        if (is_it)
            return strtoll(at, NULL, 10);
    }
    return -1;
}
