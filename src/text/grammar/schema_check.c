/* schema_check.c: the keywords of schemas: which are enforced, which are annotations, and which are errors. A keyword
 * outside these lists is an error rather than ignored: an answer that looks checked must have been. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "text/grammar/schema.h"

/* What the value of a keyword must be. */
enum { ANY, SCHEMA, SCHEMAS, NAMED_SCHEMAS, STRING, STRINGS, TYPES, COUNT, NUMBER, BOOLEAN, ARRAY, ITEMS, FALSE_ONLY };

static const struct {
    const char *key;
    uint8_t value;
} keywords[] = {
    {"type", TYPES},
    {"properties", NAMED_SCHEMAS},
    {"required", STRINGS},
    {"additionalProperties", SCHEMA},
    {"patternProperties", NAMED_SCHEMAS},
    /* Members that are not named are left out anyway, so false holds. */
    {"unevaluatedProperties", FALSE_ONLY},
    {"minProperties", COUNT},
    {"maxProperties", COUNT},
    {"items", ITEMS},
    {"prefixItems", SCHEMAS},
    {"additionalItems", SCHEMA},
    {"minItems", COUNT},
    {"maxItems", COUNT},
    /* Equality of elements is no property of a context-free language. */
    {"uniqueItems", FALSE_ONLY},
    {"minLength", COUNT},
    {"maxLength", COUNT},
    {"pattern", STRING},
    {"format", STRING},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"multipleOf", NUMBER},
    {"enum", ARRAY},
    {"const", ANY},
    {"anyOf", SCHEMAS},
    {"oneOf", SCHEMAS},
    {"allOf", SCHEMAS},
    {"$ref", STRING},
    {"$defs", NAMED_SCHEMAS},
    {"definitions", NAMED_SCHEMAS},
    /* Of OpenAPI 3.0. */
    {"nullable", BOOLEAN},
};

/* Annotations: they say nothing about which values are valid. */
static const char *const annotations[] = {"title",   "description", "default",  "examples",      "example",  "$comment",
                                          "$schema", "deprecated",  "readOnly", "discriminator", "writeOnly"};

/* By the kind of value. */
static const char *const problems[] = {
    [SCHEMA] = "the value must be a schema: an object, true or false",
    [SCHEMAS] = "the value must be an array of schemas, at least one",
    [NAMED_SCHEMAS] = "the value must be an object of schemas",
    [STRING] = "the value must be a string",
    [STRINGS] = "the value must be an array of strings",
    [TYPES] = "the value must be null, boolean, integer, number, string, array or object, or an array of them",
    [COUNT] = "the value must be an integer of at least 0",
    [NUMBER] = "the value must be a number",
    [BOOLEAN] = "the value must be true or false",
    [ARRAY] = "the value must be an array, not empty",
    [ITEMS] = "the value must be a schema or an array of schemas",
    [FALSE_ONLY] = "the keyword cannot be enforced; only false is supported",
};

static const struct {
    const char *name;
    uint32_t type;
} types[] = {{"null", TARN__TYPE_NULL},       {"boolean", TARN__TYPE_BOOLEAN},
             {"integer", TARN__TYPE_INTEGER}, {"number", TARN__TYPE_INTEGER | TARN__TYPE_NUMBER},
             {"string", TARN__TYPE_STRING},   {"array", TARN__TYPE_ARRAY},
             {"object", TARN__TYPE_OBJECT}};

/* The type of a name; 0: none. */
static uint32_t type_named(const tarn__json_tree *tree, uint32_t node)
{
    const tarn__json_node *n = tarn__json_at(tree, node);
    for (size_t i = 0; n->kind == TARN__JSON_STRING && i < sizeof(types) / sizeof(types[0]); i++)
        if (strlen(types[i].name) == n->length && memcmp(types[i].name, tarn__json_text(tree, node), n->length) == 0)
            return types[i].type;
    return 0;
}

static bool is_schema(const tarn__json_tree *tree, uint32_t node)
{
    uint8_t kind = tarn__json_at(tree, node)->kind;
    return kind == TARN__JSON_OBJECT || kind == TARN__JSON_TRUE || kind == TARN__JSON_FALSE;
}

static bool is_string(const tarn__json_tree *tree, uint32_t node)
{
    return tarn__json_at(tree, node)->kind == TARN__JSON_STRING;
}

static bool is_type(const tarn__json_tree *tree, uint32_t node)
{
    return type_named(tree, node) != 0;
}

static bool are_all(const tarn__json_tree *tree, uint32_t node, tarn__json_kind kind,
                    bool (*is_good)(const tarn__json_tree *, uint32_t))
{
    if (tarn__json_at(tree, node)->kind != kind)
        return false;
    for (uint32_t x = tarn__json_at(tree, node)->first; x; x = tarn__json_at(tree, x)->next)
        if (!is_good(tree, x))
            return false;
    return true;
}

/* 2.0 is a count too, as in JSON Schema. */
static bool is_count(const tarn__json_tree *tree, uint32_t node)
{
    tarn__decimal d;
    const tarn__json_node *n = tarn__json_at(tree, node);
    return n->kind == TARN__JSON_NUMBER && tarn__decimal_parse(&d, tarn__json_text(tree, node), n->length) &&
           !d.is_negative && d.fractions == 0;
}

