/* number_format.h: numbers as strings with the fewest digits that read back as the same number: 0.1, not
 * 0.10000000000000001. For JSON files, whose numbers must survive a round trip in any locale. */
#ifndef TARN__NUMBER_FORMAT_H
#define TARN__NUMBER_FORMAT_H

#define TARN__NUMBER_SIZE 32 /* size of a buffer for any number */

/* Writes the shortest decimal that reads back as the same double, the closest of those, as Python's repr() does:
 * "0.1", "1.0", "-0.0", "1e-05", "1e+16"; NaN and infinity become "null". Independent of the locale. Returns `text`. */
const char *tarn__number_format(double value, char text[TARN__NUMBER_SIZE]);

/* strtod() that expects a point in any locale. */
double tarn__number_parse(const char *text);

/* The double with the shortest decimal that rounds to this float: 0.1f gives 0.1. Casting it back gives the same
 * bits. */
double tarn__number_of_f32(float value);

#endif
