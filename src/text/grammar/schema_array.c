/* schema_array.c: arrays of a schema. Elements with schemas of their own (prefixItems, or items as an array) come one
 * by one; all further ones are alike and become a repetition. An element that no value fits ends the array before it.
 *
 *     {"prefixItems": [A], "items": B, "minItems": 2}     [ A , B (, B)* ] */
#include "base/error.h"
#include "text/grammar/schema.h"

/* The schema of element `index` by one schema; 0: any. prefixItems, or items as an array, and then the rest. */
static uint32_t element_of(const tarn__json_tree *tree, uint32_t owner, size_t index, bool *is_prefix)
{
    uint32_t prefix = tarn__json_get(tree, owner, "prefixItems"), items = tarn__json_get(tree, owner, "items");
    uint32_t rest = items;
    if (items && tarn__json_at(tree, items)->kind == TARN__JSON_ARRAY) {
        prefix = prefix ? prefix : items;
        rest = tarn__json_get(tree, owner, "additionalItems");
    }
    *is_prefix = prefix && index < tarn__json_at(tree, prefix)->count;
    if (!*is_prefix)
        return rest;
    uint32_t x = tarn__json_at(tree, prefix)->first;
    while (index--)
        x = tarn__json_at(tree, x)->next;
    return x;
}

/* The expression of element `index`. *nothing: there is none; *is_prefix: some schema has one of its own for it. */
static uint32_t element(tarn__schema *s, const tarn__buffer *items, size_t index, bool *nothing, bool *is_prefix)
{
    tarn__buffer all = {0};
    uint32_t expr = 0;
    *nothing = *is_prefix = false;
    for (size_t i = 0; i < items->count && !tarn_failed(); i++) {
        bool is_own;
        uint32_t node = element_of(&s->tree, ((const uint32_t *)(const void *)items->data)[i] >> 2, index, &is_own);
        *is_prefix = *is_prefix || is_own;
        if (node)
            tarn__schema_add(s, &all, node, nothing);
    }
    if (!tarn_failed() && !*nothing)
        expr = tarn__schema_all(s, &all);
    tarn__buffer_free(&all, sizeof(uint32_t));
    return expr;
}

/* What follows `count` elements: a comma and more, or the end. `prefix`: elements with schemas of their own. Recursion
 * is as deep as the prefix is long, at least one element. */
static uint32_t rest(tarn__schema *s, const tarn__buffer *items, int64_t count, int64_t prefix, int64_t min,
                     int64_t max)
{
    tarn__gb *gb = s->gb;
    bool nothing, is_own;
    uint32_t ws = tarn__json_call(&s->rules, TARN__RULE_SPACE), end = tarn__gb_text(gb, "]");
    uint32_t comma = count > 0 ? tarn__gb_seq_of(gb, tarn__gb_text(gb, ","), ws) : 0;
    uint32_t none = tarn__gb_alt(gb, NULL, 0), stop = count >= min ? end : none;
    if (tarn_failed() || (max >= 0 && count >= max))
        return stop;
    uint32_t one = element(s, items, (size_t)count, &nothing, &is_own);
    if (nothing)
        return stop;
    uint32_t next = tarn__gb_seq_of(gb, comma, one, ws);
    if (count > 0 && count >= prefix) /* all further ones are alike */
        return tarn__gb_seq_of(
            gb,
            tarn__gb_repeat(gb, next, (int32_t)(min > count ? min - count : 0), (int32_t)(max < 0 ? -1 : max - count)),
            end);
    return tarn__gb_alt_of(gb, stop, tarn__gb_seq_of(gb, next, rest(s, items, count + 1, prefix, min, max)));
}

uint32_t tarn__schema_array(tarn__schema *s, const tarn__buffer *items)
{
    int64_t min = tarn__schema_count(s, items, "minItems", true), max = tarn__schema_count(s, items, "maxItems", false);
    /* The longest prefix among the schemas; each has its own rest after it. */
    int64_t prefix = 0;
    for (size_t i = 0; i < items->count; i++) {
        uint32_t owner = ((const uint32_t *)(const void *)items->data)[i] >> 2;
        bool is_own = true;
        /* Counts the prefix by asking for its elements; 1000 bound the recursion of rest(). */
        int64_t own = 0;
        while (is_own && own < 1000) {
            element_of(&s->tree, owner, (size_t)own, &is_own);
            own += is_own;
        }
        if (own == 1000)
            return (uint32_t)tarn__schema_fail(s, owner, "prefixItems has too many schemas");
        prefix = own > prefix ? own : prefix;
    }
    if (tarn_failed())
        return 0;
    uint32_t ws = tarn__json_call(&s->rules, TARN__RULE_SPACE);
    return tarn__gb_seq_of(s->gb, tarn__gb_text(s->gb, "["), ws, rest(s, items, 0, prefix, min < 0 ? 0 : min, max));
}
