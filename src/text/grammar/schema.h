/* schema.h: JSON texts as grammars, and JSON Schema.
 *
 * The canonical form of a value, which a schema's grammar accepts: members in the order of the schema, numbers without
 * an exponent where bounds apply, strings with the shortest escapes where a pattern or format applies, and between
 * tokens at most one space, or one newline and its indentation. */
#ifndef TARN__SCHEMA_H
#define TARN__SCHEMA_H

#include "text/grammar/grammar.h"

/* ---- JSON values (json_tree.c) ----------------------------------------------------------------------------------- */

typedef enum tarn__json_kind {
    TARN__JSON_NULL,
    TARN__JSON_FALSE,
    TARN__JSON_TRUE,
    TARN__JSON_NUMBER,
    TARN__JSON_STRING,
    TARN__JSON_ARRAY,
    TARN__JSON_OBJECT
} tarn__json_kind;

/* A value; node 0 is the root. Children are a list in the order of the text. */
typedef struct tarn__json_node {
    uint8_t kind;
    uint32_t parent, first, next, count; /* 0: none; elements or members */
    uint32_t key, key_length;            /* in `bytes`: of a member, decoded */
    uint32_t text, length;               /* in `bytes`: a string, decoded, or a number as written */
} tarn__json_node;

typedef struct tarn__json_tree {
    tarn__buffer nodes, bytes;
} tarn__json_tree;

/* Parses a text; duplicate keys are an error. False with an error; close() in any case. */
bool tarn__json_parse(tarn__json_tree *tree, const char *function, const char *text, size_t length);
void tarn__json_close(tarn__json_tree *tree);

static inline const tarn__json_node *tarn__json_at(const tarn__json_tree *tree, uint32_t node)
{
    return (const tarn__json_node *)(const void *)tree->nodes.data + node;
}
static inline const char *tarn__json_key(const tarn__json_tree *tree, uint32_t node)
{
    return tree->bytes.data + tarn__json_at(tree, node)->key;
}
static inline const char *tarn__json_text(const tarn__json_tree *tree, uint32_t node)
{
    return tree->bytes.data + tarn__json_at(tree, node)->text;
}

/* A member of an object by its name; 0: none. */
uint32_t tarn__json_get(const tarn__json_tree *tree, uint32_t object, const char *key);
uint32_t tarn__json_get_length(const tarn__json_tree *tree, uint32_t object, const char *key, size_t length);

/* The JSON pointer of a node, as a fragment: #/properties/a. */
void tarn__json_pointer(const tarn__json_tree *tree, uint32_t node, char *text, size_t capacity);

/* True for equal values: members in any order, 1 equal to 1.0. */
bool tarn__json_equal(const tarn__json_tree *tree, uint32_t a, uint32_t b);

/* ---- decimals (decimal.c) ---------------------------------------------------------------------------------------- */

#define TARN__MAX_DIGITS 60

/* A number in plain digits: no leading zeros before the point but one, no trailing ones after it. */
typedef struct tarn__decimal {
    bool is_negative;
    int integers, fractions; /* digits before and after the point */
    char digits[TARN__MAX_DIGITS + 1];
} tarn__decimal;

/* False, without an error, for a number of too many digits. */
bool tarn__decimal_parse(tarn__decimal *d, const char *text, size_t length);
int tarn__decimal_compare(const tarn__decimal *a, const tarn__decimal *b); /* < 0, 0, > 0 */

/* Bounds of numbers. */
typedef struct tarn__bounds {
    bool has_low, has_high, low_excluded, high_excluded;
    tarn__decimal low, high;
    uint32_t multiple; /* of this integer; 0: any */
} tarn__bounds;

/* Numbers within bounds, without an exponent; integers only, or decimals too. 0 with an error. */
uint32_t tarn__gb_number(tarn__gb *gb, const tarn__bounds *bounds, bool is_integer);

/* ---- regular languages (dfa.c) ----------------------------------------------------------------------------------- */

#define TARN__MAX_DFA_STATES 20000

/* The automaton of the root rule of a builder, which must not be recursive; `gb` is closed in any case. Texts that need
 * too many states are an error that begins with `where`. */
bool tarn__dfa_build(tarn__dfa *dfa, tarn__gb *gb, const char *where);

/* Replaces *a by its intersection with *b, and frees *b. False with an error; both are then free. */
bool tarn__dfa_intersect(tarn__dfa *a, tarn__dfa *b, const char *where);
bool tarn__dfa_matches(const tarn__dfa *dfa, const char *text, size_t length);
bool tarn__dfa_is_empty(const tarn__dfa *dfa);
void tarn__dfa_free(tarn__dfa *dfa);

/* ---- JSON texts (json_rules.c) ----------------------------------------------------------------------------------- */

