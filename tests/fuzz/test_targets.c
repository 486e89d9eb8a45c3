/* test_targets.c: every parser meets good files with random damage, by a seed that is printed. TARN_TEST_LONG=1 tries two hundred times as many. */
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

static void every_parser_takes_or_refuses_damaged_files(void **state)
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
        print_message("%-16s %d of %d were taken, %.2f s\n", d.target->name, d.taken, d.tried, (double)(clock() - begin) / CLOCKS_PER_SEC);
        assert_true(d.taken > 0 && d.taken < d.tried); /* the good ones are, and the damage is real */
    }
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_parser_takes_or_refuses_damaged_files)};
    return cmocka_run_group_tests(tests, begin, end);
}