/* One row of the table above, for one value. */
static bool has_value(const tarn__json_tree *tree, uint32_t node, int value)
{
    const tarn__json_node *n = tarn__json_at(tree, node);
    switch (value) {
    case SCHEMA: return is_schema(tree, node);
    case SCHEMAS: return n->count > 0 && are_all(tree, node, TARN__JSON_ARRAY, is_schema);
    case NAMED_SCHEMAS: return are_all(tree, node, TARN__JSON_OBJECT, is_schema);
    case STRING: return is_string(tree, node);
    case STRINGS: return are_all(tree, node, TARN__JSON_ARRAY, is_string);
    case TYPES: return is_type(tree, node) || (n->count > 0 && are_all(tree, node, TARN__JSON_ARRAY, is_type));
    case COUNT: return is_count(tree, node);
    case NUMBER: return n->kind == TARN__JSON_NUMBER;
    case BOOLEAN: return n->kind == TARN__JSON_TRUE || n->kind == TARN__JSON_FALSE;
    case ARRAY: return n->kind == TARN__JSON_ARRAY && n->count > 0;
    case ITEMS: return is_schema(tree, node) || are_all(tree, node, TARN__JSON_ARRAY, is_schema);
    case FALSE_ONLY: return n->kind == TARN__JSON_FALSE;
    default: return true;
    }
}

static bool is_key(const tarn__schema *s, uint32_t node, const char *key)
{
    uint32_t length = tarn__json_at(&s->tree, node)->key_length;
    return strlen(key) == length && memcmp(key, tarn__json_key(&s->tree, node), length) == 0;
}

/* $id matters for references, which only point into this schema; at its root it is a name. */
static bool is_annotation(const tarn__schema *s, uint32_t node)
{
    for (size_t i = 0; i < sizeof(annotations) / sizeof(annotations[0]); i++)
        if (is_key(s, node, annotations[i]))
            return true;
    const char *key = tarn__json_key(&s->tree, node);
    return (tarn__json_at(&s->tree, node)->key_length > 2 && memcmp(key, "x-", 2) == 0) ||
           (is_key(s, node, "$id") && tarn__json_at(&s->tree, node)->parent == 0);
}

/* The keyword's value is checked by its form alone; what it means is for the builders. */
static bool check_keyword(const tarn__schema *s, uint32_t node)
{
    char problem[160];
    const tarn__json_node *n = tarn__json_at(&s->tree, node);
    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++)
        if (is_key(s, node, keywords[i].key))
            return has_value(&s->tree, node, keywords[i].value) ||
                   tarn__schema_fail(s, node, problems[keywords[i].value]);
    if (is_annotation(s, node))
        return true;
    snprintf(problem, sizeof(problem), "the keyword '%.*s' is not supported",
             (int)(n->key_length < 80 ? n->key_length : 80), tarn__json_key(&s->tree, node));
    return tarn__schema_fail(s, node, problem);
}

/* Only this schema's keywords: those of its parts are checked when they are added. */
bool tarn__schema_check(tarn__schema *s, uint32_t node)
{
    if (s->checked[node])
        return true;
    for (uint32_t x = tarn__json_at(&s->tree, node)->first; x; x = tarn__json_at(&s->tree, x)->next)
        if (!check_keyword(s, x))
            return false;
    s->checked[node] = 1;
    return true;
}

/* ---- values of keywords ------------------------------------------------------------------------------------------ */

uint32_t tarn__type_of(const tarn__json_tree *tree, uint32_t node)
{
    tarn__decimal d;
    const tarn__json_node *n = tarn__json_at(tree, node);
    switch (n->kind) {
    case TARN__JSON_NULL: return TARN__TYPE_NULL;
    /* A number of too many digits counts as no integer. */
    case TARN__JSON_NUMBER:
        return tarn__decimal_parse(&d, tarn__json_text(tree, node), n->length) && d.fractions == 0 ? TARN__TYPE_INTEGER
                                                                                                   : TARN__TYPE_NUMBER;
    case TARN__JSON_STRING: return TARN__TYPE_STRING;
    case TARN__JSON_ARRAY: return TARN__TYPE_ARRAY;
    case TARN__JSON_OBJECT: return TARN__TYPE_OBJECT;
    default: return TARN__TYPE_BOOLEAN;
    }
}

/* nullable, of OpenAPI, adds null to the types next to it. Types of several schemas are intersected: allOf of "number"
 * and "integer" is "integer". */
uint32_t tarn__schema_types(const tarn__schema *s, const tarn__buffer *items)
{
    size_t at = 0;
    uint32_t all = TARN__TYPE_ALL, owner;
    for (uint32_t node; (node = tarn__schema_next(s, items, "type", &at, &owner));) {
        uint32_t some = type_named(&s->tree, node), nullable = tarn__json_get(&s->tree, owner, "nullable");
        if (tarn__json_at(&s->tree, node)->kind == TARN__JSON_ARRAY)
            for (uint32_t x = tarn__json_at(&s->tree, node)->first; x; x = tarn__json_at(&s->tree, x)->next)
                some |= type_named(&s->tree, x);
        if (nullable && tarn__json_at(&s->tree, nullable)->kind == TARN__JSON_TRUE)
            some |= TARN__TYPE_NULL;
        all &= some;
    }
    return all;
}

/* Values are digits of any length: they are counted up to the limit. */
int64_t tarn__schema_count(const tarn__schema *s, const tarn__buffer *items, const char *key, bool is_min)
{
    size_t at = 0;
    int64_t result = -1;
    for (uint32_t node; (node = tarn__schema_next(s, items, key, &at, NULL));) {
        tarn__decimal d;
        int64_t value = 0;
        tarn__decimal_parse(&d, tarn__json_text(&s->tree, node), tarn__json_at(&s->tree, node)->length);
        for (int i = 0; i < d.integers && value <= TARN__G_MAX_REPEAT; i++)
            value = value * 10 + (d.digits[i] - '0');
        if (value > TARN__G_MAX_REPEAT) {
            tarn__schema_fail(s, node, "the value is above 100000");
            return -2;
        }
        if (result < 0 || (is_min ? value > result : value < result))
            result = value;
    }
    return result;
}
