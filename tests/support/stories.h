/* stories.h: stories260K, a published model small enough for every test. */
#ifndef TESTS_STORIES_H
#define TESTS_STORIES_H

#include "support/check.h"

/* The model of TARN_TEST_DATA's stories260K, on the CPU. The caller owns it. */
tarn_module *open_stories(void);

#endif
