/* scratch.h: a folder for the files of a test program. */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <stddef.h>

/* cmocka group setup and teardown: makes the folder below $TMPDIR or /tmp, and removes it with what is in it. */
int make_scratch(void **state);
int remove_scratch(void **state);

/* The path of a file in the folder; valid until eight more were asked for. */
const char *scratch(const char *name);

/* How many files are in the folder. */
int scratch_count(void);

/* Writes and reads whole files. The caller frees what is read with free(). */
void put_file(const char *path, const void *bytes, size_t count);
char *get_file(const char *path, size_t *count);

#endif
