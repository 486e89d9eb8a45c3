/* config.c: what a folder says of its model: config.json, and of generation_config.json the tokens that end a text,
 * which are often more than config.json has. */
#include "base/os/files.h"
#include "formats/file_type.h"
#include "models/lm/arch.h"

static const char *const member = "eos_token_id";

static bool copy_ends(const tarn__document *from, tarn__document *config)
{
    size_t count = 0;
    int64_t token;
    switch (tarn__document_kind(from, member)) {
    case TARN__MEMBER_MISSING:
    case TARN__MEMBER_NULL: return true;
    case TARN__MEMBER_LIST: break;
    default:
        return tarn__document_whole(from, member, INT64_MIN, INT64_MAX, &token) &&
               tarn__document_add_whole(config, TARN__GENERATION_ENDS, token);
    }
    bool good = tarn__document_count(from, member, TARN_MODEL_ENDS, &count);
    for (size_t i = 0; good && i < count; i++)
        good = tarn__document_whole_at(from, member, i, INT64_MIN, INT64_MAX, &token) &&
               tarn__document_add_whole(config, TARN__GENERATION_ENDS, token);
    return good;
}

static bool add_ends(const char *function, const char *folder, tarn__document *config)
{
    tarn__model_path where;
    if (!tarn__model_path_in(function, folder, "generation_config.json", &where))
        return false;
    if (!tarn__path_exists(where.text))
        return true;
    tarn__document *from = tarn__document_open(function, where.text);
    bool good = from && copy_ends(from, config);
    tarn__document_free(from);
    return good;
}

tarn__document *tarn__model_config_open(const char *function, const char *folder, tarn__model_path *where)
{
    if (!tarn__check_model_path(function, folder, "a model's folder or .gguf file"))
        return NULL;
    tarn__document *config =
        tarn__model_path_in(function, folder, "config.json", where) ? tarn__document_open(function, where->text) : NULL;
    if (config && add_ends(function, folder, config))
        return config;
    tarn__document_free(config);
    return NULL;
}
