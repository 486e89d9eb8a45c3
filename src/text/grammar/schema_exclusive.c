/* schema_exclusive.c: proofs that no value matches two schemas, for oneOf.
 *
 * What the keywords of a conjunction say without its alternatives contains all its values. If these supersets have
 * nothing in common, neither have the schemas. */
#include "text/grammar/schema.h"

/* Members in members that are compared; deeper differences are not found. */
#define MAX_DEPTH 6

/* The values of a conjunction's first const or enum: a list, or one node. */
static uint32_t constants(const tarn__schema *s, const tarn__buffer *items, bool *is_const)
{
    size_t at = 0;
    uint32_t node = tarn__schema_next(s, items, "const", &at, NULL);
    *is_const = node != 0;
    at = 0;
    return node ? node : tarn__schema_next(s, items, "enum", &at, NULL);
}

static uint32_t first_of(const tarn__schema *s, uint32_t list, bool is_const)
{
    return is_const ? list : tarn__json_at(&s->tree, list)->first;
}

static uint32_t next_of(const tarn__schema *s, uint32_t value, bool is_const)
{
    return is_const ? 0 : tarn__json_at(&s->tree, value)->next;
}

/* Types of the values that a conjunction allows. */
static uint32_t types_of(const tarn__schema *s, const tarn__buffer *items)
{
    bool is_const;
    uint32_t types = tarn__schema_types(s, items), list = constants(s, items, &is_const), some = 0;
    for (uint32_t x = list ? first_of(s, list, is_const) : 0; x; x = next_of(s, x, is_const))
        some |= tarn__type_of(&s->tree, x);
    return list ? types & some : types;
}

/* No constant of one equals one of the other: their product is compared, at most 4000 times 4000. */
static bool constants_differ(const tarn__schema *s, const tarn__buffer *a, const tarn__buffer *b)
{
    bool a_const, b_const;
    uint32_t x_list = constants(s, a, &a_const), y_list = constants(s, b, &b_const);
    if (!x_list || !y_list)
        return false;
    for (uint32_t x = first_of(s, x_list, a_const); x; x = next_of(s, x, a_const))
        for (uint32_t y = first_of(s, y_list, b_const); y; y = next_of(s, y, b_const))
            if (tarn__json_equal(&s->tree, x, y))
                return false;
    return true;
}

/* Every number of `a` is below every number of `b`. */
static bool is_below(const tarn__bounds *a, const tarn__bounds *b)
{
    if (!a->has_high || !b->has_low)
        return false;
    int order = tarn__decimal_compare(&a->high, &b->low);
    return order < 0 || (order == 0 && (a->high_excluded || b->low_excluded));
}

static bool bounds_differ(const tarn__schema *s, const tarn__buffer *a, const tarn__buffer *b)
{
    tarn__bounds x, y;
    return tarn__schema_bounds(s, a, &x) && tarn__schema_bounds(s, b, &y) && (is_below(&x, &y) || is_below(&y, &x));
}

/* A member that one of both requires, and whose values cannot be equal. */
static bool member_differs(tarn__schema *s, const tarn__buffer *a, const tarn__buffer *b, uint32_t name, int depth)
{
    tarn__buffer x = {0}, y = {0};
    bool x_nothing = false, y_nothing = false, is_named = false;
    const char *text = tarn__json_text(&s->tree, name);
    size_t length = tarn__json_at(&s->tree, name)->length;
    bool good = tarn__schema_add_member(s, a, text, length, &x, &x_nothing, &is_named) &&
                tarn__schema_add_member(s, b, text, length, &y, &y_nothing, &is_named);
    good = good && (x_nothing || y_nothing || tarn__schema_exclusive(s, &x, &y, depth + 1));
    tarn__buffer_free(&x, sizeof(uint32_t));
    tarn__buffer_free(&y, sizeof(uint32_t));
    return good;
}

/* The usual case: {"kind": {"const": "a"}} against {"kind": {"const": "b"}}. The member must be required by one of
 * them, since two objects without it could be equal. */
static bool members_differ(tarn__schema *s, const tarn__buffer *a, const tarn__buffer *b, int depth)
{
    for (int side = 0; side < 2; side++) {
        size_t at = 0;
        for (uint32_t list; (list = tarn__schema_next(s, side ? b : a, "required", &at, NULL));)
            for (uint32_t x = tarn__json_at(&s->tree, list)->first; x; x = tarn__json_at(&s->tree, x)->next)
                if (member_differs(s, a, b, x, depth))
                    return true;
    }
    return false;
}

bool tarn__schema_exclusive(tarn__schema *s, const tarn__buffer *a, const tarn__buffer *b, int depth)
{
    if (tarn_failed() || depth > MAX_DEPTH)
        return false;
    uint32_t common = types_of(s, a) & types_of(s, b);
    if (common == 0 || constants_differ(s, a, b))
        return true;
    if (!(common & ~(uint32_t)(TARN__TYPE_INTEGER | TARN__TYPE_NUMBER)))
        return bounds_differ(s, a, b);
    return common == TARN__TYPE_OBJECT && members_differ(s, a, b, depth);
}
