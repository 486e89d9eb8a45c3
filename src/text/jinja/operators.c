/* operators.c: arithmetic, concatenation and comparison, as Python's. Integers have 64 bits: a result beyond them is an
 * error, where Python has big integers. A bool is an int in arithmetic. */
#include <math.h>
#include <string.h>

#include "text/jinja/eval.h"

/* In the order of the tokens from TARN__JINJA_T_ADD on, which program.h keeps together. */
static const char *symbol_of(tarn__jinja_token_kind operator)
{
    static const char *const symbols[] = {"+", "-", "/", "//", "*", "%", "**"};
    return symbols[operator- TARN__JINJA_T_ADD];
}

/* An undefined operand fails with its name, before any error about types. */
static void check_defined(tarn__jinja_run *r, tarn__jinja_value v)
{
    if (v.kind == TARN__JINJA_UNDEFINED)
        tarn__jinja_fail(r, "'%.*s' is undefined", (int)v.as.name->length, v.as.name->text);
}

tarn__jinja_value tarn__jinja_unary(tarn__jinja_run *r, tarn__jinja_token_kind operator, tarn__jinja_value v)
{
    check_defined(r, v);
    if (!tarn__jinja_is_number(v))
        tarn__jinja_fail(r, "bad operand type for unary %s: '%s'", symbol_of(operator), tarn__jinja_type_name(v));
    bool negates = operator== TARN__JINJA_T_SUB;
    if (v.kind == TARN__JINJA_FLOAT)
        return tarn__jinja_float(negates ? -v.as.number : v.as.number);
    int64_t integer = tarn__jinja_integer_of(v);
    if (negates && integer == INT64_MIN)
        tarn__jinja_fail(r, "an integer is too large");
    return tarn__jinja_int(negates ? -integer : integer);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Rounds down, where C rounds towards zero: -7 // 2 is -4. */
static int64_t floor_divide(tarn__jinja_run *r, int64_t a, int64_t b)
{
    if (b == 0)
        tarn__jinja_fail(r, "integer division or modulo by zero");
    if (a == INT64_MIN && b == -1)
        tarn__jinja_fail(r, "an integer is too large");
    int64_t quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

/* Squares and multiplies. The last square is not used, so its overflow counts only if another bit follows. A negative
 * exponent gives a float, as in Python. */
static tarn__jinja_value int_power(tarn__jinja_run *r, int64_t base, int64_t exponent)
{
    if (exponent < 0) {
        if (base == 0)
            tarn__jinja_fail(r, "0.0 cannot be raised to a negative power");
        return tarn__jinja_float(pow((double)base, (double)exponent));
    }
    int64_t result = 1;
    for (bool overflows = false; exponent > 0; exponent >>= 1) {
        if (overflows || (exponent % 2 && __builtin_mul_overflow(result, base, &result)))
            tarn__jinja_fail(r, "an integer is too large");
        overflows = __builtin_mul_overflow(base, base, &base);
    }
    return tarn__jinja_int(result);
}

static tarn__jinja_value int_binary(tarn__jinja_run *r, tarn__jinja_token_kind operator, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflows = false;
    switch (operator) {
    case TARN__JINJA_T_ADD: overflows = __builtin_add_overflow(a, b, &result); break;
    case TARN__JINJA_T_SUB: overflows = __builtin_sub_overflow(a, b, &result); break;
    case TARN__JINJA_T_MUL: overflows = __builtin_mul_overflow(a, b, &result); break;
    case TARN__JINJA_T_FLOORDIV: result = floor_divide(r, a, b); break;
    /* The remainder has the divisor's sign. By -1 it is 0 even where the quotient overflows. */
    case TARN__JINJA_T_MOD: result = b == -1 ? 0 : a - floor_divide(r, a, b) * b; break;
    case TARN__JINJA_T_POW: return int_power(r, a, b);
    default:
        if (b == 0)
            tarn__jinja_fail(r, "division by zero");
        /* / is always a float; operands above 2^53 lose precision before they are divided. */
        return tarn__jinja_float((double)a / (double)b);
    }
    if (overflows)
        tarn__jinja_fail(r, "an integer is too large");
    return tarn__jinja_int(result);
}

/* CPython's float floor division, signs of zero included. */
static double float_floor_divide(double a, double b)
{
    double rest = fmod(a, b), quotient = (a - rest) / b;
    /* Towards zero becomes down, as the sign of the remainder tells. */
    if (rest != 0 && (rest < 0) != (b < 0))
        quotient -= 1;
    if (quotient == 0)
        return copysign(0, a / b);
    /* The quotient is an integer but for its rounding; 0.5 tells on which side it lies. */
    double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

/* fmod() gives the dividend's sign, Python the divisor's. */
static double float_modulo(double a, double b)
{
    double rest = fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest == 0 ? copysign(0, b) : rest;
}

/* Where Python answers with a complex number or OverflowError, the rendering fails. */
static tarn__jinja_value float_power(tarn__jinja_run *r, double a, double b)
{
    if (a == 0 && b < 0)
        tarn__jinja_fail(r, "0.0 cannot be raised to a negative power");
    if (a < 0 && b != floor(b))
        tarn__jinja_fail(r, "complex numbers are not supported");
    double result = pow(a, b);
    if (isinf(result) && !isinf(a) && !isinf(b))
        tarn__jinja_fail(r, "a number is too large");
    return tarn__jinja_float(result);
}

static tarn__jinja_value float_binary(tarn__jinja_run *r, tarn__jinja_token_kind operator, double a, double b)
{
    bool divides = operator== TARN__JINJA_T_DIV || operator== TARN__JINJA_T_FLOORDIV || operator== TARN__JINJA_T_MOD;
    if (divides && b == 0)
        tarn__jinja_fail(r, "float division by zero");
    switch (operator) {
    case TARN__JINJA_T_ADD: return tarn__jinja_float(a + b);
    case TARN__JINJA_T_SUB: return tarn__jinja_float(a - b);
    case TARN__JINJA_T_MUL: return tarn__jinja_float(a * b);
    case TARN__JINJA_T_DIV: return tarn__jinja_float(a / b);
    case TARN__JINJA_T_FLOORDIV: return tarn__jinja_float(float_floor_divide(a, b));
    case TARN__JINJA_T_MOD: return tarn__jinja_float(float_modulo(a, b));
    default: return float_power(r, a, b);
    }
}

/* ---- strings and lists ------------------------------------------------------------------------------------------- */

/* A count below 0 gives an empty result. Empty operands are not repeated at all, so a huge count of nothing costs
 * nothing. */
static tarn__jinja_value repeat(tarn__jinja_run *r, tarn__jinja_value v, int64_t count)
{
    if (v.kind == TARN__JINJA_STRING) {
        tarn__jinja_builder b = {0};
        for (int64_t i = 0; i < count && v.as.string->length; i++) {
            tarn__jinja_step(r, 1);
            tarn__jinja_build_string(r, &b, v.as.string);
        }
        return tarn__jinja_like(r, tarn__jinja_built(r, &b), v.as.string);
    }
    tarn__jinja_value list = tarn__jinja_list_new(r, v.kind, 0);
    for (int64_t i = 0; i < count && v.as.list->count; i++)
        for (size_t k = 0; k < v.as.list->count; k++)
            tarn__jinja_append(r, list.as.list, v.as.list->items[k]);
    return list;
}

/* HTML's five characters as markupsafe writes them. Markup is returned as it is, so nothing is escaped twice. */
tarn__jinja_value tarn__jinja_escape(tarn__jinja_run *r, tarn__jinja_value v)
{
    static const char special[] = "&<>\"'", *const escapes[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    const tarn__jinja_string *s = tarn__jinja_str(r, v);
    if (v.kind == TARN__JINJA_STRING && s->is_markup)
        return v;
    tarn__jinja_builder b = {0};
    for (size_t i = 0; i < s->length; i++) {
        const char *found = s->text[i] ? strchr(special, s->text[i]) : NULL;
        if (found)
            tarn__jinja_build_text(r, &b, escapes[found - special]);
        else
            tarn__jinja_build(r, &b, s->text + i, 1, s->origin ? s->origin + i : NULL);
    }
    tarn__jinja_string *result = (tarn__jinja_string *)(uintptr_t)tarn__jinja_built(r, &b).as.string;
    result->is_markup = true;
    return (tarn__jinja_value){TARN__JINJA_STRING, {.string = result}};
}

/* a + b of strings. If one of them is markup the other is escaped, and the sum is markup. */
tarn__jinja_value tarn__jinja_concat(tarn__jinja_run *r, tarn__jinja_value a, tarn__jinja_value b)
{
    bool is_markup = a.as.string->is_markup || b.as.string->is_markup;
    tarn__jinja_builder builder = {0};
    tarn__jinja_build_string(r, &builder, is_markup ? tarn__jinja_escape(r, a).as.string : a.as.string);
    tarn__jinja_build_string(r, &builder, is_markup ? tarn__jinja_escape(r, b).as.string : b.as.string);
    tarn__jinja_string *result = (tarn__jinja_string *)(uintptr_t)tarn__jinja_built(r, &builder).as.string;
    result->is_markup = is_markup;
    return (tarn__jinja_value){TARN__JINJA_STRING, {.string = result}};
}

/* A new list: `a` may be a variable that is still used. */
static tarn__jinja_value append_lists(tarn__jinja_run *r, tarn__jinja_value a, tarn__jinja_value b)
{
    tarn__jinja_value list = tarn__jinja_list_new(r, a.kind, a.as.list->count + b.as.list->count);
    for (size_t i = 0; i < a.as.list->count; i++)
        tarn__jinja_append(r, list.as.list, a.as.list->items[i]);
    for (size_t i = 0; i < b.as.list->count; i++)
        tarn__jinja_append(r, list.as.list, b.as.list->items[i]);
    return list;
}

/* The string's % comes before the check for undefined values, which format as nothing. */
tarn__jinja_value tarn__jinja_binary(tarn__jinja_run *r, tarn__jinja_token_kind operator, tarn__jinja_value a,
                                     tarn__jinja_value b)
{
    bool left_repeats = a.kind == TARN__JINJA_STRING || tarn__jinja_is_sequence(a),
         right_repeats = b.kind == TARN__JINJA_STRING || tarn__jinja_is_sequence(b);
    if (operator== TARN__JINJA_T_MOD && a.kind == TARN__JINJA_STRING)
        return tarn__jinja_format_percent(r, a.as.string, b);
    check_defined(r, a);
    check_defined(r, b);
    if (tarn__jinja_is_integer(a) && tarn__jinja_is_integer(b))
        return int_binary(r, operator, tarn__jinja_integer_of(a), tarn__jinja_integer_of(b));
    if (tarn__jinja_is_number(a) && tarn__jinja_is_number(b))
        return float_binary(r, operator, tarn__jinja_number_of(a), tarn__jinja_number_of(b));
    if (operator== TARN__JINJA_T_ADD && a.kind == TARN__JINJA_STRING && b.kind == TARN__JINJA_STRING)
        return tarn__jinja_concat(r, a, b);
    if (operator== TARN__JINJA_T_ADD && tarn__jinja_is_sequence(a) && a.kind == b.kind)
        return append_lists(r, a, b);
    if (operator== TARN__JINJA_T_MUL && left_repeats && tarn__jinja_is_integer(b))
        return repeat(r, a, tarn__jinja_integer_of(b));
    if (operator== TARN__JINJA_T_MUL && right_repeats && tarn__jinja_is_integer(a))
        return repeat(r, b, tarn__jinja_integer_of(a));
    tarn__jinja_fail(r, "unsupported operand types for %s: '%s' and '%s'", symbol_of(operator),
                     tarn__jinja_type_name(a), tarn__jinja_type_name(b));
}

/* Unordered values (2, of a NaN) are neither less nor greater, so each order asks for the results it accepts. */
bool tarn__jinja_relation(tarn__jinja_run *r, tarn__jinja_token_kind operator, tarn__jinja_value a, tarn__jinja_value b)
{
    int order;
    switch (operator) {
    case TARN__JINJA_T_EQ: return tarn__jinja_equal(r, a, b);
    case TARN__JINJA_T_NE: return !tarn__jinja_equal(r, a, b);
    case TARN__JINJA_T_IN: return tarn__jinja_contains(r, b, a);
    case TARN__JINJA_T_NOT_IN: return !tarn__jinja_contains(r, b, a);
    case TARN__JINJA_T_LT: return tarn__jinja_compare(r, "<", a, b) == -1;
    case TARN__JINJA_T_GT: return tarn__jinja_compare(r, ">", a, b) == 1;
    case TARN__JINJA_T_LTEQ: return (order = tarn__jinja_compare(r, "<=", a, b)) == -1 || order == 0;
    default: return (order = tarn__jinja_compare(r, ">=", a, b)) == 1 || order == 0;
    }
}
