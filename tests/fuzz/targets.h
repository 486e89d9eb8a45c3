/* targets.h: one target per parser of untrusted files. A target gets any bytes: it must accept or reject them without a
 * crash, a leak, excessive memory, or an error without a reason. tests/fuzz/test_targets.c damages valid files, and
 * those of tests/fuzz/corpus, by a seed, in `make test` and for a given time (scripts/fuzz-files);
 * tests/fuzz/libfuzzer.c runs them under clang's libFuzzer (scripts/fuzz). */
#ifndef TESTS_FUZZ_TARGETS_H
#define TESTS_FUZZ_TARGETS_H

#include <stdbool.h>
#include <stddef.h>

/* Gets a good file. */
typedef void (*fuzz_seed_fn)(const void *from, size_t count, void *ctx);

typedef struct fuzz_target {
    const char *name;
    bool (*is_here)(void); /* false: this build lacks what the parser needs; NULL: always */
    /* hands out good files, and makes what lies beside them in the scratch folder */
    void (*seeds)(fuzz_seed_fn use, void *ctx);
    bool (*take)(const void *from, size_t count); /* true: they were taken, and used */
} fuzz_target;

/* each ends with a name of NULL */
extern const fuzz_target fuzz_data_targets[], fuzz_text_targets[], fuzz_file_targets[], fuzz_run_targets[],
    fuzz_grammar_targets[], fuzz_http_targets[], fuzz_api_targets[];

/* All of them by number; NULL behind the last. */
const fuzz_target *fuzz_target_at(int index);

/* Makes a scratch folder, in memory where that can be, and an allocator that has 1 GiB and counts. */
void fuzz_begin(void);
void fuzz_end(void);

/* Tries one input, with all that must hold afterwards. True: it was taken. Ends the program, with the place, where
 * something does not. */
bool fuzz_try(const fuzz_target *target, const void *from, size_t count, const char *place);

/* For targets: the input as a file of the scratch folder, whose path is returned; and what must hold. */
const char *fuzz_write(const char *name, const void *from, size_t count);
void fuzz_must(bool holds, const char *what);

/* Hands a file of the scratch folder out as a seed. */
void fuzz_seed_file(const char *name, fuzz_seed_fn use, void *ctx);

/* Hands out the files that lie in tests/fuzz/corpus for a target, below $TARN_SOURCE_DIR; how many there are. */
int fuzz_corpus(const char *target, fuzz_seed_fn use, void *ctx);

bool fuzz_has_json(void); /* jansson */
bool fuzz_has_bpe(void);  /* and PCRE2 */

#endif
