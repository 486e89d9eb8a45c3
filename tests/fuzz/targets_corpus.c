/* targets_corpus.c: files of tests/fuzz/corpus: malformed in ways that once mattered, or that random damage rarely
 * finds. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/targets.h"
#include "support/scratch.h"

int fuzz_corpus(const char *target, fuzz_seed_fn use, void *ctx)
{
    const char *source = getenv("TARN_SOURCE_DIR");
    char path[4096];
    struct dirent **names;
    snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/%s", source ? source : ".", target);
    int count = scandir(path, &names, NULL, alphasort), used = 0;
    for (int i = 0; i < count; i++) {
        if (names[i]->d_name[0] != '.') {
            size_t length;
            snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/%s/%s", source ? source : ".", target, names[i]->d_name);
            char *file = get_file(path, &length);
            use(file, length, ctx);
            free(file);
            used++;
        }
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    return used;
}
