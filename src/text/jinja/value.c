/* value.c: making, comparing and iterating values, as Python does. Equality, order and hashing follow Python's: 1 ==
 * 1.0 == true are one key of a dict, a list never equals a tuple, and comparing what has no order fails. Dicts are
 * arrays searched from the beginning: chat templates have small ones, and steps bound the rest. */
#include "text/jinja/value.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

tarn__jinja_value tarn__jinja_none(void)
{
    return (tarn__jinja_value){TARN__JINJA_NONE, {0}};
}

tarn__jinja_value tarn__jinja_bool(bool flag)
{
    return (tarn__jinja_value){TARN__JINJA_BOOL, {.flag = flag}};
}

tarn__jinja_value tarn__jinja_int(int64_t integer)
{
    return (tarn__jinja_value){TARN__JINJA_INT, {.integer = integer}};
}

tarn__jinja_value tarn__jinja_float(double number)
{
    return (tarn__jinja_value){TARN__JINJA_FLOAT, {.number = number}};
}

/* Copies; a string is never NULL, an empty one has no bytes. */
static const tarn__jinja_string *string_new(tarn__jinja_run *r, const char *text, size_t length)
{
    tarn__jinja_string *s = tarn__jinja_alloc(r->arena, 1, sizeof(*s));
    char *copy = tarn__jinja_alloc(r->arena, length, 1);
    if (length)
        memcpy(copy, text, length);
    *s = (tarn__jinja_string){copy, length, NULL, false};
    return s;
}

/* The name is cut: it is printed in errors only. */
tarn__jinja_value tarn__jinja_undefined(tarn__jinja_run *r, const char *name, size_t length)
{
    return (tarn__jinja_value){TARN__JINJA_UNDEFINED, {.name = string_new(r, name, length < 80 ? length : 80)}};
}

tarn__jinja_value tarn__jinja_text(tarn__jinja_run *r, const char *text, size_t length)
{
    return (tarn__jinja_value){TARN__JINJA_STRING, {.string = string_new(r, text, length)}};
}

tarn__jinja_value tarn__jinja_slice_of(tarn__jinja_run *r, const tarn__jinja_string *s, size_t begin, size_t end)
{
    tarn__jinja_string *slice = tarn__jinja_alloc(r->arena, 1, sizeof(*slice));
    *slice = (tarn__jinja_string){s->text + begin, end - begin, s->origin ? s->origin + begin : NULL, s->is_markup};
    return (tarn__jinja_value){TARN__JINJA_STRING, {.string = slice}};
}

tarn__jinja_value tarn__jinja_like(tarn__jinja_run *r, tarn__jinja_value v, const tarn__jinja_string *like)
{
    if (!like->is_markup)
        return v;
    tarn__jinja_string *s = tarn__jinja_alloc(r->arena, 1, sizeof(*s));
    *s = *v.as.string;
    s->is_markup = true;
    return (tarn__jinja_value){TARN__JINJA_STRING, {.string = s}};
}

/* Any of the kinds that hold a list: lists, tuples, views. */
tarn__jinja_value tarn__jinja_list_new(tarn__jinja_run *r, tarn__jinja_kind kind, size_t capacity)
{
    tarn__jinja_list *list = tarn__jinja_alloc(r->arena, 1, sizeof(*list));
    if (capacity)
        list->items = tarn__jinja_alloc(r->arena, capacity, sizeof(tarn__jinja_value));
    list->capacity = capacity;
    return (tarn__jinja_value){kind, {.list = list}};
}

tarn__jinja_value tarn__jinja_pair_new(tarn__jinja_run *r, tarn__jinja_value first, tarn__jinja_value second)
{
    tarn__jinja_value pair = tarn__jinja_list_new(r, TARN__JINJA_TUPLE, 2);
    tarn__jinja_append(r, pair.as.list, first);
    tarn__jinja_append(r, pair.as.list, second);
    return pair;
}

tarn__jinja_value tarn__jinja_dict_new(tarn__jinja_run *r)
{
    return (tarn__jinja_value){TARN__JINJA_DICT, {.dict = tarn__jinja_alloc(r->arena, 1, sizeof(tarn__jinja_dict))}};
}

