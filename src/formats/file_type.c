/* file_type.c: file types by their first bytes. Each row has the magic bytes, the type in words, and advice for the
 * user. */
#include "formats/file_type.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/os/files.h"
#include "base/os/platform.h"

enum { PREFIX_BYTES = 512 }; /* bytes examined */

/* tarn reads no pickles: loading one runs the code in it. */
#define PICKLE_ADVICE \
    "save the model again with save_pretrained(), which writes model.safetensors and config.json, and give that " \
    "folder"

typedef struct kind {
    const char *magic;
    size_t length, at;         /* of the magic, and its offset */
    const char *what, *advice; /* "a zip archive"; what the user can do, NULL: nothing */
} kind;

/* Rows of `kinds`: magic bytes at an offset, and at the beginning. */
#define AT(offset, magic, what, advice) \
    { \
        magic, sizeof(magic) - 1, offset, what, advice \
    }
#define BEGINS(magic, what, advice) AT(0, magic, what, advice)

static const kind kinds[] = {
    BEGINS("version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"),
    BEGINS("GGUF", "a GGUF file", "give it a name that ends in .gguf"),
    BEGINS("lmgg", "a GGML file, the predecessor of GGUF", "convert it to GGUF"),
    BEGINS("tjgg", "a GGML file, the predecessor of GGUF", "convert it to GGUF"),
    BEGINS("fmgg", "a GGML file, the predecessor of GGUF", "convert it to GGUF"),
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

/* memmem() for a terminated string. */
static bool contains(const char *bytes, size_t count, const char *text)
{
    size_t length = strlen(text);
    for (size_t i = 0; i + length <= count; i++)
        if (memcmp(bytes + i, text, length) == 0)
            return true;
    return false;
}

/* A line of base64, a space and an integer: a tiktoken vocabulary. */
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

/* Protocols 2 to 5 begin with 0x80 and their number. */
static bool is_pickle(const char *bytes, size_t count)
{
    return count > 2 && (unsigned char)bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5;
}

/* The beginning of an HTML page, after whitespace. */
static bool is_html(const char *bytes, size_t count)
{
    size_t i = 0;
    while (i < count && isspace((unsigned char)bytes[i]))
        i++;
    return (count - i >= 14 && strncasecmp(bytes + i, "<!doctype html", 14) == 0) ||
           (count - i >= 5 && strncasecmp(bytes + i, "<html", 5) == 0);
}

/* An eight-byte little-endian length, then a JSON object. Headers have at most 100 MB, so that the upper bytes of the
 * length are 0. */
static bool is_safetensors(const char *bytes, size_t count)
{
    return count > 9 && bytes[8] == '{' && bytes[9] == '"' && bytes[5] == 0 && bytes[6] == 0 && bytes[7] == 0;
}

/* True if the bytes have no control characters but whitespace. */
static bool is_text(const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if ((unsigned char)bytes[i] < 0x20 && !isspace((unsigned char)bytes[i]))
            return false;
    return true;
}

/* Types without a fixed magic, or that refine one: a zip archive may be a PyTorch checkpoint. A SentencePiece
 * model is a protobuf message: it begins with the tag of field 1, a newline, and its first pieces include <unk>. NULL:
 * none of them. */
static const kind *recognize_by_content(const char *bytes, size_t count)
{
    static const kind empty = {.what = "an empty file", .advice = "was the download complete?"},
                      torch = {.what = "a checkpoint of torch.save() (a zip archive with a pickle inside)",
                               .advice = PICKLE_ADVICE},
                      pickle = {.what = "a Python pickle (an older PyTorch checkpoint)", .advice = PICKLE_ADVICE},
                      tiktoken = {.what = "a tiktoken vocabulary (base64 and rank per line)",
                                  .advice = "use the tokenizer.json of the model's Hugging Face folder"},
                      page = {.what = "an HTML page",
                              .advice =
                                  "was it downloaded from a page that shows the file, instead of the file itself?"},
                      safetensors = {.what = "a safetensors file", .advice = "give its folder, with config.json"},
                      sentencepiece = {.what = "a SentencePiece model", .advice = NULL},
                      json = {.what = "a JSON file", .advice = NULL};
    return count == 0                                                                               ? &empty
           : count > 4 && memcmp(bytes, "PK\003\004", 4) == 0 && contains(bytes, count, "data.pkl") ? &torch
           : is_pickle(bytes, count)                                                                ? &pickle
           : is_tiktoken(bytes, count)                                                              ? &tiktoken
           : is_html(bytes, count)                                                                  ? &page
           : is_safetensors(bytes, count)                                                           ? &safetensors
           : bytes[0] == '\n' && contains(bytes, count < 64 ? count : 64, "<unk>")                  ? &sentencepiece
           : bytes[0] == '{' && is_text(bytes, count)                                               ? &json
                                                                                                    : NULL;
}

/* The type of a file by its first bytes; content first, since a PyTorch checkpoint is a zip archive too. NULL:
 * unknown. */
static const kind *recognize(const char *bytes, size_t count)
{
    const kind *found = recognize_by_content(bytes, count);
    for (int i = 0; i < KINDS && !found; i++)
        if (count >= kinds[i].at + kinds[i].length && memcmp(bytes + kinds[i].at, kinds[i].magic, kinds[i].length) == 0)
            found = &kinds[i];
    return found;
}

bool tarn__not_recognized(const char *function, const char *path, const char *bytes, size_t count, const char *expected)
{
    const kind *found = recognize(bytes, count < PREFIX_BYTES ? count : PREFIX_BYTES);
    return !found || strstr(found->what, expected) /* the expected type, damaged further on */ ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: '%.500s' is %s, not a %s%s%s", function, path, found->what, expected,
                       found->advice ? "; " : "", found->advice ? found->advice : "");
}

