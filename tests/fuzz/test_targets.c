/* test_targets.c: every parser gets valid files with random damage, and malformed ones of the corpus, by a seed that is
 * printed. TARN_TEST_LONG=1 runs two hundred times as many. With TARN_FUZZ_TARGET only that parser runs, for
 * TARN_FUZZ_SECONDS (default 30). */
#include <time.h>

#include "fuzz/targets.h"
#include "support/fuzz.h"

typedef struct damaging {
    const fuzz_target *target;
    uint64_t random;
    int taken, tried;
} damaging;

static void damage(const void *good_bytes, size_t count, void *ctx)
{
    static bytes b;
    damaging *d = ctx;
    char place[80];
    assert_true(count <= sizeof(b.data));
    for (int i = 0; i <= 2 * fuzz_rounds(); i++) {
        b.count = 0;
        put(&b, good_bytes, count);
        if (i > 0) /* the first as it is */
            fuzz_damage(&b, &d->random);
        snprintf(place, sizeof(place), "round %d of a file of %zu bytes", i, count);
        d->taken += fuzz_try(d->target, b.data, b.count, place);
        d->tried++;
    }
}

/* A malformed file as it is. */
static void try_as_it_is(const void *file, size_t count, void *ctx)
{
    damaging *d = ctx;
    fuzz_try(d->target, file, count, "a file of the corpus");
    d->tried++;
}

static void every_parser_runs_its_corpus(void **state)
{
    (void)state;
    static const char *const needed[] = {"gguf", "safetensors", "tokenizer", "tokenizer_model"};
    int found = 0;
    for (int i = 0; fuzz_target_at(i); i++) {
        damaging d = {fuzz_target_at(i), 0, 0, 0};
        if (!d.target->is_here || d.target->is_here()) {
            int files = fuzz_corpus(d.target->name, try_as_it_is, &d);
            for (size_t k = 0; k < sizeof(needed) / sizeof(needed[0]); k++)
                found += files > 0 && strcmp(d.target->name, needed[k]) == 0;
        }
    }
    assert_true(found == 4 || !fuzz_has_bpe());
}

static void every_parser_accepts_or_rejects_damaged_files(void **state)
{
    (void)state;
    uint64_t seed = test_seed(20261115);
    for (int i = 0; fuzz_target_at(i); i++) {
        damaging d = {fuzz_target_at(i), seed, 0, 0};
        if (d.target->is_here && !d.target->is_here()) {
            print_message("%-16s not in this build\n", d.target->name);
            continue;
        }
        clock_t begin = clock();
        d.target->seeds(damage, &d);
        print_message("%-16s %d of %d were taken, %.2f s\n", d.target->name, d.taken, d.tried,
                      (double)(clock() - begin) / CLOCKS_PER_SEC);
        assert_true(d.taken > 0 && d.taken < d.tried); /* the good ones are, and the damage is real */
    }
}

/* ---- for a time -------------------------------------------------------------------------------------------------- */

enum { MOST_FILES = 256 };

/* Files to begin with. */
typedef struct stock {
    char *file[MOST_FILES];
    size_t length[MOST_FILES];
    int count;
} stock;

static void keep(const void *file, size_t length, void *ctx)
{
    stock *s = ctx;
    assert_true(s->count < MOST_FILES && (s->file[s->count] = malloc(length + 1)) != NULL);
    memcpy(s->file[s->count], file, length);
    s->length[s->count++] = length;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Random files of the stock, damaged once or several times over, until the time is up. */
static void one_parser_withstands_damage_for_a_time(void **state)
{
    (void)state;
    static bytes b;
    static stock s;
    const char *name = getenv("TARN_FUZZ_TARGET"), *wanted = getenv("TARN_FUZZ_SECONDS");
    uint64_t random = test_seed((uint64_t)time(NULL));
    damaging d = {NULL, random, 0, 0};
    for (int i = 0; fuzz_target_at(i); i++)
        d.target = strcmp(fuzz_target_at(i)->name, name) == 0 ? fuzz_target_at(i) : d.target;
    assert_non_null(d.target);
    d.target->seeds(keep, &s);
    fuzz_corpus(name, keep, &s);
    for (double end = seconds() + (wanted ? atof(wanted) : 30); seconds() < end; d.tried++) {
        char place[80];
        uint64_t before = random;
        int one = (int)random_below(&random, s.count);
        b.count = 0;
        put(&b, s.file[one], s.length[one]);
        for (int64_t more = random_below(&random, 3); more >= 0; more--)
            fuzz_damage(&b, &random);
        snprintf(place, sizeof(place), "file %d damaged from %llu", one, (unsigned long long)before);
        d.taken += fuzz_try(d.target, b.data, b.count, place);
    }
    print_message("%-16s %d of %d were taken\n", name, d.taken, d.tried);
    assert_true(d.tried > 0 && d.taken < d.tried);
    for (int i = 0; i < s.count; i++)
        free(s.file[i]);
}

static int begin(void **state)
{
    (void)state;
    fuzz_begin();
    return 0;
}

static int end(void **state)
{
    (void)state;
    fuzz_end();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_parser_runs_its_corpus),
                                       cmocka_unit_test(every_parser_accepts_or_rejects_damaged_files)};
    const struct CMUnitTest timed[] = {cmocka_unit_test(one_parser_withstands_damage_for_a_time)};
    return getenv("TARN_FUZZ_TARGET") ? cmocka_run_group_tests(timed, begin, end)
                                      : cmocka_run_group_tests(tests, begin, end);
}