tarn__jinja_value tarn__jinja_method_new(tarn__jinja_run *r, tarn__jinja_value self,
                                         tarn__jinja_value (*call)(tarn__jinja_run *, tarn__jinja_value,
                                                                   const tarn__jinja_arguments *, int),
                                         int mode)
{
    tarn__jinja_method *method = tarn__jinja_alloc(r->arena, 1, sizeof(*method));
    *method = (tarn__jinja_method){self, call, mode};
    return (tarn__jinja_value){TARN__JINJA_METHOD, {.method = method}};
}

/* Doubled memory with the old items in it, for lists and dicts. */
static void *grown(tarn__jinja_run *r, const void *from, size_t count, size_t *capacity, size_t each)
{
    *capacity = *capacity ? *capacity * 2 : 4;
    void *to = tarn__jinja_alloc(r->arena, *capacity, each);
    if (count)
        memcpy(to, from, count * each);
    return to;
}

/* Only for lists under construction: one that a template can see is immutable. */
void tarn__jinja_append(tarn__jinja_run *r, tarn__jinja_list *list, tarn__jinja_value item)
{
    if (list->count == list->capacity)
        list->items = grown(r, list->items, list->count, &list->capacity, sizeof(item));
    list->items[list->count++] = item;
    tarn__jinja_step(r, 1);
}

/* A key that exists keeps its place and its first spelling (1 stays 1 if 1.0 is set), as in Python. */
void tarn__jinja_dict_set(tarn__jinja_run *r, tarn__jinja_dict *dict, tarn__jinja_value key, tarn__jinja_value item)
{
    if (!tarn__jinja_is_hashable(key))
        tarn__jinja_fail(r, "unhashable type: '%s'", tarn__jinja_type_name(key));
    tarn__jinja_value *found = (tarn__jinja_value *)(uintptr_t)tarn__jinja_dict_find(r, dict, key);
    if (found) {
        *found = item;
        return;
    }
    if (dict->count == dict->capacity)
        dict->pairs = grown(r, dict->pairs, dict->count, &dict->capacity, sizeof(tarn__jinja_pair));
    dict->pairs[dict->count++] = (tarn__jinja_pair){key, item};
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

bool tarn__jinja_is_text(tarn__jinja_value v, const char *text)
{
    return v.kind == TARN__JINJA_STRING && v.as.string->length == strlen(text) &&
           memcmp(v.as.string->text, text, v.as.string->length) == 0;
}

bool tarn__jinja_is_number(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_INT || v.kind == TARN__JINJA_FLOAT || v.kind == TARN__JINJA_BOOL;
}

bool tarn__jinja_is_integer(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_INT || v.kind == TARN__JINJA_BOOL;
}

bool tarn__jinja_is_sequence(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_LIST || v.kind == TARN__JINJA_TUPLE;
}

/* What keys(), values() and items() of a dict return. */
static bool is_view(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_KEYS || v.kind == TARN__JINJA_VALUES || v.kind == TARN__JINJA_ITEMS;
}

/* Of an int or bool. */
int64_t tarn__jinja_integer_of(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_BOOL ? v.as.flag : v.as.integer;
}

double tarn__jinja_number_of(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_FLOAT ? v.as.number : (double)tarn__jinja_integer_of(v);
}

/* In the order of the kinds. */
const char *tarn__jinja_type_name(tarn__jinja_value v)
{
    static const char *const names[] = {"Undefined",   "NoneType",  "bool",      "int",         "float",      "str",
                                        "list",        "tuple",     "dict_keys", "dict_values", "dict_items", "range",
                                        "dict",        "Namespace", "generator", "Macro",       "function",   "method",
                                        "LoopContext", "Cycler",    "Joiner",    "slice"};
    return names[v.kind];
}

/* What may be a key: no list, dict, slice or view, alone or within a tuple. */
bool tarn__jinja_is_hashable(tarn__jinja_value v)
{
    if (v.kind == TARN__JINJA_TUPLE)
        for (size_t i = 0; i < v.as.list->count; i++)
            if (!tarn__jinja_is_hashable(v.as.list->items[i]))
                return false;
    return v.kind != TARN__JINJA_LIST && v.kind != TARN__JINJA_DICT && v.kind != TARN__JINJA_SLICE && !is_view(v);
}

/* Empty containers are false; objects without a length are true. */
bool tarn__jinja_truth(tarn__jinja_run *r, tarn__jinja_value v)
{
    switch (v.kind) {
    case TARN__JINJA_UNDEFINED:
    case TARN__JINJA_NONE: return false;
    case TARN__JINJA_BOOL: return v.as.flag;
    case TARN__JINJA_INT: return v.as.integer != 0;
    case TARN__JINJA_FLOAT: return v.as.number != 0;
    case TARN__JINJA_STRING:
    case TARN__JINJA_LIST:
    case TARN__JINJA_TUPLE:
    case TARN__JINJA_KEYS:
    case TARN__JINJA_VALUES:
    case TARN__JINJA_ITEMS:
    case TARN__JINJA_RANGE:
    case TARN__JINJA_DICT: return tarn__jinja_length(r, v) != 0;
    case TARN__JINJA_LOOP:
    default: return true;
    }
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static bool lists_equal(tarn__jinja_run *r, const tarn__jinja_list *a, const tarn__jinja_list *b)
{
    bool equal = a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++)
        equal = tarn__jinja_equal(r, a->items[i], b->items[i]);
    return equal;
}

/* The order of insertion does not count. */
static bool dicts_equal(tarn__jinja_run *r, const tarn__jinja_dict *a, const tarn__jinja_dict *b)
{
    bool equal = a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++) {
        const tarn__jinja_value *other = tarn__jinja_dict_find(r, b, a->pairs[i].key);
        equal = other && tarn__jinja_equal(r, a->pairs[i].value, *other);
    }
    return equal;
}

