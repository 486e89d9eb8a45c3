/* demo_text.h: text to learn from that is part of the program: sources of tarn, put there by the build. */
#ifndef TARN__DEMO_TEXT_H
#define TARN__DEMO_TEXT_H

#include <stddef.h>

extern const char tarn__demo_text[];
extern const size_t tarn__demo_length;

#endif
