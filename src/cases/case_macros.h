/* case_macros.h: the macros that cases are written with. Each expands to an initializer of a struct of cases.h.
 *
 * An example: CASE("rope", "heads", {NORMAL(32, 1024, 12, 64)}, .bench = "rope", .backward = 2). Members after the
 * inputs and attributes are named; those that are left out are zero. */
#ifndef TARN__CASE_MACROS_H
#define TARN__CASE_MACROS_H

#include "cases/cases.h"

/* A shape: the number of sizes, then the sizes. */
#define SIZES(...) \
    { \
        (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
        { \
            __VA_ARGS__ \
        } \
    }

/* Inputs. The word is the distribution of the values (cases.h), the arguments are the shape. INDEX and ZIPF have
 * integers below a limit; RANK0 is a scalar. */
#define NORMAL(...) \
    { \
        .values = TARN__NORMAL, .shape = SIZES(__VA_ARGS__) \
    }
#define POSITIVE(...) \
    { \
        .values = TARN__POSITIVE, .shape = SIZES(__VA_ARGS__) \
    }
#define UNIT(...) \
    { \
        .values = TARN__UNIT, .shape = SIZES(__VA_ARGS__) \
    }
#define SMOOTH(...) \
    { \
        .values = TARN__SMOOTH, .shape = SIZES(__VA_ARGS__) \
    }
#define DISTINCT(...) \
    { \
        .values = TARN__DISTINCT, .shape = SIZES(__VA_ARGS__) \
    }
#define TIES(...) \
    { \
        .values = TARN__TIES, .shape = SIZES(__VA_ARGS__) \
    }
#define BOOLS(...) \
    { \
        .values = TARN__BOOLS, .shape = SIZES(__VA_ARGS__) \
    }
#define INDEX(limit, ...) \
    { \
        .values = TARN__INDEX, .shape = SIZES(__VA_ARGS__), .below = limit \
    }
#define ZIPF(limit, ...) \
    { \
        .values = TARN__ZIPF, .shape = SIZES(__VA_ARGS__), .below = limit \
    }
#define STEPS(step, ...) \
    { \
        .values = TARN__STEPS, .shape = SIZES(__VA_ARGS__), .below = step \
    }
#define CHANNELS_LAST(kind, ...) \
    { \
        .values = TARN__##kind, .shape = SIZES(__VA_ARGS__), .channels_last = true \
    }
#define RANK0(kind) \
    { \
        .values = TARN__##kind \
    }

/* Attributes. */
#define INT(word, value) \
    { \
        .name = word, .integer = value \
    }
#define ON(word) \
    { \
        .name = word, .integer = 1 \
    }
#define REAL(word, value) \
    { \
        .name = word, .number = value \
    }
#define LIST(word, ...) \
    { \
        .name = word, .list = {__VA_ARGS__}, .count = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)) \
    }

/* CASE(operation, variant, {inputs}, {attributes}, …) */
#define CASE(name_, variant_, ...) \
    { \
        .operation = name_, .variant = variant_, .input = __VA_ARGS__ \
    }

#endif