/* Views of keys and items compare as sets do. */
static bool views_equal(tarn__jinja_run *r, const tarn__jinja_list *a, const tarn__jinja_list *b)
{
    bool equal = a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++) {
        bool found = false;
        for (size_t k = 0; !found && k < b->count; k++)
            found = tarn__jinja_equal(r, a->items[i], b->items[k]);
        equal = found;
    }
    return equal;
}

static bool texts_equal(const tarn__jinja_string *a, const tarn__jinja_string *b)
{
    return a->length == b->length && (a->length == 0 || memcmp(a->text, b->text, a->length) == 0);
}

/* Ranges are equal if they give the same numbers, however they were written. */
static bool ranges_equal(const tarn__jinja_range *a, const tarn__jinja_range *b)
{
    return a->count == b->count && (a->count == 0 || (a->begin == b->begin && (a->count == 1 || a->step == b->step)));
}

/* Undefined values are equal to each other and to nothing else. */
static bool same_kind_equal(tarn__jinja_run *r, tarn__jinja_value a, tarn__jinja_value b)
{
    switch (a.kind) {
    case TARN__JINJA_UNDEFINED:
    case TARN__JINJA_NONE: return true;
    case TARN__JINJA_STRING: return texts_equal(a.as.string, b.as.string);
    case TARN__JINJA_LIST:
    case TARN__JINJA_TUPLE: return lists_equal(r, a.as.list, b.as.list);
    case TARN__JINJA_RANGE: return ranges_equal(a.as.range, b.as.range);
    case TARN__JINJA_DICT: return dicts_equal(r, a.as.dict, b.as.dict);
    case TARN__JINJA_KEYS:
    case TARN__JINJA_ITEMS: return views_equal(r, a.as.list, b.as.list);
    default: return a.as.list == b.as.list; /* identity */
    }
}

bool tarn__jinja_equal(tarn__jinja_run *r, tarn__jinja_value a, tarn__jinja_value b)
{
    tarn__jinja_step(r, 1);
    if (tarn__jinja_is_number(a) && tarn__jinja_is_number(b)) {
        /* Two ints are compared exactly; with a float, as doubles. */
        if (tarn__jinja_is_integer(a) && tarn__jinja_is_integer(b))
            return tarn__jinja_integer_of(a) == tarn__jinja_integer_of(b);
        return tarn__jinja_number_of(a) == tarn__jinja_number_of(b);
    }
    /* Markup is a string, so this parts no strings. */
    if (a.kind != b.kind)
        return false;
    tarn__jinja_enter(r);
    bool equal = same_kind_equal(r, a, b);
    tarn__jinja_leave(r);
    return equal;
}

/* 2 if one of them is a NaN. */
static int order(double a, double b)
{
    return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2;
}

