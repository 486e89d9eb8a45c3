/* demo_text.h: the training text of `tarn demo`: sources of tarn, compiled into the program. The build generates the
 * definitions; the array has no terminating 0. */
#ifndef TARN__DEMO_TEXT_H
#define TARN__DEMO_TEXT_H

#include <stddef.h>

extern const char tarn__demo_text[];
extern const size_t tarn__demo_length;

#endif
