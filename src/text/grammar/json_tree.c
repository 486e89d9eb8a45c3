/* json_tree.c: JSON texts as trees that keep the order of members and the digits of numbers, which the readers of maps
 * and doubles lose. Nodes and decoded strings are in two arrays; a node refers to its children by first and next. Node
 * 0 is the root, which is nobody's child, so 0 can stand for "none". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/grammar/schema.h"

typedef struct parser {
    tarn__json_tree *tree;
    const char *function, *begin, *at, *end;
    int nesting;
} parser;

static bool fail(const parser *p, const char *problem)
{
    return tarn__raise(TARN_ERROR_FORMAT, "%s: the JSON text, at byte %lld: %s", p->function,
                       (long long)(p->at - p->begin), problem);
}

static void skip_space(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

static bool skip(parser *p, char c)
{
    bool found = p->at < p->end && *p->at == c;
    p->at += found;
    return found;
}

/* A pointer is good until a node is added: the array moves. */
static tarn__json_node *node_at(const parser *p, uint32_t node)
{
    return (tarn__json_node *)(void *)p->tree->nodes.data + node;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

static bool parse_hex4(parser *p, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        char c = p->at < p->end ? *p->at : 0;
        int value = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (value < 0)
            return fail(p, "\\u needs 4 hexadecimal digits");
        *code = *code * 16 + (uint32_t)value;
    }
    return true;
}

/* A pair of surrogates is one code point; a half alone is an error, as it has no UTF-8. */
static bool parse_escape(parser *p, uint32_t *code)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint32_t low = 0;
    char c = p->at < p->end ? *p->at++ : 0;
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        *code = (uint32_t)to[found - from];
        return true;
    }
    if (c != 'u')
        return fail(p, "the escape is unknown");
    if (!parse_hex4(p, code))
        return false;
    if (*code >= 0xD800 && *code <= 0xDBFF && p->end - p->at >= 2 && p->at[0] == '\\' && p->at[1] == 'u') {
        p->at += 2;
        if (!parse_hex4(p, &low))
            return false;
        if (low >= 0xDC00 && low <= 0xDFFF)
            *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    }
    return (*code < 0xD800 || *code > 0xDFFF) || fail(p, "a surrogate has no partner");
}

/* A string after its first quote, decoded to the end of `bytes`. */
static bool parse_string(parser *p, uint32_t *text, uint32_t *length)
{
    tarn__buffer *bytes = &p->tree->bytes;
    /* `form` holds one code point. Decoding never makes a string longer than its source. */
    char form[4];
    *text = (uint32_t)bytes->count;
    while (!skip(p, '"')) {
        uint32_t code;
        size_t count = tarn__utf8_decode(p->at, (size_t)(p->end - p->at), &code);
        if (count == 0 || code < 0x20)
            return fail(p, p->at < p->end ? "a string has a control character or is not valid UTF-8"
                                          : "a string is not closed");
        p->at += count;
        if (code == '\\' && !parse_escape(p, &code))
            return false;
        if (!tarn__buffer_add(bytes, form, tarn__utf8_encode(form, code), 1))
            return false;
    }
    *length = (uint32_t)(bytes->count - *text);
    return true;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* At least one. */
static bool parse_digits(parser *p)
{
    const char *begin = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at > begin || fail(p, "a number lacks digits");
}

/* The text is kept as it is: bounds are compared digit by digit (decimal.c), and constants are written as they were. */
static bool parse_number(parser *p, uint32_t node)
{
    const char *begin = p->at;
    skip(p, '-');
    if (!skip(p, '0') && !parse_digits(p))
        return false;
    if (skip(p, '.') && !parse_digits(p))
        return false;
    if (skip(p, 'e') || skip(p, 'E')) {
        if (!skip(p, '+'))
            skip(p, '-');
        if (!parse_digits(p))
            return false;
    }
    tarn__json_node *n = node_at(p, node);
    n->kind = TARN__JSON_NUMBER;
    n->text = (uint32_t)p->tree->bytes.count;
    n->length = (uint32_t)(p->at - begin);
    return tarn__buffer_add(&p->tree->bytes, begin, n->length, 1);
}

static bool parse_value(parser *p, uint32_t node);

/* A new child after `last`; 0 with an error. */
static uint32_t add_child(parser *p, uint32_t parent, uint32_t last)
{
    uint32_t child = (uint32_t)p->tree->nodes.count;
    if (!tarn__buffer_add(&p->tree->nodes, &(tarn__json_node){.parent = parent}, 1, sizeof(tarn__json_node)))
        return 0;
    if (last)
        node_at(p, last)->next = child;
    else
        node_at(p, parent)->first = child;
    node_at(p, parent)->count++;
    return child;
}

/* For sorting: keys are compared in O(n log n), as a schema may have thousands of members. */
typedef struct member_key {
    const char *text;
    uint32_t length;
} member_key;

/* By bytes; a prefix comes first. */
static int by_text(const void *a, const void *b)
{
    const member_key *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);
    return order ? order : x->length < y->length ? -1 : x->length > y->length;
}

