/* schema_object.c: objects of a schema.
 *
 * Members come in the order in which the schema names them; then those of additionalProperties or patternProperties.
 * Other members are left out where the schema names any, although JSON Schema would allow them: they would be
 * unconstrained. Two rules per member keep commas right: `choose` before a member, `more` after one. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/grammar/schema.h"

typedef struct member {
    const char *name;
    size_t length;
    bool is_required;
    uint32_t pair; /* expression: name and value */
} member;

/* An object under construction. */
typedef struct object {
    tarn__schema *s;
    const tarn__buffer *items;
    tarn__buffer members; /* member */
    uint32_t open;        /* expression of any other member; 0: none */
    uint32_t ws;
} object;

static member *member_at(const object *o, size_t index)
{
    return (member *)(void *)o->members.data + index;
}

static uint32_t item_at(const tarn__buffer *items, size_t index)
{
    return ((const uint32_t *)(const void *)items->data)[index] >> 2;
}

/* ---- schemas of members ------------------------------------------------------------------------------------------ */

/* True when a name matches a key of patternProperties, which is found anywhere in it. Sets *failed with an error. The
 * pattern is compiled for each name: both are few. */
static bool matches_pattern(tarn__schema *s, uint32_t pattern, const char *name, size_t length, bool *failed)
{
    tarn__gb own;
    tarn__dfa dfa;
    const tarn__json_node *n = tarn__json_at(&s->tree, pattern);
    *failed = true;
    if (!tarn__gb_open(&own))
        return false;
    own.root = tarn__gb_rule(&own, NULL, 0);
    tarn__gb_rule_set(
        &own, own.root,
        tarn__regex_parse(&own, s->function, tarn__json_key(&s->tree, pattern), n->key_length, true, NULL));
    if (!tarn__dfa_build(&dfa, &own, s->function))
        return false;
    bool found = tarn__dfa_matches(&dfa, name, length);
    tarn__dfa_free(&dfa);
    *failed = false;
    return found;
}

/* What one schema says of a member: properties and patternProperties that name it, else additionalProperties. The three
 * keywords of one schema belong together: additionalProperties is for what the same schema's others do not name. */
static bool add_from(tarn__schema *s, uint32_t owner, const char *name, size_t length, tarn__buffer *to, bool *nothing,
                     bool *is_named)
{
    uint32_t properties = tarn__json_get(&s->tree, owner, "properties");
    uint32_t patterns = tarn__json_get(&s->tree, owner, "patternProperties");
    uint32_t others = tarn__json_get(&s->tree, owner, "additionalProperties");
    uint32_t own = properties ? tarn__json_get_length(&s->tree, properties, name, length) : 0;
    bool failed, is_known = own != 0;
    *is_named = *is_named || own;
    if (own && !tarn__schema_add(s, to, own, nothing))
        return false;
    for (uint32_t x = patterns ? tarn__json_at(&s->tree, patterns)->first : 0; x;
         x = tarn__json_at(&s->tree, x)->next) {
        bool matches = matches_pattern(s, x, name, length, &failed);
        if (failed || (matches && !tarn__schema_add(s, to, x, nothing)))
            return false;
        is_known = is_known || matches;
    }
    return is_known || !others || tarn__schema_add(s, to, others, nothing);
}

bool tarn__schema_add_member(tarn__schema *s, const tarn__buffer *items, const char *name, size_t length,
                             tarn__buffer *to, bool *nothing, bool *is_named)
{
    for (size_t i = 0; i < items->count; i++)
        if (!add_from(s, item_at(items, i), name, length, to, nothing, is_named))
            return false;
    return true;
}

/* ---- named members ----------------------------------------------------------------------------------------------- */

/* "name": value. */
static uint32_t pair_of(object *o, uint32_t name, uint32_t value)
{
    return tarn__gb_seq_of(o->s->gb, name, o->ws, tarn__gb_text(o->s->gb, ":"), o->ws, value);
}

/* Adds a name, or makes it required. */
static bool add_name(object *o, const char *name, size_t length, bool is_required)
{
    for (size_t i = 0; i < o->members.count; i++)
        if (member_at(o, i)->length == length && memcmp(member_at(o, i)->name, name, length) == 0) {
            member_at(o, i)->is_required = member_at(o, i)->is_required || is_required;
            return true;
        }
    if (o->members.count >= TARN__MAX_CHOICES)
        return tarn__schema_fail(o->s, ((const uint32_t *)(const void *)o->items->data)[0] >> 2,
                                 "the object has more than 4000 members");
    return tarn__buffer_add(&o->members, &(member){name, length, is_required, 0}, 1, sizeof(member));
}

