/* input.c: reading input. A regular file has an end and is read whole; a stream may never end, so it is read up to a
 * bound. Buffers belong to the caller's tarn__input and stay valid after a failure. */

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

#define FIRST_CAPACITY 16

/* Doubled, so that appending n elements costs O(n). */
bool tarn__input_reserve(void *array, size_t count, size_t *capacity, size_t more, size_t each)
{
    void *old, *grown;
    if (more <= *capacity - count)
        return true;
    if (more > SIZE_MAX / 4 / each - count)
        return false;
    size_t larger = count + more > 2 * *capacity ? count + more : 2 * *capacity;
    larger = larger < FIRST_CAPACITY ? FIRST_CAPACITY : larger;
    memcpy(&old, array, sizeof(old)); /* `array` points to a pointer of any type: no aliasing by assignment */
    if (!(grown = realloc(old, larger * each)))
        return false;
    memcpy(array, &grown, sizeof(grown));
    *capacity = larger;
    return true;
}

/* The 0 behind the text is not counted in its length, so that texts with 0 bytes keep theirs. */
bool tarn__input_add(tarn__input *in, const char *bytes, size_t count)
{
    if (!tarn__input_reserve(&in->text, in->length, &in->capacity, count + 1, 1))
        return false;
    if (count > 0)
        memcpy(in->text + in->length, bytes, count);
    in->length += count;
    in->text[in->length] = 0;
    return true;
}

/* Prints the message of all failures here; returns TARN__FAILED. `what` has happened to the file `name`, and `why`. */
static int fail(const char *command, const char *name, const char *what, const char *why)
{
    fprintf(stderr, "tarn %s: '%s' %s: %s\n", command, tarn__escaped(name), what, why);
    return TARN__FAILED;
}

int tarn__input_stream(tarn__input *in, const char *command, FILE *from, const char *name)
{
    static char bytes[1 << 16];
    struct stat about;
    char bound[64];
    /* unknown counts as a stream */
    bool is_bounded = fstat(fileno(from), &about) != 0 || !S_ISREG(about.st_mode);
    /* the bound is that of this stream alone: a buffer may collect several */
    size_t before = in->length;
    if (!tarn__input_add(in, "", 0))
        return fail(command, name, "cannot be read", "out of memory");
    for (size_t count; (count = fread(bytes, 1, sizeof(bytes), from)) > 0;) {
        if (is_bounded && in->length - before + count > TARN__STREAM_MAX) {
            snprintf(bound, sizeof(bound), "%s is the most that is read of what is no file",
                     tarn__bytes_text((int64_t)TARN__STREAM_MAX));
            return fail(command, name, "is too long", bound);
        }
        if (!tarn__input_add(in, bytes, count))
            return fail(command, name, "cannot be read", "out of memory");
    }
    return ferror(from) ? fail(command, name, "cannot be read", strerror(errno)) : TARN__DONE;
}

int tarn__input_file(tarn__input *in, const char *command, const char *path)
{
    FILE *from = fopen(path, "rb");
    if (!from)
        return fail(command, path, "cannot be opened", strerror(errno));
    int status = tarn__input_stream(in, command, from, path);
    fclose(from);
    return status;
}

/* With its line break, unless the input ends without one. False at the end of the input, and after an error. */
bool tarn__input_line(tarn__input *in, FILE *from)
{
    /* byte by byte: a line may contain zero bytes, which fgets() would hide */
    int c = 0;
    in->length = 0;
    while (c != '\n' && (c = getc(from)) != EOF) {
        char byte = (char)c;
        bool fits = in->length < TARN__LINE_MAX;
        if (!fits || !tarn__input_add(in, &byte, 1)) {
            errno = fits ? ENOMEM : EFBIG;
            return false;
        }
    }
    return in->length > 0 && !ferror(from);
}

/* The type is checked on the open descriptor: the path could change in between. */
FILE *tarn__input_regular(const char *path)
{
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a FIFO without a writer must not block */
    bool is_regular = file >= 0 && fstat(file, &about) == 0 && S_ISREG(about.st_mode);
    FILE *stream = is_regular ? fdopen(file, "rb") : NULL;
    if (!stream && file >= 0)
        close(file);
    return stream;
}
