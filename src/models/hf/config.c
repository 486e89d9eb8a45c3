/* config.c: what a folder says of its model: config.json, and of generation_config.json the tokens that end a text,
 * which are often more than config.json has. */
#include "base/os/files.h"
#include "formats/file_type.h"
#include "models/lm/arch.h"

static const char *const member = "eos_token_id";

static bool copy_ends(const tarn__json_file *from, tarn__json_file *config)
{
    size_t count = 0;
    int64_t token;
    switch (tarn__json_file_kind(from, member)) {
    case TARN__MEMBER_MISSING:
    case TARN__MEMBER_NULL: return true;
    case TARN__MEMBER_ARRAY: break;
    default:
        return tarn__json_file_int(from, member, INT64_MIN, INT64_MAX, &token) &&
               tarn__json_file_add_int(config, TARN__GENERATION_EOS, token);
    }
    bool good = tarn__json_file_count(from, member, TARN_MODEL_MAX_EOS, &count);
    for (size_t i = 0; good && i < count; i++)
        good = tarn__json_file_int_at(from, member, i, INT64_MIN, INT64_MAX, &token) &&
               tarn__json_file_add_int(config, TARN__GENERATION_EOS, token);
    return good;
}

static bool add_ends(const char *function, const char *folder, tarn__json_file *config)
{
    tarn__model_path where;
    if (!tarn__model_path_in(function, folder, "generation_config.json", &where))
        return false;
    if (!tarn__path_exists(where.text))
        return true;
    tarn__json_file *from = tarn__json_file_open(function, where.text);
    bool good = from && copy_ends(from, config);
    tarn__json_file_free(from);
    return good;
}

tarn__json_file *tarn__model_config_open(const char *function, const char *folder, tarn__model_path *where)
{
    if (!tarn__check_model_path(function, folder, "a model's folder or .gguf file"))
        return NULL;
    tarn__json_file *config = tarn__model_path_in(function, folder, "config.json", where)
                                  ? tarn__json_file_open(function, where->text)
                                  : NULL;
    if (config && add_ends(function, folder, config))
        return config;
    tarn__json_file_free(config);
    return NULL;
}
