/* file_type.c: files by their first bytes. One table: what a file begins with, what it is, and what its owner can do.
 */
#include "formats/file_type.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/os/files.h"
#include "base/os/platform.h"

enum { ENOUGH = 512 }; /* bytes that are looked at */

#define PICKLE_ADVICE \
    "save the model again with save_pretrained(), which writes model.safetensors and config.json, and give that " \
    "folder"

typedef struct kind {
    const char *magic;
    size_t length, at; /* of the magic, and where it stands */
    const char *what, *advice;
} kind;

#define AT(place, magic, what, advice) \
    { \
        magic, sizeof(magic) - 1, place, what, advice \
    }
#define BEGINS(magic, what, advice) AT(0, magic, what, advice)

static const kind kinds[] = {
    BEGINS("version https://git-lfs", "a Git LFS pointer", "fetch the file that it stands for: git lfs pull"),
    BEGINS("GGUF", "a GGUF file", "give it a name that ends in .gguf"),
    BEGINS("lmgg", "a GGML file, the form before GGUF", "convert it to GGUF"),
    BEGINS("tjgg", "a GGML file, the form before GGUF", "convert it to GGUF"),
    BEGINS("fmgg", "a GGML file, the form before GGUF", "convert it to GGUF"),
    BEGINS("PK\003\004", "a zip archive", "unpack it first"),
    BEGINS("\x1f\x8b", "a gzip file", "unpack it first: gunzip"),
    BEGINS("\x28\xb5\x2f\xfd", "a zstd file", "unpack it first: unzstd"),
    BEGINS("\xfd"
           "7zXZ",
           "an xz file", "unpack it first: unxz"),
    BEGINS("BZh", "a bzip2 file", "unpack it first: bunzip2"),
    BEGINS("7z\xbc\xaf", "a 7z archive", "unpack it first"),
    AT(257, "ustar", "a tar archive", "unpack it first: tar xf"),
    BEGINS("\x89PNG", "a PNG image", NULL),
    BEGINS("\xff\xd8\xff", "a JPEG image", NULL),
    BEGINS("GIF8", "a GIF image", NULL),
    BEGINS("%PDF", "a PDF document", NULL),
    BEGINS("\x7f"
           "ELF",
           "a program or library (ELF)", NULL),
    BEGINS("\x93NUMPY", "a NumPy array (.npy)", NULL),
    BEGINS("\x89HDF", "an HDF5 file", "save the model as a Hugging Face folder with model.safetensors"),
    AT(4, "TFL3", "a TensorFlow Lite model", NULL),
};
#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

static bool contains(const char *bytes, size_t count, const char *text)
{
    size_t length = strlen(text);
    for (size_t i = 0; i + length <= count; i++)
        if (memcmp(bytes + i, text, length) == 0)
            return true;
    return false;
}

/* A line of base64, a space and a number: how tiktoken writes its words. */
static bool is_tiktoken(const char *bytes, size_t count)
{
    size_t i = 0, digits = 0;
    while (i < count && (isalnum((unsigned char)bytes[i]) || strchr("+/=", bytes[i])))
        i++;
    if (i < 4 || i % 4 != 0 || i >= count || bytes[i] != ' ')
        return false;
    while (i + 1 + digits < count && isdigit((unsigned char)bytes[i + 1 + digits]))
        digits++;
    return digits > 0 && i + 1 + digits < count && bytes[i + 1 + digits] == '\n';
}

static bool is_pickle(const char *bytes, size_t count)
{
    return count > 2 && (unsigned char)bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5;
}

static bool is_page(const char *bytes, size_t count)
{
    size_t i = 0;
    while (i < count && isspace((unsigned char)bytes[i]))
        i++;
    return (count - i >= 14 && strncasecmp(bytes + i, "<!doctype html", 14) == 0) ||
           (count - i >= 5 && strncasecmp(bytes + i, "<html", 5) == 0);
}

/* An eight-byte length, then JSON: nothing else begins so. */
static bool is_safetensors(const char *bytes, size_t count)
{
    return count > 9 && bytes[8] == '{' && bytes[9] == '"' && bytes[5] == 0 && bytes[6] == 0 && bytes[7] == 0;
}

static bool is_text(const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if ((unsigned char)bytes[i] < 0x20 && !isspace((unsigned char)bytes[i]))
            return false;
    return true;
}