static int compare_texts(const tarn__jinja_string *a, const tarn__jinja_string *b)
{
    size_t length = a->length < b->length ? a->length : b->length;
    int result = length ? memcmp(a->text, b->text, length) : 0; /* UTF-8 sorts as code points do */
    return result ? (result < 0 ? -1 : 1) : a->length < b->length ? -1 : a->length > b->length;
}

/* The first items that differ decide, else the lengths. */
static int compare_lists(tarn__jinja_run *r, const char *operation, const tarn__jinja_list *a,
                         const tarn__jinja_list *b)
{
    for (size_t i = 0; i < a->count && i < b->count; i++)
        if (!tarn__jinja_equal(r, a->items[i], b->items[i]))
            return tarn__jinja_compare(r, operation, a->items[i], b->items[i]);
    return a->count < b->count ? -1 : a->count > b->count;
}

/* `operation` is the operator for the error. Numbers, strings, and sequences of the same kind have an order. */
int tarn__jinja_compare(tarn__jinja_run *r, const char *operation, tarn__jinja_value a, tarn__jinja_value b)
{
    tarn__jinja_step(r, 1);
    if (a.kind == TARN__JINJA_UNDEFINED || b.kind == TARN__JINJA_UNDEFINED) {
        const tarn__jinja_string *name = a.kind == TARN__JINJA_UNDEFINED ? a.as.name : b.as.name;
        tarn__jinja_fail(r, "'%.*s' is undefined", (int)name->length, name->text);
    }
    if (tarn__jinja_is_integer(a) && tarn__jinja_is_integer(b)) {
        int64_t left = tarn__jinja_integer_of(a), right = tarn__jinja_integer_of(b);
        return left < right ? -1 : left > right;
    }
    if (tarn__jinja_is_number(a) && tarn__jinja_is_number(b))
        return order(tarn__jinja_number_of(a), tarn__jinja_number_of(b));
    if (a.kind == TARN__JINJA_STRING && b.kind == TARN__JINJA_STRING)
        return compare_texts(a.as.string, b.as.string);
    if (!tarn__jinja_is_sequence(a) || a.kind != b.kind)
        tarn__jinja_fail(r, "'%s' not supported between instances of '%s' and '%s'", operation,
                         tarn__jinja_type_name(a), tarn__jinja_type_name(b));
    tarn__jinja_enter(r);
    int result = compare_lists(r, operation, a.as.list, b.as.list);
    tarn__jinja_leave(r);
    return result;
}

/* NULL: not there. The key has been found hashable. */
const tarn__jinja_value *tarn__jinja_dict_find(tarn__jinja_run *r, const tarn__jinja_dict *dict, tarn__jinja_value key)
{
    for (size_t i = 0; i < dict->count; i++)
        if (tarn__jinja_equal(r, dict->pairs[i].key, key))
            return &dict->pairs[i].value;
    return NULL;
}

/* The same for a name, without a run: no step is counted and nothing is allocated. */
const tarn__jinja_value *tarn__jinja_dict_find_text(const tarn__jinja_dict *dict, const char *text, size_t length)
{
    tarn__jinja_string wanted = {text, length, NULL, false};
    for (size_t i = 0; i < dict->count; i++)
        if (dict->pairs[i].key.kind == TARN__JINJA_STRING && texts_equal(dict->pairs[i].key.as.string, &wanted))
            return &dict->pairs[i].value;
    return NULL;
}

/* ---- iteration --------------------------------------------------------------------------------------------------- */

/* len(): code points of strings. Undefined values have length 0, as Jinja's. */
int64_t tarn__jinja_length(tarn__jinja_run *r, tarn__jinja_value v)
{
    switch (v.kind) {
    case TARN__JINJA_UNDEFINED: return 0;
    case TARN__JINJA_STRING: return (int64_t)tarn__jinja_count(v.as.string);
    case TARN__JINJA_LIST:
    case TARN__JINJA_TUPLE:
    case TARN__JINJA_KEYS:
    case TARN__JINJA_VALUES:
    case TARN__JINJA_ITEMS: return (int64_t)v.as.list->count;
    case TARN__JINJA_RANGE: return v.as.range->count;
    case TARN__JINJA_DICT: return (int64_t)v.as.dict->count;
    default: tarn__jinja_fail(r, "object of type '%s' has no len()", tarn__jinja_type_name(v));
    }
}

