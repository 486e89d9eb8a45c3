/* chat_templates.c: the chat templates of a tokenizer, as their files have them: one, or several by name. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

#define MAX_BYTES ((size_t)1 << 20) /* of a template */
#define MAX_TEMPLATES 64

/* NULL: none of that name. "default" is the one that a file without names has. */
const tarn__chat_source *tarn__tokenizer_chat(const tarn_tokenizer *t, const char *name)
{
    const tarn__chat_source *sources = (const tarn__chat_source *)(const void *)t->chats.data;
    for (size_t i = 0; i < t->chats.count; i++)
        if (strcmp(sources[i].name, name) == 0)
            return &sources[i];
    return NULL;
}

/* The array's memory stays for the next templates. */
void tarn__tokenizer_clear_chats(tarn_tokenizer *t)
{
    tarn__chat_source *sources = (tarn__chat_source *)(void *)t->chats.data;
    for (size_t i = 0; i < t->chats.count; i++) {
        tarn__string_free(sources[i].name);
        tarn__string_free(sources[i].text);
    }
    t->chats.count = 0;
    t->chat = NULL;
}

/* Terminated. */
static char *copy(const char *text, size_t length)
{
    char *result = tarn__alloc(length + 1);
    if (result && length)
        memcpy(result, text, length);
    return result;
}

/* Adds a template; another of the same name goes. */
static bool add(tarn_tokenizer *t, const char *name, const char *text, size_t length)
{
    tarn__chat_source *known = (tarn__chat_source *)(uintptr_t)tarn__tokenizer_chat(t, name);
    tarn__chat_source source = {NULL, copy(text, length)};
    if (source.text && known) {
        tarn__string_free(known->text);
        known->text = source.text;
        return true;
    }
    source.name = source.text ? tarn__string_copy(name) : NULL;
    if (source.name && tarn__buffer_add(&t->chats, &source, 1, sizeof(source)))
        return true;
    tarn__string_free(source.name);
    tarn__string_free(source.text);
    return false;
}

/* The array moves when it grows, the texts do not: t->chat stays valid but for a change of its own template. */
bool tarn__tokenizer_add_chat(tarn_tokenizer *t, const char *name, const char *text, size_t length)
{
    if (length > MAX_BYTES || memchr(text, 0, length) || tarn__utf8_prefix(text, length) != length)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "the chat template is not valid UTF-8, contains a NUL, or has more than %zu bytes",
                           MAX_BYTES);
    if (t->chats.count >= MAX_TEMPLATES)
        return tarn__raise(TARN_ERROR_FORMAT, "more than %d chat templates", MAX_TEMPLATES);
    if (!add(t, name, text, length))
        return false;
    const tarn__chat_source *source = tarn__tokenizer_chat(t, "default");
    t->chat = source ? source->text : NULL;
    return true;
}