/* Names of properties first, in their order, then those that are only required. */
static bool add_names(object *o)
{
    size_t at = 0;
    const tarn__json_tree *tree = &o->s->tree;
    for (uint32_t list; (list = tarn__schema_next(o->s, o->items, "properties", &at, NULL));)
        for (uint32_t x = tarn__json_at(tree, list)->first; x; x = tarn__json_at(tree, x)->next)
            if (!add_name(o, tarn__json_key(tree, x), tarn__json_at(tree, x)->key_length, false))
                return false;
    at = 0;
    for (uint32_t list; (list = tarn__schema_next(o->s, o->items, "required", &at, NULL));)
        for (uint32_t x = tarn__json_at(tree, list)->first; x; x = tarn__json_at(tree, x)->next)
            if (!add_name(o, tarn__json_text(tree, x), tarn__json_at(tree, x)->length, true))
                return false;
    return true;
}

/* The expressions of named members. One that no value fits matches nothing, and is never chosen. */
static bool build_pairs(object *o)
{
    tarn__gb *gb = o->s->gb;
    uint32_t quote = tarn__gb_text(gb, "\"");
    for (size_t i = 0; i < o->members.count && !tarn_failed(); i++) {
        tarn__buffer all = {0};
        bool nothing = false, is_named = false;
        member m = *member_at(o, i);
        tarn__schema_add_member(o->s, o->items, m.name, m.length, &all, &nothing, &is_named);
        uint32_t value = tarn_failed() || nothing ? tarn__gb_alt(gb, NULL, 0) : tarn__schema_all(o->s, &all);
        uint32_t name = tarn__gb_seq_of(gb, quote, tarn__json_literal(gb, m.name, m.length), quote);
        member_at(o, i)->pair = pair_of(o, name, value);
        tarn__buffer_free(&all, sizeof(uint32_t));
    }
    return !tarn_failed();
}

/* ---- other members ----------------------------------------------------------------------------------------------- */

/* Strings, without quotes, that are none of the names in [first, end), which are sorted and share `depth` bytes. With
 * the names "ab" and "ac": the empty string, any other first character with anything after it, "a" alone, "a" with
 * another second one, "ab" or "ac" with more after it. */
static uint32_t none_of(tarn__gb *gb, const member *names, size_t first, size_t end, size_t depth)
{
    tarn__buffer parts = {0}, heads = {0};
    bool is_name = first < end && names[first].length == depth;
    uint32_t expr = 0;
    if (!is_name)
        tarn__buffer_add(&parts, &expr, 1, sizeof(expr)); /* the empty rest */
    for (size_t i = first + is_name; i < end && !tarn_failed();) {
        uint32_t code = 0;
        size_t last = i, bytes = tarn__utf8_decode(names[i].name + depth, names[i].length - depth, &code);
        while (last < end && names[last].length >= depth + bytes &&
               memcmp(names[last].name + depth, names[i].name + depth, bytes) == 0)
            last++;
        tarn__buffer_add(&heads, &(tarn__range){code, code}, 1, sizeof(tarn__range));
        expr = tarn__gb_seq_of(gb, tarn__json_literal(gb, names[i].name + depth, bytes),
                               none_of(gb, names, i, last, depth + bytes));
        tarn__buffer_add(&parts, &expr, 1, sizeof(expr));
        i = last;
    }
    if (!tarn_failed()) {
        expr =
            tarn__gb_seq_of(gb, tarn__json_class(gb, (const tarn__range *)(const void *)heads.data, heads.count, true),
                            tarn__gb_repeat(gb, tarn__json_class(gb, NULL, 0, true), 0, -1));
        tarn__buffer_add(&parts, &expr, 1, sizeof(expr));
    }
    expr = tarn_failed() ? 0 : tarn__gb_alt(gb, (const uint32_t *)(const void *)parts.data, parts.count);
    tarn__buffer_free(&parts, sizeof(uint32_t));
    tarn__buffer_free(&heads, sizeof(tarn__range));
    return expr;
}

static int by_name(const void *a, const void *b)
{
    const member *x = a, *y = b;
    int order = memcmp(x->name, y->name, x->length < y->length ? x->length : y->length);
    return order ? order : x->length < y->length ? -1 : x->length > y->length;
}

/* Names that are not named members. */
static uint32_t other_names(object *o, tarn__gb *gb)
{
    tarn__buffer sorted = {0};
    if (o->members.count && !tarn__buffer_add(&sorted, o->members.data, o->members.count, sizeof(member)))
        return 0;
    if (sorted.count > 1)
        qsort(sorted.data, sorted.count, sizeof(member), by_name);
    uint32_t expr = none_of(gb, (const member *)(const void *)sorted.data, 0, sorted.count, 0);
    tarn__buffer_free(&sorted, sizeof(member));
    return expr;
}

