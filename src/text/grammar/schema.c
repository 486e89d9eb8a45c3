/* schema.c: JSON Schema: conjunctions of schemas and their rules.
 *
 * A schema with $ref and allOf is a conjunction: a list of nodes that must all hold. Each distinct conjunction becomes
 * one rule, created before its parts, so that recursive schemas end. anyOf and oneOf are resolved first: one rule per
 * branch, with the branch joined to the rest. What is left is split by type.
 *
 *     {"type": "object", "anyOf": [A, B]}     items [#]
 *     branches                                [# with its anyOf resolved, A], [# with its anyOf resolved, B]
 *
 * Keywords that cannot be enforced are errors: a value that the grammar accepts is valid for the schema, though not
 * every valid value is accepted (schema.h: the canonical form). */
#include "text/grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/tokenizer/vocab.h"

#define MAX_CONJUNCTIONS 20000
#define MAX_SCHEMA_NESTING 400

typedef struct known_conjunction {
    size_t first, count; /* in known_items, sorted */
    uint32_t rule, next; /* next: index + 1 */
} known_conjunction;

bool tarn__schema_fail(const tarn__schema *s, uint32_t node, const char *problem)
{
    char pointer[400];
    tarn__json_pointer(&s->tree, node, pointer, sizeof(pointer));
    return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: %s", s->function, pointer, problem);
}

static uint32_t *u32(const tarn__buffer *buffer)
{
    return (uint32_t *)(void *)buffer->data;
}

/* ---- references -------------------------------------------------------------------------------------------------- */

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One part of a pointer, decoded: ~0, ~1 and %41. Returns its length. "a~1b" is the key "a/b"; "%41" is "A", as a
 * reference is a URI. A part never grows. */
static size_t decode_part(const char *text, size_t length, char *part)
{
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c == '%' && i + 2 < length && hex_value(text[i + 1]) >= 0 && hex_value(text[i + 2]) >= 0) {
            c = (char)(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
            i += 2;
        } else if (c == '~' && i + 1 < length && (text[i + 1] == '0' || text[i + 1] == '1')) {
            c = text[++i] == '0' ? '~' : '/';
        }
        part[used++] = c;
    }
    return used;
}

/* The child of a node by one part of a pointer; 0: none. The parts of a pointer into an array are indices. */
static uint32_t child_of(const tarn__json_tree *tree, uint32_t node, const char *part, size_t length)
{
    if (tarn__json_at(tree, node)->kind != TARN__JSON_ARRAY)
        return tarn__json_get_length(tree, node, part, length);
    uint32_t index = 0, child = tarn__json_at(tree, node)->first;
    for (size_t i = 0; i < length; i++) {
        if (part[i] < '0' || part[i] > '9' || index > 1000000)
            return 0;
        index = index * 10 + (uint32_t)(part[i] - '0');
    }
    while (child && index--)
        child = tarn__json_at(tree, child)->next;
    return child;
}

/* The node that a $ref points to; UINT32_MAX with an error. "#" is the root, "#/$defs/node" a child of a child. Anchors
 * and other files are not supported. */
static uint32_t resolve(const tarn__schema *s, uint32_t ref)
{
    const tarn__json_node *n = tarn__json_at(&s->tree, ref);
    const char *text = tarn__json_text(&s->tree, ref);
    char part[256];
    uint32_t node = 0;
    size_t at = 1;
    if (n->length == 0 || text[0] != '#' || (n->length > 1 && text[1] != '/')) {
        tarn__schema_fail(s, ref, "$ref must point into the schema: #/…");
        return UINT32_MAX;
    }
    while (at < n->length) {
        size_t begin = ++at;
        while (at < n->length && text[at] != '/')
            at++;
        size_t length = at - begin < sizeof(part) ? decode_part(text + begin, at - begin, part) : 0;
        if (at - begin >= sizeof(part) || !(node = child_of(&s->tree, node, part, length))) {
            tarn__schema_fail(s, ref, "$ref points to nothing");
            return UINT32_MAX;
        }
    }
    return node;
}

/* ---- conjunctions ------------------------------------------------------------------------------------------------ */

/* Adds a node once. A node whose alternative is resolved comes again only where a branch leads back to it. */
static bool add_item(const tarn__schema *s, tarn__buffer *items, uint32_t node)
{
    uint32_t item = node << 2;
    for (size_t i = 0; i < items->count; i++)
        if (u32(items)[i] >> 2 == node)
            return !(u32(items)[i] & 3) ||
                   tarn__schema_fail(s, node, "the schema refers to itself without a member or element between");
    return tarn__buffer_add(items, &item, 1, sizeof(item));
}

