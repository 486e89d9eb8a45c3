/* scratch.c: a folder for the files of a test program. */
#include "support/scratch.h"

#include <dirent.h>
#include <unistd.h>

#include "support/check.h"

static char folder[256];

int make_scratch(void **state)
{
    (void)state;
    const char *place = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/tarn-test-XXXXXX", place && place[0] ? place : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

/* Calls `visit` (may be NULL) with the path of everything in the folder; how many there are. */
static int each(int (*visit)(const char *path))
{
    int count = 0;
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            count++;
            if (visit)
                visit(scratch(entry->d_name));
        }
    if (list)
        closedir(list);
    return count;
}

int remove_scratch(void **state)
{
    (void)state;
    each(remove);
    return rmdir(folder);
}

const char *scratch(const char *name)
{
    static char paths[8][600];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

int scratch_count(void)
{
    return each(NULL);
}

void put_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

char *get_file(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *count = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*count + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *count, file), *count);
    bytes[*count] = 0;
    fclose(file);
    return bytes;
}
