/* levels.h: a test program at every instruction level that the processor has. */
#ifndef TESTS_LEVELS_H
#define TESTS_LEVELS_H

#include <stdbool.h>

enum { MAX_LEVELS = 8 };

/* Runs `tests`, which gives its number of failures, in a process for each level, and gives the sum. With
 * TARN_CPU_LEVEL set it runs here, at that level alone. To be called before anything else of the library is: a
 * process takes its level once. */
int run_at_every_level(int (*tests)(void));

/* The number of the level that this process runs at, in the order of level_name(), from narrow to wide. */
int current_level(void);
int level_count(void);
const char *level_name(int level);

/* True where TARN_TEST_EMULATED is set. An emulator may give another NaN of several operands than the processor
 * does: there NaN compares as NaN. */
bool is_emulated(void);

/* Both have the same bytes; of floats of `size` bytes NaN equals NaN on an emulator. */
bool is_same_float(const void *a, const void *b, int size);

/* True for a NaN of 8 bytes (f64), 4 (f32), 2 (f16), or -2 (bf16). */
bool is_nan_of(const void *value, int size);

#endif