/* What only a closer look tells; NULL: it does not. */
static const kind *look_closer(const char *bytes, size_t count)
{
    static const kind empty = {.what = "an empty file", .advice = "was it downloaded to the end?"},
                      torch = {.what = "a checkpoint of torch.save() (a zip archive with a pickle inside)",
                               .advice = PICKLE_ADVICE},
                      pickle = {.what = "a Python pickle (an older PyTorch checkpoint)", .advice = PICKLE_ADVICE},
                      tiktoken = {.what = "a vocabulary of tiktoken (a line of base64 and a rank for each token)",
                                  .advice = "take the tokenizer.json of the model's Hugging Face folder"},
                      page = {.what = "an HTML page",
                              .advice =
                                  "was it downloaded from a page that shows the file, instead of the file itself?"},
                      safetensors = {.what = "a safetensors file",
                                     .advice = "give the folder that it lies in, with its config.json"},
                      sentencepiece = {.what = "a SentencePiece model", .advice = NULL},
                      json = {.what = "a JSON file", .advice = NULL};
    return count == 0                                                                               ? &empty
           : count > 4 && memcmp(bytes, "PK\003\004", 4) == 0 && contains(bytes, count, "data.pkl") ? &torch
           : is_pickle(bytes, count)                                                                ? &pickle
           : is_tiktoken(bytes, count)                                                              ? &tiktoken
           : is_page(bytes, count)                                                                  ? &page
           : is_safetensors(bytes, count)                                                           ? &safetensors
           : bytes[0] == '\n' && contains(bytes, count < 64 ? count : 64, "<unk>")                  ? &sentencepiece
           : bytes[0] == '{' && is_text(bytes, count)                                               ? &json
                                                                                                    : NULL;
}

static const kind *recognize(const char *bytes, size_t count)
{
    const kind *found = look_closer(bytes, count);
    for (int i = 0; i < KINDS && !found; i++)
        if (count >= kinds[i].at + kinds[i].length && memcmp(bytes + kinds[i].at, kinds[i].magic, kinds[i].length) == 0)
            found = &kinds[i];
    return found;
}

bool tarn__not_recognized(const char *function, const char *path, const char *bytes, size_t count, const char *expected)
{
    const kind *found = recognize(bytes, count < ENOUGH ? count : ENOUGH);
    return !found || strstr(found->what, expected) /* it is one, and damaged further on */ ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%.500s' is %s, no %s%s%s", function, path, found->what, expected,
                       found->advice ? "; " : "", found->advice ? found->advice : "");
}

/* ---- paths of models --------------------------------------------------------------------------------------------- */

/* "org/model": two words and one slash, as model hubs name models. */
static bool is_hub_name(const char *path)
{
    const char *slash = strchr(path, '/');
    return slash && slash > path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' && path[0] != '~' &&
           strncmp(path, "runs/", 5) != 0;
}

static bool refuse_missing(const char *function, const char *path, const char *expected)
{
    if (strncmp(path, "http://", 7) == 0 || strncmp(path, "https://", 8) == 0 || strncmp(path, "hf://", 5) == 0 ||
        strncmp(path, "hf:", 3) == 0)
        return tarn__raise(TARN_ERROR_IO,
                           "%s: '%.500s' is an address, and tarn downloads nothing; download the model, and give its "
                           "folder or .gguf file",
                           function, path);
    if (is_hub_name(path))
        return tarn__raise(TARN_ERROR_IO,
                           "%s: there is no folder '%.500s'; if that is a name from a model hub: tarn downloads "
                           "nothing, so download the model "
                           "(huggingface-cli download %.200s --local-dir FOLDER), and give FOLDER",
                           function, path, path);
    return tarn__raise(TARN_ERROR_IO, "%s: '%.500s' is not found; %s is expected", function, path, expected);
}

bool tarn__check_model_path(const char *function, const char *path, const char *expected)
{
    char bytes[ENOUGH];
    size_t count = 0;
    int64_t size = tarn__platform_file_bytes(path);
    if (size == -2)
        return true;
    if (size < 0)
        return tarn__path_exists(path) || refuse_missing(function, path, expected);
    FILE *file = tarn__file_open(path);
    if (file) {
        count = fread(bytes, 1, sizeof(bytes), file);
        fclose(file);
    }
    if (!file || !tarn__not_recognized(function, path, bytes, count, "model that tarn opens"))
        return !file;
    return tarn__raise(TARN_ERROR_FORMAT, "%s: '%.500s' is a file; %s is expected", function, path, expected);
}