bool tarn__jinja_is_iterable(tarn__jinja_value v)
{
    return v.kind == TARN__JINJA_UNDEFINED || v.kind == TARN__JINJA_STRING || tarn__jinja_is_sequence(v) ||
           is_view(v) || v.kind == TARN__JINJA_RANGE || v.kind == TARN__JINJA_DICT || v.kind == TARN__JINJA_ITERATOR;
}

tarn__jinja_value tarn__jinja_range_at(const tarn__jinja_range *range, int64_t index)
{
    return tarn__jinja_int(range->begin + index * range->step);
}

/* The code points of a string, as strings that share its bytes; characters of markup are plain. */
static tarn__jinja_list *characters_of(tarn__jinja_run *r, const tarn__jinja_string *s)
{
    tarn__jinja_list *list = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    tarn__jinja_string plain = *s;
    uint32_t code;
    plain.is_markup = false;
    for (size_t at = 0, size; at < s->length; at += size) {
        size = tarn__jinja_decode(s->text + at, s->length - at, &code);
        tarn__jinja_append(r, list, tarn__jinja_slice_of(r, &plain, at, at + size));
    }
    return list;
}

/* What is left of an iterator, which is used up. */
static tarn__jinja_list *rest_of(tarn__jinja_run *r, tarn__jinja_iterator *iterator)
{
    if (!iterator->items) {
        tarn__jinja_enter(r);
        iterator->items = iterator->make(r, iterator->input, iterator->arguments, iterator->mode);
        tarn__jinja_leave(r);
    }
    tarn__jinja_list *rest = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    for (; iterator->next < iterator->items->count; iterator->next++)
        tarn__jinja_append(r, rest, iterator->items->items[iterator->next]);
    return rest;
}

/* A list's own array is returned as it is, for it cannot change; the caller must not append to it. */
tarn__jinja_list *tarn__jinja_iterate(tarn__jinja_run *r, tarn__jinja_value v)
{
    if (v.kind == TARN__JINJA_STRING)
        return characters_of(r, v.as.string);
    if (tarn__jinja_is_sequence(v) || is_view(v))
        return v.as.list;
    if (v.kind == TARN__JINJA_ITERATOR)
        return rest_of(r, v.as.iterator);
    tarn__jinja_list *list = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    if (v.kind == TARN__JINJA_DICT)
        for (size_t i = 0; i < v.as.dict->count; i++)
            tarn__jinja_append(r, list, v.as.dict->pairs[i].key);
    else if (v.kind == TARN__JINJA_RANGE)
        for (int64_t i = 0; i < v.as.range->count; i++)
            tarn__jinja_append(r, list, tarn__jinja_range_at(v.as.range, i));
    else if (v.kind != TARN__JINJA_UNDEFINED)
        tarn__jinja_fail(r, "'%s' object is not iterable", tarn__jinja_type_name(v));
    return list;
}

static bool text_contains(tarn__jinja_run *r, const tarn__jinja_string *s, tarn__jinja_value part)
{
    if (part.kind != TARN__JINJA_STRING)
        tarn__jinja_fail(r, "'in <string>' requires string as left operand, not %s", tarn__jinja_type_name(part));
    return tarn__jinja_find(r, s, 0, part.as.string) != SIZE_MAX;
}

bool tarn__jinja_contains(tarn__jinja_run *r, tarn__jinja_value container, tarn__jinja_value item)
{
    if (container.kind == TARN__JINJA_STRING) {
        tarn__jinja_step(r, container.as.string->length / 64);
        return text_contains(r, container.as.string, item);
    }
    if (container.kind == TARN__JINJA_DICT) {
        if (!tarn__jinja_is_hashable(item))
            tarn__jinja_fail(r, "unhashable type: '%s'", tarn__jinja_type_name(item));
        return tarn__jinja_dict_find(r, container.as.dict, item) != NULL;
    }
    if (!tarn__jinja_is_iterable(container))
        tarn__jinja_fail(r, "argument of type '%s' is not iterable", tarn__jinja_type_name(container));
    /* An iterator is read to its end, even if the item is found before. */
    const tarn__jinja_list *items = tarn__jinja_iterate(r, container);
    for (size_t i = 0; i < items->count; i++)
        if (tarn__jinja_equal(r, items->items[i], item))
            return true;
    return false;
}
