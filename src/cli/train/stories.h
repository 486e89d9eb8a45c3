/* stories.h: children's stories and conversations about them, from a grammar: what the story model of `tarn demo
 * --chat` is trained on. */
#ifndef TARN__STORIES_H
#define TARN__STORIES_H

#include <stdint.h>

#include "cli/cli.h"

/* Appends the story of that number, a line of text. The same seed and number give the same story everywhere; false
 * without memory. */
bool tarn__story_write(tarn__input *text, uint64_t seed, uint64_t number);

/* Appends a conversation as a line of JSON with the array "messages": a story that is asked for, and questions about
 * it. */
bool tarn__conversation_write(tarn__input *text, uint64_t seed, uint64_t number);

/* Distinct stories that the grammar has, in millions. */
double tarn__story_millions(void);

#endif
