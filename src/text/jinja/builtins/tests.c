/* tests.c: what stands after `is`. As with filters, similar tests share a function that `mode` selects for. Kinds ask
 * about the value only: an undefined value can be tested for all of them without an error. A new test is a function and
 * a row of the table at the end. */
#include <string.h>

#include "text/jinja/eval.h"

enum {
    DEFINED,
    UNDEFINED,
    NONE,
    BOOLEAN,
    IS_TRUE,
    IS_FALSE,
    INTEGER,
    FLOAT,
    NUMBER,
    STRING,
    MAPPING,
    ITERABLE,
    SEQUENCE,
    CALLABLE,
    ESCAPED
};

/* What has a length and subscripts in Python, which Jinja asks for. Undefined values have both. */
static bool is_sequence(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_UNDEFINED || v.kind == TARN__JINJA_STRING || v.kind == TARN__JINJA_DICT ||
           v.kind == TARN__JINJA_RANGE || tarn__jinja_is_sequence(v);
}

/* Jinja's undefined values have a __call__, which fails. */
static bool is_callable(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_UNDEFINED || v.kind == TARN__JINJA_MACRO || v.kind == TARN__JINJA_FUNCTION ||
           v.kind == TARN__JINJA_METHOD || v.kind == TARN__JINJA_LOOP || v.kind == TARN__JINJA_JOINER;
}

/* Integers and floats are told apart and bools are neither, though Python's bool is an int: Jinja asks for that. */
static bool is_kind(tarn__jinja_run *r, tarn__jinja_value v, const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_bind(r, "test", arguments, "", 0, NULL);
    switch (mode) {
    case DEFINED: return v.kind != TARN__JINJA_UNDEFINED;
    case UNDEFINED: return v.kind == TARN__JINJA_UNDEFINED;
    case NONE: return v.kind == TARN__JINJA_NONE;
    case BOOLEAN: return v.kind == TARN__JINJA_BOOL;
    case IS_TRUE: return v.kind == TARN__JINJA_BOOL && v.as.flag;
    case IS_FALSE: return v.kind == TARN__JINJA_BOOL && !v.as.flag;
    case INTEGER: return v.kind == TARN__JINJA_INT;
    case FLOAT: return v.kind == TARN__JINJA_FLOAT;
    case NUMBER: return tarn__jinja_is_number(v);
    case STRING: return v.kind == TARN__JINJA_STRING;
    case MAPPING: return v.kind == TARN__JINJA_DICT;
    /* A loop can be iterated in Python, which would use it up; only the question is answered here. */
    case ITERABLE: return tarn__jinja_is_iterable(v) || v.kind == TARN__JINJA_LOOP;
    case SEQUENCE: return is_sequence(v);
    case CALLABLE: return is_callable(v);
    default: return v.kind == TARN__JINJA_STRING && v.as.string->is_markup;
    }
}

/* "ABC" is upper: the methods of the value's str(). */
static bool is_case(tarn__jinja_run *r, tarn__jinja_value v, const tarn__jinja_arguments *arguments, int mode)
{
    /* The methods that the value's str() has, so 5 is upper is false and no error. */
    tarn__jinja_value text = {TARN__JINJA_STRING, {.string = tarn__jinja_str(r, v)}};
    tarn__jinja_bind(r, "test", arguments, "", 0, NULL);
    /* "filter 5" asks for the name "5". */
    const tarn__jinja_string *name =
        mode == TARN__JINJA_UPPER ? TARN__JINJA_TEXT("isupper").as.string : TARN__JINJA_TEXT("islower").as.string;
    tarn__jinja_arguments none = {0};
    return tarn__jinja_truth(r, tarn__jinja_call(r, tarn__jinja_attribute(r, text, name), &none));
}

/* even, odd: the remainder by 2 is mode; divisibleby: mode is -1. The remainder of floats is a float, which equals the
 * int. */
static bool is_divisible(tarn__jinja_run *r, tarn__jinja_value v, const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_value divisor = tarn__jinja_int(2);
    tarn__jinja_bind(r, "test", arguments, mode < 0 ? "num" : "", mode < 0, &divisor);
    return tarn__jinja_equal(r, tarn__jinja_binary(r, TARN__JINJA_T_MOD, v, divisor),
                             tarn__jinja_int(mode < 0 ? 0 : mode));
}