/* Members of additionalProperties: open if a schema says so, or if none names any member. */
static bool add_additional(object *o, bool has_patterns)
{
    size_t at = 0;
    tarn__buffer all = {0};
    tarn__schema *s = o->s;
    bool is_open = false, nothing = false;
    for (uint32_t node; (node = tarn__schema_next(s, o->items, "additionalProperties", &at, NULL));) {
        is_open = true;
        if (!tarn__schema_add(s, &all, node, &nothing))
            nothing = true;
        if (has_patterns && tarn__json_at(&s->tree, node)->kind != TARN__JSON_FALSE)
            tarn__schema_fail(s, node, "additionalProperties next to patternProperties is supported only as false");
    }
    at = 0;
    bool is_closed = tarn__schema_next(s, o->items, "unevaluatedProperties", &at, NULL) != 0;
    is_open = is_open || (o->members.count == 0 && !has_patterns && !is_closed);
    if (is_open && !nothing && !tarn_failed()) {
        uint32_t quote = tarn__gb_text(s->gb, "\"");
        o->open = pair_of(o, tarn__gb_seq_of(s->gb, quote, other_names(o, s->gb), quote), tarn__schema_all(s, &all));
    }
    tarn__buffer_free(&all, sizeof(uint32_t));
    return !tarn_failed();
}

/* The names of one pattern that are not named members. Keys are found anywhere in a name. Both sides are written with
 * the shortest escapes, so that the intersection compares texts. */
static bool pattern_names(object *o, uint32_t pattern, tarn__dfa *dfa)
{
    tarn__schema *s = o->s;
    tarn__gb own;
    tarn__dfa others;
    *dfa = (tarn__dfa){0};
    if (!tarn__gb_open(&own))
        return false;
    own.root = tarn__gb_rule(&own, NULL, 0);
    tarn__gb_rule_set(&own, own.root,
                      tarn__regex_parse(&own, s->function, tarn__json_key(&s->tree, pattern),
                                        tarn__json_at(&s->tree, pattern)->key_length, true, tarn__json_class));
    if (!tarn__dfa_build(dfa, &own, s->function))
        return false;
    if (!tarn__gb_open(&own)) {
        tarn__dfa_free(dfa);
        return false;
    }
    own.root = tarn__gb_rule(&own, NULL, 0);
    tarn__gb_rule_set(&own, own.root, other_names(o, &own));
    if (!tarn__dfa_build(&others, &own, s->function)) {
        tarn__dfa_free(dfa);
        return false;
    }
    return tarn__dfa_intersect(dfa, &others, s->function);
}

/* Members of patternProperties: one pattern, in one schema of the conjunction. */
static bool add_patterns(object *o, bool *has_patterns)
{
    size_t at = 0, more;
    tarn__schema *s = o->s;
    uint32_t owner, patterns = tarn__schema_next(s, o->items, "patternProperties", &at, &owner);
    *has_patterns = patterns && tarn__json_at(&s->tree, patterns)->count > 0;
    if (!*has_patterns)
        return true;
    more = at;
    if (tarn__json_at(&s->tree, patterns)->count > 1 ||
        tarn__schema_next(s, o->items, "patternProperties", &more, NULL))
        return tarn__schema_fail(s, patterns, "only one pattern is supported: several could match the same member");
    uint32_t pattern = tarn__json_at(&s->tree, patterns)->first;
    tarn__buffer all = {0};
    tarn__dfa names;
    bool nothing = false, good = tarn__schema_add(s, &all, pattern, &nothing);
    for (size_t i = 0; good && i < o->items->count; i++) { /* for other schemas it is an additional member */
        uint32_t other = item_at(o->items, i);
        uint32_t additional = tarn__json_get(&s->tree, other, "additionalProperties");
        good = other == owner || !additional || tarn__schema_add(s, &all, additional, &nothing);
    }
    if (good && !nothing && pattern_names(o, pattern, &names)) {
        uint32_t quote = tarn__gb_text(s->gb, "\"");
        o->open =
            pair_of(o, tarn__gb_seq_of(s->gb, quote, tarn__gb_dfa(s->gb, &names), quote), tarn__schema_all(s, &all));
    }
    tarn__buffer_free(&all, sizeof(uint32_t));
    return !tarn_failed();
}

/* ---- the object -------------------------------------------------------------------------------------------------- */

/* minProperties and maxProperties where they hold in any case, or say that an object of other members is not empty.
 * Counting members in any order would need a state for each subset. */
