/* spm_steps.h: how tokenizer.json says that several spaces are one and those at the ends none, as SentencePiece may do.
 * tarn writes it, and reads what it wrote: the first replaces by nothing, the second by a space. */
#ifndef TARN__SPM_STEPS_H
#define TARN__SPM_STEPS_H

#define TARN__REGEX_OUTER_SPACES "\\A +|[ \xE2\x96\x81]+\\z"
#define TARN__REGEX_EXTRA_SPACES " {2,}"

#endif
