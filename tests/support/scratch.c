/* scratch.c: a folder for the files of a test program. */
#include "support/scratch.h"

#include <dirent.h>
#include <sys/stat.h>
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

static bool is_entry(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* Removes a folder with all that is in it. */
static int remove_folder(const char *path)
{
    DIR *list = opendir(path);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char below[1200];
        snprintf(below, sizeof(below), "%s/%s", path, entry->d_name);
        if (is_entry(entry) && unlink(below) != 0)
            remove_folder(below);
    }
    if (list)
        closedir(list);
    return rmdir(path);
}

int remove_scratch(void **state)
{
    (void)state;
    return remove_folder(folder);
}

const char *scratch(const char *name)
{
    static char paths[8][600];
    static int next;
    char *path = paths[next++ % 8];
    assert_true(folder[0]); /* without make_scratch() it would be the root */
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

int scratch_count(void)
{
    int count = 0;
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));)
        count += is_entry(entry);
    if (list)
        closedir(list);
    return count;
}

/* A file that is there is removed first: some file systems (ext4) wait for the disk where one is cut to nothing and
 * written again, and tests of damaged files write thousands. */
void put_file(const char *path, const void *bytes, size_t count)
{
    struct stat about;
    if (lstat(path, &about) == 0 && S_ISREG(about.st_mode))
        unlink(path);
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
