/* fuzz.h: random damage to valid files, for readers that must accept or reject each without a crash. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include "support/files.h"

/* How many damaged files to try: $TARN_TEST_LONG=1 many more, $TARN_TEST_QUICK=1 fewer. */
int fuzz_rounds(void);

/* Bytes changed, cut out, doubled, cut off: one to four times. */
void fuzz_damage(bytes *b, uint64_t *random);

/* An allocator that notes the largest block asked for. */
extern size_t fuzz_largest;
extern const tarn_allocator fuzz_allocator;

#endif