/* References may lead back to a schema that contains them, but only through a member or element. `open` marks the
 * schemas whose references are being followed. true adds nothing, false makes the conjunction empty. */
bool tarn__schema_add(tarn__schema *s, tarn__buffer *items, uint32_t node, bool *nothing)
{
    const tarn__json_node *n = tarn__json_at(&s->tree, node);
    if (n->kind == TARN__JSON_TRUE || n->kind == TARN__JSON_FALSE) {
        *nothing = *nothing || n->kind == TARN__JSON_FALSE;
        return true;
    }
    if (n->kind != TARN__JSON_OBJECT)
        return tarn__schema_fail(s, node, "a schema must be an object, true or false");
    if (s->open[node])
        return tarn__schema_fail(s, node, "the schema refers to itself without a member or element between");
    if (!tarn__schema_check(s, node))
        return false;
    s->open[node] = 1;
    uint32_t ref = tarn__json_get(&s->tree, node, "$ref"), all = tarn__json_get(&s->tree, node, "allOf");
    uint32_t target = ref ? resolve(s, ref) : 0;
    bool good =
        add_item(s, items, node) && target != UINT32_MAX && (!ref || tarn__schema_add(s, items, target, nothing));
    for (uint32_t part = all ? tarn__json_at(&s->tree, all)->first : 0; good && part;
         part = tarn__json_at(&s->tree, part)->next)
        good = tarn__schema_add(s, items, part, nothing);
    s->open[node] = 0;
    return good;
}

/* Goes through items in the order in which they were added. */
uint32_t tarn__schema_next(const tarn__schema *s, const tarn__buffer *items, const char *key, size_t *at,
                           uint32_t *owner)
{
    while (*at < items->count) {
        uint32_t node = u32(items)[(*at)++] >> 2, value = tarn__json_get(&s->tree, node, key);
        if (owner)
            *owner = node;
        if (value)
            return value;
    }
    return 0;
}

/* Order of items in a key: nodes are compared with their flags. */
static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t build_all(tarn__schema *s, const tarn__buffer *items);

/* The rule of a conjunction, built when it is new. */
uint32_t tarn__schema_all(tarn__schema *s, const tarn__buffer *items)
{
    tarn__buffer key = {0};
    if (tarn_failed() || (items->count && !tarn__buffer_add(&key, items->data, items->count, sizeof(uint32_t))))
        return 0;
    if (items->count > 1)
        /* Items in another order are the same conjunction. */
        qsort(key.data, key.count, sizeof(uint32_t), by_number);
    size_t bytes = key.count * sizeof(uint32_t);
    uint32_t *bucket = &s->buckets[(bytes ? tarn__hash(key.data, bytes, 7) : 0) % 1024], found = *bucket;
    const known_conjunction *known = (const known_conjunction *)(const void *)s->known.data;
    while (found && (known[found - 1].count != key.count ||
                     (bytes && memcmp(u32(&s->known_items) + known[found - 1].first, key.data, bytes) != 0)))
        found = known[found - 1].next;
    uint32_t rule = found ? known[found - 1].rule : tarn__gb_rule(s->gb, NULL, 0);
    if (!found && s->known.count >= MAX_CONJUNCTIONS)
        tarn__raise(TARN_ERROR_FORMAT, "%s: the schema is too large: it combines into more than %d schemas",
                    s->function, MAX_CONJUNCTIONS);
    if (!found && ++s->nesting > MAX_SCHEMA_NESTING)
        tarn__raise(TARN_ERROR_FORMAT, "%s: the schema is nested too deeply", s->function);
    if (!found && !tarn_failed()) {
        /* Known before it is built: a schema that contains itself finds its own rule. */
        known_conjunction new = {s->known_items.count, key.count, rule, *bucket};
        if ((!bytes || tarn__buffer_add(&s->known_items, key.data, key.count, sizeof(uint32_t))) &&
            tarn__buffer_add(&s->known, &new, 1, sizeof(new))) {
            *bucket = (uint32_t)s->known.count;
            tarn__gb_rule_set(s->gb, rule, build_all(s, items));
        }
    }
    s->nesting -= !found;
    tarn__buffer_free(&key, sizeof(uint32_t));
    return tarn_failed() ? 0 : tarn__gb_call(s->gb, rule);
}

/* ---- alternatives ------------------------------------------------------------------------------------------------ */