/* RFC 8259 leaves the meaning of a key that occurs twice open; in a schema one of the two would be lost silently. */
static bool check_keys(const parser *p, uint32_t object)
{
    size_t count = node_at(p, object)->count, i = 0;
    if (count < 2)
        return true;
    member_key *keys = tarn__alloc(sizeof(*keys) * count);
    if (!keys)
        return false;
    for (uint32_t child = node_at(p, object)->first; child; child = node_at(p, child)->next)
        keys[i++] = (member_key){p->tree->bytes.data + node_at(p, child)->key, node_at(p, child)->key_length};
    qsort(keys, count, sizeof(*keys), by_text);
    bool good = true;
    for (i = 1; good && i < count; i++)
        good = by_text(&keys[i - 1], &keys[i]) != 0 || fail(p, "an object has a key twice");
    tarn__release(keys, sizeof(*keys) * count);
    return good;
}

/* Elements or members up to the closing bracket. */
static bool parse_children(parser *p, uint32_t node, bool is_object)
{
    uint32_t child = 0;
    node_at(p, node)->kind = is_object ? TARN__JSON_OBJECT : TARN__JSON_ARRAY;
    skip_space(p);
    if (skip(p, is_object ? '}' : ']'))
        return true;
    do {
        uint32_t text = 0, length = 0;
        skip_space(p);
        if (is_object) {
            if (!skip(p, '"'))
                return fail(p, "a key is missing");
            if (!parse_string(p, &text, &length))
                return false;
            skip_space(p);
            if (!skip(p, ':'))
                return fail(p, "':' is missing");
        }
        if (!(child = add_child(p, node, child)))
            return false;
        node_at(p, child)->key = text;
        node_at(p, child)->key_length = length;
        if (!parse_value(p, child))
            return false;
        skip_space(p);
    } while (skip(p, ','));
    if (!skip(p, is_object ? '}' : ']'))
        return fail(p, is_object ? "'}' is missing" : "']' is missing");
    return !is_object || check_keys(p, node);
}

/* The word is the only value that can begin with its letter. */
static bool parse_word(parser *p, uint32_t node, const char *word, tarn__json_kind kind)
{
    size_t length = strlen(word);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0)
        return fail(p, "a value is missing");
    p->at += length;
    node_at(p, node)->kind = (uint8_t)kind;
    return true;
}

static bool parse_value(parser *p, uint32_t node)
{
    skip_space(p);
    if (p->nesting >= TARN__G_MAX_NESTING)
        return fail(p, "values are nested too deeply");
    switch (p->at < p->end ? *p->at : 0) {
    case '{':
    case '[': {
        bool is_object = *p->at++ == '{';
        p->nesting++;
        bool good = parse_children(p, node, is_object);
        p->nesting--;
        return good;
    }
    case '"': {
        uint32_t text, length;
        p->at++;
        if (!parse_string(p, &text, &length))
            return false;
        node_at(p, node)->kind = TARN__JSON_STRING;
        node_at(p, node)->text = text;
        node_at(p, node)->length = length;
        return true;
    }
    case 't': return parse_word(p, node, "true", TARN__JSON_TRUE);
    case 'f': return parse_word(p, node, "false", TARN__JSON_FALSE);
    case 'n': return parse_word(p, node, "null", TARN__JSON_NULL);
    default:
        return p->at < p->end && (*p->at == '-' || (*p->at >= '0' && *p->at <= '9')) ? parse_number(p, node)
                                                                                     : fail(p, "a value is missing");
    }
}