/* Rules shared by all JSON grammars; each is created by its first use. */
typedef enum tarn__json_rule {
    TARN__RULE_SPACE,
    TARN__RULE_CHARACTER, /* of a string: any, with any escape */
    TARN__RULE_STRING,
    TARN__RULE_NUMBER,
    TARN__RULE_INTEGER,
    TARN__RULE_VALUE,
    TARN__RULE_OBJECT,
    TARN__RULE_ARRAY,
    TARN__RULE_COUNT
} tarn__json_rule;

typedef struct tarn__json_rules {
    tarn__gb *gb;
    uint32_t rule[TARN__RULE_COUNT]; /* + 1; 0: not created */
} tarn__json_rules;

/* A call of a shared rule. */
uint32_t tarn__json_call(tarn__json_rules *rules, tarn__json_rule rule);

/* A character class and a string inside quotes, with the shortest escapes. */
uint32_t tarn__json_class(tarn__gb *gb, const tarn__range *ranges, size_t count, bool negated);
uint32_t tarn__json_literal(tarn__gb *gb, const char *text, size_t length);

/* ---- schemas (schema*.c) ----------------------------------------------------------------------------------------- */

/* JSON types as bits; integers are numbers too. */
enum {
    TARN__TYPE_NULL = 1,
    TARN__TYPE_BOOLEAN = 2,
    TARN__TYPE_INTEGER = 4,
    TARN__TYPE_NUMBER = 8, /* that are no integers */
    TARN__TYPE_STRING = 16,
    TARN__TYPE_ARRAY = 32,
    TARN__TYPE_OBJECT = 64,
    TARN__TYPE_ALL = 127
};

#define TARN__MAX_CHOICES 4000 /* members of an object, values of an enum: each may be open at the same time */

/* A conjunction of schemas: nodes of the tree, in the order of appearance. An item is node * 4 + flags of its
 * alternatives that were resolved. */
#define TARN__HAS_ANY_OF 1
#define TARN__HAS_ONE_OF 2

typedef struct tarn__schema {
    const char *function;
    tarn__json_tree tree;
    tarn__gb *gb;
    tarn__json_rules rules;
    tarn__buffer known; /* conjunctions: see schema.c */
    tarn__buffer known_items;
    uint32_t buckets[1024];
    uint8_t *checked; /* by node: its keywords were checked */
    uint8_t *open;    /* by node: references being followed */
    int nesting;
} tarn__schema;

bool tarn__schema_build(tarn__gb *gb, const char *function, const char *text, size_t length);

/* Raises an error about a keyword of a schema: its node is the keyword's value. Returns false. */
bool tarn__schema_fail(const tarn__schema *s, uint32_t node, const char *problem);

/* Checks the keywords of a schema once; raises those that are unknown or cannot be enforced. */
bool tarn__schema_check(tarn__schema *s, uint32_t node);

/* Adds a schema to a conjunction, with what it refers to. *nothing is set where no value is valid. False with an
 * error. */
bool tarn__schema_add(tarn__schema *s, tarn__buffer *items, uint32_t node, bool *nothing);

/* The expression of a conjunction; 0 with an error. An empty one is any value. */
uint32_t tarn__schema_all(tarn__schema *s, const tarn__buffer *items);

/* Visits the keyword `key` of each item: node of its value. Starts with *at = 0; 0 at the end. */
uint32_t tarn__schema_next(const tarn__schema *s, const tarn__buffer *items, const char *key, size_t *at,
                           uint32_t *owner);

/* The types that a conjunction allows by its type keywords alone. */
uint32_t tarn__schema_types(const tarn__schema *s, const tarn__buffer *items);
uint32_t tarn__type_of(const tarn__json_tree *tree, uint32_t node);

/* A count such as minItems: the largest of a minimum, the smallest of a maximum, among all items; -1: none. -2 with an
 * error. */
int64_t tarn__schema_count(const tarn__schema *s, const tarn__buffer *items, const char *key, bool is_min);

/* Parts of a conjunction without alternatives, by type (schema_values.c, schema_object.c, schema_array.c). */
uint32_t tarn__schema_string(tarn__schema *s, const tarn__buffer *items);
uint32_t tarn__schema_number(tarn__schema *s, const tarn__buffer *items, bool is_integer);
uint32_t tarn__schema_object(tarn__schema *s, const tarn__buffer *items);
uint32_t tarn__schema_array(tarn__schema *s, const tarn__buffer *items);
bool tarn__schema_bounds(const tarn__schema *s, const tarn__buffer *items, tarn__bounds *bounds);

/* Adds to `to` what a conjunction says of the member `key` of an object. `is_named` tells that a properties keyword has
 * it. */
bool tarn__schema_add_member(tarn__schema *s, const tarn__buffer *items, const char *key, size_t length,
                             tarn__buffer *to, bool *nothing, bool *is_named);

/* True when no value can match both, as far as that can be proven. An error counts as false. */
bool tarn__schema_exclusive(tarn__schema *s, const tarn__buffer *a, const tarn__buffer *b, int depth);

#endif