/* ---- model paths ------------------------------------------------------------------------------------------------- */

/* "org/model": one slash, no leading dot or tilde: how model hubs name models. runs/NAME is a folder of tarn's own
 * runs. */
static bool is_hub_name(const char *path)
{
    const char *slash = strchr(path, '/');
    return slash && slash > path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' && path[0] != '~' &&
           strncmp(path, "runs/", 5) != 0;
}

/* Raises an error for a path that does not exist, with advice for URLs and hub names. Returns false. */
static bool raise_missing(const char *function, const char *path, const char *expected)
{
    if (strncmp(path, "http://", 7) == 0 || strncmp(path, "https://", 8) == 0 || strncmp(path, "hf://", 5) == 0 ||
        strncmp(path, "hf:", 3) == 0)
        return tarn__raise(
            TARN_ERROR_IO,
            "%s: '%.500s' is a URL; give a folder or .gguf file; the command `tarn pull ORG/NAME` downloads models",
            function, path);
    if (is_hub_name(path))
        return tarn__raise(
            TARN_ERROR_IO,
            "%s: folder '%.500s' not found; if it is a model of the hub, download it first: tarn pull %.200s", function,
            path, path);
    return tarn__raise(TARN_ERROR_IO, "%s: '%.500s' not found; %s is expected", function, path, expected);
}

/* A file is read only to name its type: models are opened elsewhere. */
bool tarn__check_model_path(const char *function, const char *path, const char *expected)
{
    char bytes[PREFIX_BYTES];
    size_t count = 0;
    int64_t size = tarn__platform_file_bytes(path);
    if (size == -2) /* not a regular file: a folder, or something that the reader reports */
        return true;
    if (size < 0)
        return tarn__path_exists(path) || raise_missing(function, path, expected);
    FILE *file = tarn__file_open(path);
    if (file) {
        count = fread(bytes, 1, sizeof(bytes), file);
        fclose(file);
    }
    if (!file || !tarn__not_recognized(function, path, bytes, count, "model that tarn opens"))
        return !file;
    return tarn__raise(TARN_ERROR_FORMAT, "%s: '%.500s' is a file; %s is expected", function, path, expected);
}
