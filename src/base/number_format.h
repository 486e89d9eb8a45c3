/* number_format.h: numbers as text, in as few digits as give the same number back: 0.1, not 0.10000000000000001. */
#ifndef TARN__NUMBER_H
#define TARN__NUMBER_H

#define TARN__NUMBER_SIZE 32 /* bytes that any number's text fits */

/* The shortest decimal that reads back as the same double, the closest one of those, as Python's repr() writes it:
 * "0.1", "1.0", "-0.0", "1e-05", "1e+16"; NaN and infinity become "null". Independent of the locale. Returns `text`. */
const char *tarn__number_format(double value, char text[TARN__NUMBER_SIZE]);

/* What a decimal with a point reads as, in any locale. */
double tarn__number_parse(const char *text);

/* The double with the shortest text that reads back as this float: 0.1f gives 0.1. Cast to float it has the float's
 * bits. */
double tarn__number_of_f32(float value);

#endif