static bool check_counts(const object *o, bool *needs_one, int64_t *max_open)
{
    size_t at = 0, required = 0;
    int64_t min = tarn__schema_count(o->s, o->items, "minProperties", true);
    int64_t max = tarn__schema_count(o->s, o->items, "maxProperties", false);
    for (size_t i = 0; i < o->members.count; i++)
        required += member_at(o, i)->is_required;
    *needs_one = min == 1 && required == 0;
    *max_open = -1;
    if (min > (int64_t)required && !*needs_one)
        return tarn__schema_fail(o->s, tarn__schema_next(o->s, o->items, "minProperties", &at, NULL),
                                 "minProperties above the number of required members cannot be enforced");
    if (max >= 0 && o->open && o->members.count == 0)
        *max_open = max;
    else if (max >= 0 && (o->open || max < (int64_t)o->members.count))
        return tarn__schema_fail(o->s, tarn__schema_next(o->s, o->items, "maxProperties", &at, NULL),
                                 "maxProperties below the number of named members cannot be enforced");
    return !tarn_failed();
}

/* An object of other members only. The first member has no comma before it, hence max - 1 more. */
static uint32_t open_object(const object *o, bool needs_one, int64_t max)
{
    tarn__gb *gb = o->s->gb;
    uint32_t open = tarn__gb_text(gb, "{"), close = tarn__gb_text(gb, "}");
    if (max == 0)
        return needs_one ? tarn__gb_alt(gb, NULL, 0) : tarn__gb_seq_of(gb, open, o->ws, close);
    uint32_t next = tarn__gb_seq_of(gb, tarn__gb_text(gb, ","), o->ws, o->open, o->ws);
    uint32_t all = tarn__gb_seq_of(gb, o->open, o->ws, tarn__gb_repeat(gb, next, 0, max < 0 ? -1 : (int32_t)max - 1));
    return tarn__gb_seq_of(gb, open, o->ws, tarn__gb_repeat(gb, all, needs_one, 1), close);
}

/* Rules from the last member to the first: choose[i], a member from i on; more[i], a comma and choose[i], or the end
 * where all members from i on are optional. With a required and b optional:
 *
 *     object   = "{" choose0            choose0 = a more1            more1 = "}" | "," choose1
 *     choose1  = b more2                more2   = "}"                spaces left out
 *
 * Two rules a member keep the grammar linear in their number, where listing the subsets would be exponential. */
static uint32_t build_object(object *o, bool needs_one)
{
    tarn__gb *gb = o->s->gb;
    uint32_t close = tarn__gb_text(gb, "}"), comma = tarn__gb_seq_of(gb, tarn__gb_text(gb, ","), o->ws);
    uint32_t more_rule = tarn__gb_rule(gb, NULL, 0), more = tarn__gb_call(gb, more_rule);
    uint32_t choose = o->open ? tarn__gb_seq_of(gb, o->open, o->ws, more) : tarn__gb_alt(gb, NULL, 0);
    bool may_end = true;
    tarn__gb_rule_set(gb, more_rule, tarn__gb_alt_of(gb, close, tarn__gb_seq_of(gb, comma, choose)));
    for (size_t i = o->members.count; i-- > 0 && !tarn_failed();) {
        const member *m = member_at(o, i);
        uint32_t this_one = tarn__gb_seq_of(gb, m->pair, o->ws, more);
        uint32_t rule = tarn__gb_rule(gb, NULL, 0);
        tarn__gb_rule_set(gb, rule, m->is_required ? this_one : tarn__gb_alt_of(gb, this_one, choose));
        choose = tarn__gb_call(gb, rule);
        may_end = may_end && !m->is_required;
        rule = tarn__gb_rule(gb, NULL, 0);
        uint32_t go_on = tarn__gb_seq_of(gb, comma, choose);
        tarn__gb_rule_set(gb, rule, may_end ? tarn__gb_alt_of(gb, close, go_on) : go_on);
        more = tarn__gb_call(gb, rule);
    }
    return tarn__gb_seq_of(gb, tarn__gb_text(gb, "{"), o->ws,
                           may_end && !needs_one ? tarn__gb_alt_of(gb, close, choose) : choose);
}

uint32_t tarn__schema_object(tarn__schema *s, const tarn__buffer *items)
{
    object o = {.s = s, .items = items, .ws = tarn__json_call(&s->rules, TARN__RULE_SPACE)};
    bool has_patterns, needs_one;
    int64_t max_open;
    uint32_t expr = 0;
    if (add_names(&o) && build_pairs(&o) && add_patterns(&o, &has_patterns) && add_additional(&o, has_patterns) &&
        check_counts(&o, &needs_one, &max_open))
        expr = o.open && o.members.count == 0 ? open_object(&o, needs_one, max_open) : build_object(&o, needs_one);
    tarn__buffer_free(&o.members, sizeof(member));
    return expr;
}