/* A conjunction with one branch of an alternative added; `flag` marks the alternative of item `at` as resolved. The
 * branch may bring alternatives of its own, which are resolved in turn. */
static bool with_branch(tarn__schema *s, const tarn__buffer *items, size_t at, uint32_t flag, uint32_t branch,
                        tarn__buffer *to, bool *nothing)
{
    to->count = 0;
    *nothing = false;
    if (!tarn__buffer_add(to, items->data, items->count, sizeof(uint32_t)))
        return false;
    u32(to)[at] |= flag;
    return tarn__schema_add(s, to, branch, nothing);
}

/* oneOf is anyOf where no value can match two branches. All pairs of branches are compared, each joined to the rest of
 * the conjunction, which may be what tells them apart. */
static bool check_one_of(tarn__schema *s, const tarn__buffer *items, size_t at, uint32_t one_of)
{
    tarn__buffer a = {0}, b = {0};
    bool good = true, nothing;
    for (uint32_t x = tarn__json_at(&s->tree, one_of)->first; good && x; x = tarn__json_at(&s->tree, x)->next)
        for (uint32_t y = tarn__json_at(&s->tree, x)->next; good && y; y = tarn__json_at(&s->tree, y)->next) {
            good = with_branch(s, items, at, TARN__HAS_ONE_OF, x, &a, &nothing);
            bool is_void = nothing;
            good = good && with_branch(s, items, at, TARN__HAS_ONE_OF, y, &b, &nothing);
            if (good && !is_void && !nothing && !tarn__schema_exclusive(s, &a, &b, 0))
                good = tarn__schema_fail(
                    s, one_of,
                    "oneOf is supported only where its schemas exclude each other by type, constants, "
                    "bounds or required members; use anyOf");
        }
    tarn__buffer_free(&a, sizeof(uint32_t));
    tarn__buffer_free(&b, sizeof(uint32_t));
    return good;
}

