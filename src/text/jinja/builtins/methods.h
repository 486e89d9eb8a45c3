/* methods.h: rows of the tables of methods. `call` gets the object as self; `mode` lets methods share a function.
 * A new method is a function and a row; tarn__jinja_find_method() finds it by the kind of its object. */
#ifndef TARN__METHODS_H
#define TARN__METHODS_H

#include "text/jinja/value.h"

typedef struct tarn__jinja_method_row {
    const char *name; /* NULL: the end */
    tarn__jinja_value (*call)(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                              int mode);
    int mode;
} tarn__jinja_method_row;

extern const tarn__jinja_method_row tarn__jinja_text_methods[];

#endif
