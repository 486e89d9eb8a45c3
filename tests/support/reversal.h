/* reversal.h: a synthetic chat task: reverse a word. A small Llama learns it from lines of text first, without a
 * conversation; fine-tuning brings it out in one. */
#ifndef TESTS_REVERSAL_H
#define TESTS_REVERSAL_H

#include <stdbool.h>

/* tokens; the one that ends an answer; letters of a word at most */
enum { REVERSAL_VOCAB = 276, REVERSAL_EOT = 275, REVERSAL_MAX_LETTERS = 4 };

/* Letters of a word: 3, or with TARN_TEST_LONG 4; and how many words there are. */
int reversal_letters(void);
int reversal_words(void);

/* The word of a number, and what it is backwards. One word in eight is held out of training, so that it can be asked
 * for. */
void reversal_word(int number, char *word);
void reversal_of(const char *word, char *back);
bool reversal_is_held_out(int number);

/* Writes the conversations of the training words, or of those that are held out, to the scratch folder as JSON
 * lines, and returns their path. */
const char *reversal_chats(const char *name, bool asked);

/* Writes a Hugging Face folder with a Llama, or a GPT-2, and a tokenizer to the scratch folder: of drawn weights, or
 * trained on lines such as "bcd <-> dcb". Returns its path. A wide one has rows of 256, whole blocks of every type. */
const char *reversal_random(const char *name);
const char *reversal_random_gpt2(const char *name);
const char *reversal_base(const char *name);
const char *reversal_wide_base(const char *name);

#endif