/* Comparisons: mode is the operator. */
static bool is_related(tarn__jinja_run *r, tarn__jinja_value v, const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_value other;
    tarn__jinja_bind(r, "test", arguments, "/other", 1, &other);
    return tarn__jinja_relation(r, (tarn__jinja_token_kind)mode, v, other);
}

/* sameas is Python's `is`. Small values have no identity here, so equal ones of a kind are the same; lists and dicts
 * are compared by address. */
static bool is_same(tarn__jinja_run *r, tarn__jinja_value v, const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_value other;
    (void)mode;
    tarn__jinja_bind(r, "test", arguments, "other", 1, &other);
    if (v.kind != other.kind)
        return false;
    if (v.kind <= TARN__JINJA_STRING)
        return tarn__jinja_equal(r, v, other);
    return v.as.list == other.as.list;
}

/* "upper" is filter, "odd" is test: whether one of that name exists. Jinja looks the value up in a dict, hence the
 * error for what cannot be a key. */
static bool is_named(tarn__jinja_run *r, tarn__jinja_value v, const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_bind(r, "test", arguments, "", 0, NULL);
    if (!tarn__jinja_is_hashable(v))
        tarn__jinja_fail(r, "unhashable type: '%s'", tarn__jinja_type_name(v));
    const tarn__jinja_string *name = tarn__jinja_str(r, v);
    return mode ? tarn__jinja_find_test(name->text, name->length) != NULL
                : tarn__jinja_find_filter(name->text, name->length) != NULL;
}

/* With Jinja's aliases; operators are names too, for select("==", 1). */
const tarn__jinja_test *tarn__jinja_find_test(const char *name, size_t length)
{
    static const tarn__jinja_test tests[] = {{"defined", is_kind, DEFINED},
                                             {"undefined", is_kind, UNDEFINED},
                                             {"none", is_kind, NONE},
                                             {"boolean", is_kind, BOOLEAN},
                                             {"true", is_kind, IS_TRUE},
                                             {"false", is_kind, IS_FALSE},
                                             {"integer", is_kind, INTEGER},
                                             {"float", is_kind, FLOAT},
                                             {"number", is_kind, NUMBER},
                                             {"string", is_kind, STRING},
                                             {"mapping", is_kind, MAPPING},
                                             {"iterable", is_kind, ITERABLE},
                                             {"sequence", is_kind, SEQUENCE},
                                             {"callable", is_kind, CALLABLE},
                                             {"escaped", is_kind, ESCAPED},
                                             {"lower", is_case, TARN__JINJA_LOWER},
                                             {"upper", is_case, TARN__JINJA_UPPER},
                                             {"even", is_divisible, 0},
                                             {"odd", is_divisible, 1},
                                             {"divisibleby", is_divisible, -1},
                                             {"eq", is_related, TARN__JINJA_T_EQ},
                                             {"equalto", is_related, TARN__JINJA_T_EQ},
                                             {"==", is_related, TARN__JINJA_T_EQ},
                                             {"ne", is_related, TARN__JINJA_T_NE},
                                             {"!=", is_related, TARN__JINJA_T_NE},
                                             {"lt", is_related, TARN__JINJA_T_LT},
                                             {"lessthan", is_related, TARN__JINJA_T_LT},
                                             {"<", is_related, TARN__JINJA_T_LT},
                                             {"le", is_related, TARN__JINJA_T_LTEQ},
                                             {"<=", is_related, TARN__JINJA_T_LTEQ},
                                             {"gt", is_related, TARN__JINJA_T_GT},
                                             {"greaterthan", is_related, TARN__JINJA_T_GT},
                                             {">", is_related, TARN__JINJA_T_GT},
                                             {"ge", is_related, TARN__JINJA_T_GTEQ},
                                             {">=", is_related, TARN__JINJA_T_GTEQ},
                                             {"in", is_related, TARN__JINJA_T_IN},
                                             {"sameas", is_same, 0},
                                             {"filter", is_named, 0},
                                             {"test", is_named, 1}};
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        if (strlen(tests[i].name) == length && memcmp(tests[i].name, name, length) == 0)
            return &tests[i];
    return NULL;
}