/* Branches that no value fits are left out; without any the alternative matches nothing. */
static uint32_t build_branches(tarn__schema *s, const tarn__buffer *items, size_t at, uint32_t flag, uint32_t list)
{
    tarn__buffer parts = {0}, joined = {0};
    uint32_t expr = 0;
    bool nothing;
    if (flag == TARN__HAS_ONE_OF && !check_one_of(s, items, at, list))
        return 0;
    for (uint32_t x = tarn__json_at(&s->tree, list)->first; x && !tarn_failed(); x = tarn__json_at(&s->tree, x)->next) {
        if (!with_branch(s, items, at, flag, x, &joined, &nothing) || nothing)
            continue;
        expr = tarn__schema_all(s, &joined);
        tarn__buffer_add(&parts, &expr, 1, sizeof(expr));
    }
    expr = tarn_failed() ? 0 : tarn__gb_alt(s->gb, u32(&parts), parts.count);
    tarn__buffer_free(&parts, sizeof(uint32_t));
    tarn__buffer_free(&joined, sizeof(uint32_t));
    return expr;
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

/* The text of a constant. */
static uint32_t constant(tarn__schema *s, uint32_t node)
{
    tarn__gb *gb = s->gb;
    const tarn__json_node *n = tarn__json_at(&s->tree, node);
    uint32_t ws = tarn__json_call(&s->rules, TARN__RULE_SPACE), quote = tarn__gb_text(gb, "\""), all = 0;
    bool is_object = n->kind == TARN__JSON_OBJECT;
    switch (n->kind) {
    case TARN__JSON_NULL: return tarn__gb_text(gb, "null");
    case TARN__JSON_TRUE: return tarn__gb_text(gb, "true");
    case TARN__JSON_FALSE: return tarn__gb_text(gb, "false");
    case TARN__JSON_NUMBER: return tarn__gb_string(gb, tarn__json_text(&s->tree, node), n->length);
    case TARN__JSON_STRING:
        return tarn__gb_seq_of(gb, quote, tarn__json_literal(gb, tarn__json_text(&s->tree, node), n->length), quote);
    default: break;
    }
    /* Elements, or members with their names, each with a comma before it but the first. */
    for (uint32_t child = n->first; child && !tarn_failed(); child = tarn__json_at(&s->tree, child)->next) {
        uint32_t value = constant(s, child);
        if (is_object)
            value = tarn__gb_seq_of(
                gb, quote,
                tarn__json_literal(gb, tarn__json_key(&s->tree, child), tarn__json_at(&s->tree, child)->key_length),
                quote, ws, tarn__gb_text(gb, ":"), ws, value);
        all = child == n->first ? tarn__gb_seq_of(gb, value, ws)
                                : tarn__gb_seq_of(gb, all, tarn__gb_text(gb, ","), ws, value, ws);
    }
    return tarn__gb_seq_of(gb, tarn__gb_text(gb, is_object ? "{" : "["), ws, all,
                           tarn__gb_text(gb, is_object ? "}" : "]"));
}

/* True when a value is among those of every enum and const but its own. */
static bool is_in_all(const tarn__schema *s, const tarn__buffer *items, uint32_t value, uint32_t own)
{
    size_t at = 0;
    for (uint32_t c; (c = tarn__schema_next(s, items, "const", &at, NULL));)
        if (c != own && !tarn__json_equal(&s->tree, c, value))
            return false;
    at = 0;
    for (uint32_t list; (list = tarn__schema_next(s, items, "enum", &at, NULL));) {
        uint32_t x = list == own ? value : tarn__json_at(&s->tree, list)->first;
        while (x && !tarn__json_equal(&s->tree, x, value))
            x = tarn__json_at(&s->tree, x)->next;
        if (!x)
            return false;
    }
    return true;
}

/* Keywords that would have to be checked for each constant. */
static bool check_alone(const tarn__schema *s, const tarn__buffer *items)
{
    static const char *const others[] = {"properties",        "required",        "additionalProperties",
                                         "patternProperties", "items",           "prefixItems",
                                         "minItems",          "maxItems",        "minLength",
                                         "maxLength",         "pattern",         "format",
                                         "minimum",           "maximum",         "exclusiveMinimum",
                                         "exclusiveMaximum",  "multipleOf",      "minProperties",
                                         "maxProperties",     "additionalItems", "uniqueItems"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        size_t at = 0;
        uint32_t value = tarn__schema_next(s, items, others[i], &at, NULL);
        if (value)
            return tarn__schema_fail(s, value, "the keyword is not supported together with enum or const");
    }
    return true;
}

/* The values of the first enum or const that fit the types and all others. */
static uint32_t build_constants(tarn__schema *s, const tarn__buffer *items, uint32_t first, bool is_const)
{
    tarn__buffer parts = {0};
    uint32_t types = tarn__schema_types(s, items), expr = 0;
    if (!check_alone(s, items))
        return 0;
    if (!is_const && tarn__json_at(&s->tree, first)->count > TARN__MAX_CHOICES)
        return (uint32_t)tarn__schema_fail(s, first, "enum has more than 4000 values");
    for (uint32_t x = is_const ? first : tarn__json_at(&s->tree, first)->first; x && !tarn_failed();
         x = is_const ? 0 : tarn__json_at(&s->tree, x)->next) {
        if (!(tarn__type_of(&s->tree, x) & types) || !is_in_all(s, items, x, first))
            continue;
        expr = constant(s, x);
        tarn__buffer_add(&parts, &expr, 1, sizeof(expr));
    }
    expr = tarn_failed() ? 0 : tarn__gb_alt(s->gb, u32(&parts), parts.count);
    tarn__buffer_free(&parts, sizeof(uint32_t));
    return expr;
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

/* Keywords of one type: without a type keyword they say which type is meant. */
static const struct {
    const char *key;
    uint32_t types;
} typed_keywords[] = {
    {"properties", TARN__TYPE_OBJECT},
    {"required", TARN__TYPE_OBJECT},
    {"additionalProperties", TARN__TYPE_OBJECT},
    {"patternProperties", TARN__TYPE_OBJECT},
    {"minProperties", TARN__TYPE_OBJECT},
    {"maxProperties", TARN__TYPE_OBJECT},
    {"unevaluatedProperties", TARN__TYPE_OBJECT},
    {"items", TARN__TYPE_ARRAY},
    {"prefixItems", TARN__TYPE_ARRAY},
    {"additionalItems", TARN__TYPE_ARRAY},
    {"minItems", TARN__TYPE_ARRAY},
    {"maxItems", TARN__TYPE_ARRAY},
    {"uniqueItems", TARN__TYPE_ARRAY},
    {"minLength", TARN__TYPE_STRING},
    {"maxLength", TARN__TYPE_STRING},
    {"pattern", TARN__TYPE_STRING},
    {"format", TARN__TYPE_STRING},
    {"minimum", TARN__TYPE_INTEGER | TARN__TYPE_NUMBER},
    {"maximum", TARN__TYPE_INTEGER | TARN__TYPE_NUMBER},
    {"exclusiveMinimum", TARN__TYPE_INTEGER | TARN__TYPE_NUMBER},
    {"exclusiveMaximum", TARN__TYPE_INTEGER | TARN__TYPE_NUMBER},
    {"multipleOf", TARN__TYPE_INTEGER},
};

/* Types among which a value is built, and *is_bare: no keyword of any type constrains it. {"minLength": 1} alone would
 * allow every number in JSON Schema; what is meant is a string. */
static uint32_t types_to_build(const tarn__schema *s, const tarn__buffer *items, bool *is_bare)
{
    uint32_t types = tarn__schema_types(s, items), meant = 0;
    for (size_t i = 0; i < sizeof(typed_keywords) / sizeof(typed_keywords[0]); i++) {
        size_t at = 0;
        if (tarn__schema_next(s, items, typed_keywords[i].key, &at, NULL))
            meant |= typed_keywords[i].types;
    }
    *is_bare = meant == 0;
    return types == TARN__TYPE_ALL && meant ? meant : types;
}

/* An alternative for each type; integers have a form of their own only where other numbers are not allowed. */
static uint32_t build_types(tarn__schema *s, const tarn__buffer *items)
{
    tarn__gb *gb = s->gb;
    uint32_t parts[8];
    size_t count = 0;
    bool is_bare;
    uint32_t types = types_to_build(s, items, &is_bare);
    if (is_bare && types == TARN__TYPE_ALL)
        return tarn__json_call(&s->rules, TARN__RULE_VALUE);
    if (types & TARN__TYPE_OBJECT)
        parts[count++] = tarn__schema_object(s, items);
    if (types & TARN__TYPE_ARRAY)
        parts[count++] = tarn__schema_array(s, items);
    if (types & TARN__TYPE_STRING)
        parts[count++] = tarn__schema_string(s, items);
    if (types & (TARN__TYPE_INTEGER | TARN__TYPE_NUMBER))
        parts[count++] = tarn__schema_number(s, items, !(types & TARN__TYPE_NUMBER));
    if (types & TARN__TYPE_BOOLEAN) {
        parts[count++] = tarn__gb_text(gb, "true");
        parts[count++] = tarn__gb_text(gb, "false");
    }
    if (types & TARN__TYPE_NULL)
        parts[count++] = tarn__gb_text(gb, "null");
    return tarn_failed() ? 0 : tarn__gb_alt(gb, parts, count);
}

/* Alternatives first, then constants, then types. */
static uint32_t build_all(tarn__schema *s, const tarn__buffer *items)
{
    size_t at = 0;
    for (size_t i = 0; i < items->count; i++) {
        uint32_t item = u32(items)[i], any = tarn__json_get(&s->tree, item >> 2, "anyOf"),
                 one = tarn__json_get(&s->tree, item >> 2, "oneOf");
        if (any && !(item & TARN__HAS_ANY_OF))
            return build_branches(s, items, i, TARN__HAS_ANY_OF, any);
        if (one && !(item & TARN__HAS_ONE_OF))
            return build_branches(s, items, i, TARN__HAS_ONE_OF, one);
    }
    uint32_t list = tarn__schema_next(s, items, "const", &at, NULL);
    if (list)
        return build_constants(s, items, list, true);
    at = 0;
    list = tarn__schema_next(s, items, "enum", &at, NULL);
    return list ? build_constants(s, items, list, false) : build_types(s, items);
}

/* Errors are pending at the end; the tree and the conjunctions are freed in any case. */
bool tarn__schema_build(tarn__gb *gb, const char *function, const char *text, size_t length)
{
    tarn__schema s = {.function = function, .gb = gb, .rules = {.gb = gb}};
    tarn__buffer items = {0};
    bool nothing = false;
    gb->root = tarn__gb_rule(gb, NULL, 0);
    if (tarn__json_parse(&s.tree, function, text, length)) {
        s.checked = tarn__alloc(s.tree.nodes.count);
        s.open = tarn__alloc(s.tree.nodes.count);
        if (!tarn_failed() && tarn__schema_add(&s, &items, 0, &nothing))
            tarn__gb_rule_set(gb, gb->root, nothing ? tarn__gb_alt(gb, NULL, 0) : tarn__schema_all(&s, &items));
        tarn__release(s.checked, s.tree.nodes.count);
        tarn__release(s.open, s.tree.nodes.count);
    }
    tarn__buffer_free(&items, sizeof(uint32_t));
    tarn__buffer_free(&s.known, sizeof(known_conjunction));
    tarn__buffer_free(&s.known_items, sizeof(uint32_t));
    tarn__json_close(&s.tree);
    return !tarn_failed();
}