/* Values in values are limited to TARN__G_MAX_NESTING, which bounds the recursion of every walk over the tree. */
bool tarn__json_parse(tarn__json_tree *tree, const char *function, const char *text, size_t length)
{
    parser p = {tree, function, text, text, text + length, 0};
    *tree = (tarn__json_tree){0};
    if (!tarn__buffer_add(&tree->nodes, &(tarn__json_node){0}, 1, sizeof(tarn__json_node)) || !parse_value(&p, 0))
        return false;
    skip_space(&p);
    return p.at == p.end || fail(&p, "more text follows the value");
}

void tarn__json_close(tarn__json_tree *tree)
{
    tarn__buffer_free(&tree->nodes, sizeof(tarn__json_node));
    tarn__buffer_free(&tree->bytes, 1);
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

/* A search through all members: schemas' objects are short, or are read once. */
uint32_t tarn__json_get_length(const tarn__json_tree *tree, uint32_t object, const char *key, size_t length)
{
    uint32_t child = tarn__json_at(tree, object)->kind == TARN__JSON_OBJECT ? tarn__json_at(tree, object)->first : 0;
    while (child && (tarn__json_at(tree, child)->key_length != length ||
                     (length && memcmp(tarn__json_key(tree, child), key, length) != 0)))
        child = tarn__json_at(tree, child)->next;
    return child;
}

uint32_t tarn__json_get(const tarn__json_tree *tree, uint32_t object, const char *key)
{
    return tarn__json_get_length(tree, object, key, strlen(key));
}

/* The index of an element in its array. */
static uint32_t index_of(const tarn__json_tree *tree, uint32_t node)
{
    uint32_t index = 0;
    for (uint32_t at = tarn__json_at(tree, tarn__json_at(tree, node)->parent)->first; at != node;
         at = tarn__json_at(tree, at)->next)
        index++;
    return index;
}

/* From the root down; parts beyond the capacity are cut. ~ and / in keys are written as they are: it is for people. */
void tarn__json_pointer(const tarn__json_tree *tree, uint32_t node, char *text, size_t capacity)
{
    if (node == 0) {
        snprintf(text, capacity, "#");
        return;
    }
    const tarn__json_node *n = tarn__json_at(tree, node);
    tarn__json_pointer(tree, n->parent, text, capacity);
    size_t used = strlen(text);
    if (tarn__json_at(tree, n->parent)->kind == TARN__JSON_ARRAY)
        snprintf(text + used, capacity - used, "/%u", (unsigned)index_of(tree, node));
    else
        snprintf(text + used, capacity - used, "/%.*s", (int)(n->key_length < 60 ? n->key_length : 60),
                 tarn__json_key(tree, node));
}

/* 1, 1.0 and 10e-1 are equal. Numbers of too many digits are compared as they are written. */
static bool equal_numbers(const tarn__json_tree *tree, uint32_t a, uint32_t b)
{
    const tarn__json_node *x = tarn__json_at(tree, a), *y = tarn__json_at(tree, b);
    tarn__decimal p, q;
    if (tarn__decimal_parse(&p, tarn__json_text(tree, a), x->length) &&
        tarn__decimal_parse(&q, tarn__json_text(tree, b), y->length))
        return tarn__decimal_compare(&p, &q) == 0;
    return x->length == y->length && memcmp(tarn__json_text(tree, a), tarn__json_text(tree, b), x->length) == 0;
}

bool tarn__json_equal(const tarn__json_tree *tree, uint32_t a, uint32_t b)
{
    const tarn__json_node *x = tarn__json_at(tree, a), *y = tarn__json_at(tree, b);
    if (x->kind != y->kind || x->count != y->count)
        return false;
    if (x->kind == TARN__JSON_NUMBER)
        return equal_numbers(tree, a, b);
    if (x->kind == TARN__JSON_STRING)
        return x->length == y->length && memcmp(tarn__json_text(tree, a), tarn__json_text(tree, b), x->length) == 0;
    /* Arrays go through both lists side by side, objects look each key up: with equal counts and no key twice, that is
     * enough. */
    uint32_t right = y->first;
    for (uint32_t left = x->first; left; left = tarn__json_at(tree, left)->next) {
        if (x->kind == TARN__JSON_OBJECT)
            right = tarn__json_get_length(tree, b, tarn__json_key(tree, left), tarn__json_at(tree, left)->key_length);
        if (!right || !tarn__json_equal(tree, left, right))
            return false;
        right = tarn__json_at(tree, right)->next;
    }
    return true;
}
