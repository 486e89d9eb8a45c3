/* filters_list.c: filters of lists and dicts.
 *
 * All take what can be iterated: lists, tuples, strings (as characters), dicts (as keys), ranges, views, iterators and
 * undefined values (as nothing). Filters that are generators in Python return an iterator whose items are made when
 * they are first asked for; so are its errors, and an iterator can be read once only. The names of parameters are
 * Jinja's, for calls with keywords. */
#include <string.h>

#include "text/jinja/eval.h"

/* ---- sorting ----------------------------------------------------------------------------------------------------- */

/* A stable merge sort of indices by their keys: O(n log n) comparisons, each of them a step. `order` and `scratch` have
 * `count` items each; As in Python only < is asked for, and reversing keeps equal items in their order, so `reverse`
 * swaps the operands instead of the result. */
static void merge_sort(tarn__jinja_run *r, const tarn__jinja_list *keys, size_t *order, size_t *scratch, size_t count,
                       bool reverse)
{
    if (count < 2)
        return;
    size_t half = count / 2, left = 0, right = half;
    merge_sort(r, keys, order, scratch, half, reverse);
    merge_sort(r, keys, order + half, scratch, count - half, reverse);
    for (size_t i = 0; i < count; i++) {
        bool takes_right = left == half;
        if (left < half && right < count) {
            tarn__jinja_value a = keys->items[order[left]], b = keys->items[order[right]];
            takes_right = reverse ? tarn__jinja_compare(r, "<", a, b) == -1 : tarn__jinja_compare(r, "<", b, a) == -1;
        }
        scratch[i] = order[takes_right ? right++ : left++];
    }
    memcpy(order, scratch, count * sizeof(*order));
}

/* `keys` has a key for each item of `list`, which may be the list itself. Fails for keys without an order. */
tarn__jinja_value tarn__jinja_sorted(tarn__jinja_run *r, const tarn__jinja_list *list, const tarn__jinja_list *keys,
                                     bool reverse)
{
    size_t *order = tarn__jinja_alloc(r->arena, list->count + 1, sizeof(*order)),
           *scratch = tarn__jinja_alloc(r->arena, list->count + 1, sizeof(*order));
    for (size_t i = 0; i < list->count; i++)
        order[i] = i;
    merge_sort(r, keys, order, scratch, list->count, reverse);
    tarn__jinja_value sorted = tarn__jinja_list_new(r, TARN__JINJA_LIST, list->count);
    for (size_t i = 0; i < list->count; i++)
        tarn__jinja_append(r, sorted.as.list, list->items[order[i]]);
    return sorted;
}

/* What is compared: the attribute, in lower case unless case counts. */
static tarn__jinja_value key_of(tarn__jinja_run *r, tarn__jinja_value item, tarn__jinja_value attribute,
                                bool case_sensitive)
{
    if (attribute.kind != TARN__JINJA_NONE)
        item = tarn__jinja_path(r, item, attribute);
    return item.kind == TARN__JINJA_STRING && !case_sensitive
               ? tarn__jinja_change_case(r, item.as.string, TARN__JINJA_LOWER)
               : item;
}

/* The keys of sort: several attributes are separated by commas. */
static tarn__jinja_value sort_key(tarn__jinja_run *r, tarn__jinja_value item, tarn__jinja_value attribute,
                                  bool case_sensitive)
{
    if (attribute.kind != TARN__JINJA_STRING || !attribute.as.string->length ||
        !memchr(attribute.as.string->text, ',', attribute.as.string->length))
        return key_of(r, item, attribute, case_sensitive);
    tarn__jinja_value keys = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0);
    const tarn__jinja_string *names = attribute.as.string;
    /* `<=`: a comma at the end is followed by an empty name, as after split(","). */
    for (size_t begin = 0, end; begin <= names->length; begin = end + 1) {
        for (end = begin; end < names->length && names->text[end] != ',';)
            end++;
        tarn__jinja_append(r, keys.as.list,
                           key_of(r, item, tarn__jinja_slice_of(r, names, begin, end), case_sensitive));
    }
    return keys;
}

/* ["b", "A"]|sort is ["A", "b"]: case is ignored unless case_sensitive. attribute="age,name" sorts by lists of keys. */
static tarn__jinja_value sort(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode)
{
    tarn__jinja_value values[3] = {tarn__jinja_bool(false), tarn__jinja_bool(false), tarn__jinja_none()};
    (void)mode;
    tarn__jinja_bind(r, "sort", arguments, "reverse case_sensitive attribute", 0, values);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    tarn__jinja_list *keys = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    for (size_t i = 0; i < list->count; i++)
        tarn__jinja_append(r, keys, sort_key(r, list->items[i], values[2], tarn__jinja_truth(r, values[1])));
    return tarn__jinja_sorted(r, list, keys, tarn__jinja_truth(r, values[0]));
}

/* The pairs of a dict as tuples; none of an undefined value. */
static tarn__jinja_list *items_of(tarn__jinja_run *r, tarn__jinja_value dict)
{
    tarn__jinja_list *items = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    if (dict.kind == TARN__JINJA_UNDEFINED)
        return items;
    if (dict.kind != TARN__JINJA_DICT)
        tarn__jinja_fail(r, "can only get item pairs from a mapping");
    for (size_t i = 0; i < dict.as.dict->count; i++)
        tarn__jinja_append(r, items, tarn__jinja_pair_new(r, dict.as.dict->pairs[i].key, dict.as.dict->pairs[i].value));
    return items;
}

/* {"b": 1, "A": 2}|dictsort is [("A", 2), ("b", 1)]; by="value" compares the values. */
static tarn__jinja_value dictsort(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                  int mode)
{
    tarn__jinja_value values[3] = {tarn__jinja_bool(false), TARN__JINJA_TEXT("key"), tarn__jinja_bool(false)};
    (void)mode;
    if (input.kind != TARN__JINJA_DICT)
        tarn__jinja_fail(r, "dictsort: a mapping is expected, not %s", tarn__jinja_type_name(input));
    tarn__jinja_bind(r, "dictsort", arguments, "case_sensitive by reverse", 0, values);
    bool by_key = tarn__jinja_is_text(values[1], "key");
    if (!by_key && !tarn__jinja_is_text(values[1], "value"))
        tarn__jinja_fail(r, "you can only sort by either \"key\" or \"value\"");
    const tarn__jinja_list *items = items_of(r, input);
    tarn__jinja_list *keys = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    for (size_t i = 0; i < items->count; i++)
        tarn__jinja_append(
            /* The pair's key or value. */
            r, keys,
            key_of(r, items->items[i].as.list->items[!by_key], tarn__jinja_none(), tarn__jinja_truth(r, values[0])));
    return tarn__jinja_sorted(r, items, keys, tarn__jinja_truth(r, values[2]));
}

/* `mode` is the result of a comparison that replaces the best item so far: -1 for min, 1 for max; the first of equal
 * items stays. Undefined for no items, where Python raises an error. */
static tarn__jinja_value min_or_max(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                    int mode)
{
    tarn__jinja_value values[2] = {tarn__jinja_bool(false), tarn__jinja_none()};
    tarn__jinja_bind(r, "min", arguments, "case_sensitive attribute", 0, values);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    size_t best = 0;
    for (size_t i = 1; i < list->count; i++) {
        /* Keys are recomputed for each comparison: no list of them is needed, and most inputs are short. */
        tarn__jinja_value a = key_of(r, list->items[i], values[1], tarn__jinja_truth(r, values[0])),
                          b = key_of(r, list->items[best], values[1], tarn__jinja_truth(r, values[0]));
        if (mode == tarn__jinja_compare(r, mode < 0 ? "<" : ">", a, b))
            best = i;
    }
    return list->count ? list->items[best] : tarn__jinja_undefined(r, "an empty sequence", 17);
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

/* Of undefined values 0; iterators have none. */
static tarn__jinja_value length(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "length", arguments, "/", 0, NULL);
    return tarn__jinja_int(tarn__jinja_length(r, input));
}

/* The first key of a dict, the first character of a string. */
static tarn__jinja_value first(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                               int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "first", arguments, "", 0, NULL);
    if (input.kind == TARN__JINJA_ITERATOR) { /* takes one item only */
        tarn__jinja_iterator *iterator = input.as.iterator;
        if (!iterator->items)
            iterator->items = iterator->make(r, iterator->input, iterator->arguments, iterator->mode);
        return iterator->next < iterator->items->count ? iterator->items->items[iterator->next++]
                                                       : tarn__jinja_undefined(r, "an empty sequence", 17);
    }
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    return list->count ? list->items[0] : tarn__jinja_undefined(r, "an empty sequence", 17);
}

/* Jinja reverses the input, which generators do not allow. */
static tarn__jinja_value last(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "last", arguments, "", 0, NULL);
    if (input.kind == TARN__JINJA_ITERATOR)
        tarn__jinja_fail(r, "'generator' object is not reversible");
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    return list->count ? list->items[list->count - 1] : tarn__jinja_undefined(r, "an empty sequence", 17);
}

/* "ab"|list is ["a", "b"]. A list is returned as it is: nothing can change either of them. */
static tarn__jinja_value to_list(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                 int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "list", arguments, "", 0, NULL);
    return (tarn__jinja_value){TARN__JINJA_LIST, {.list = tarn__jinja_iterate(r, input)}};
}

/* [1, "a"]|join("-") is "1-a"; items and separator are printed, so undefined ones are empty. */
static tarn__jinja_value join(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode)
{
    tarn__jinja_value values[2] = {TARN__JINJA_TEXT(""), tarn__jinja_none()};
    tarn__jinja_builder b = {0};
    (void)mode;
    tarn__jinja_bind(r, "join", arguments, "d attribute", 0, values);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    for (size_t i = 0; i < list->count; i++) {
        if (i)
            tarn__jinja_print(r, &b, values[0]);
        tarn__jinja_print(r, &b,
                          values[1].kind == TARN__JINJA_NONE ? list->items[i]
                                                             : tarn__jinja_path(r, list->items[i], values[1]));
    }
    return tarn__jinja_built(r, &b);
}

/* [1, 2]|sum(start=3) is 6. Lists can be added to a list as start, strings cannot, as in Python. */
static tarn__jinja_value sum(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                             int mode)
{
    tarn__jinja_value values[2] = {tarn__jinja_none(), tarn__jinja_int(0)};
    (void)mode;
    tarn__jinja_bind(r, "sum", arguments, "attribute start", 0, values);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    if (values[1].kind == TARN__JINJA_STRING)
        tarn__jinja_fail(r, "sum() can't sum strings");
    for (size_t i = 0; i < list->count; i++)
        values[1] = tarn__jinja_binary(
            r, TARN__JINJA_T_ADD, values[1],
            values[0].kind == TARN__JINJA_NONE ? list->items[i] : tarn__jinja_path(r, list->items[i], values[0]));
    return values[1];
}

/* x|default("a"): for undefined values; with a second argument of true for all that are false, as "" and none. */
static tarn__jinja_value fallback(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                  int mode)
{
    tarn__jinja_value values[2] = {TARN__JINJA_TEXT(""), tarn__jinja_bool(false)};
    (void)mode;
    tarn__jinja_bind(r, "default", arguments, "default_value boolean", 0, values);
    bool replaces =
        input.kind == TARN__JINJA_UNDEFINED || (tarn__jinja_truth(r, values[1]) && !tarn__jinja_truth(r, input));
    return replaces ? values[0] : input;
}

/* dict|items: unlike dict.items() it takes undefined values, and it is an iterator, no view. */
static tarn__jinja_list *make_items(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                    int mode)
{
    (void)arguments;
    (void)mode;
    return items_of(r, input);
}

/* {"a": 1}|items|list is [("a", 1)]. */
static tarn__jinja_value items(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                               int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "items", arguments, "", 0, NULL);
    return tarn__jinja_iterator_new(r, (tarn__jinja_iterator){.make = make_items, .input = input});
}

/* The items from the last to the first. */
static tarn__jinja_list *make_reversed(tarn__jinja_run *r, tarn__jinja_value input,
                                       const tarn__jinja_arguments *arguments, int mode)
{
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    tarn__jinja_list *reversed = tarn__jinja_list_new(r, TARN__JINJA_LIST, list->count).as.list;
    (void)arguments;
    (void)mode;
    for (size_t i = list->count; i-- > 0;)
        tarn__jinja_append(r, reversed, list->items[i]);
    return reversed;
}

/* A string gives a string, "abc"|reverse is "cba"; an iterator is read at once into a list, anything else gives an
 * iterator. */
static tarn__jinja_value reverse(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                 int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "reverse", arguments, "", 0, NULL);
    if (input.kind == TARN__JINJA_ITERATOR)
        return (tarn__jinja_value){TARN__JINJA_LIST, {.list = make_reversed(r, input, NULL, 0)}};
    if (!tarn__jinja_is_iterable(input))
        tarn__jinja_fail(r, "argument must be iterable");
    if (input.kind != TARN__JINJA_STRING)
        return tarn__jinja_iterator_new(r, (tarn__jinja_iterator){.make = make_reversed, .input = input});
    tarn__jinja_builder b = {0};
    const tarn__jinja_list *characters = make_reversed(r, input, NULL, 0);
    for (size_t i = 0; i < characters->count; i++)
        tarn__jinja_build_string(r, &b, characters->items[i].as.string);
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), input.as.string);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* [1, 2, 3]|batch(2, "z") is [1, 2], [3, "z"]: rows of linecount items, the last one filled up if fill_with is
 * given. */
static tarn__jinja_list *make_batches(tarn__jinja_run *r, tarn__jinja_value input,
                                      const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_value values[2] = {tarn__jinja_none(), tarn__jinja_none()},
                      batch = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0);
    tarn__jinja_list *batches = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    (void)mode;
    tarn__jinja_bind(r, "batch", arguments, "linecount fill_with", 1, values);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    for (size_t i = 0; i < list->count; i++) {
        /* Compared only, as Jinja does, so a linecount that is no int makes one row. */
        if (tarn__jinja_equal(r, tarn__jinja_int((int64_t)batch.as.list->count), values[0])) {
            tarn__jinja_append(r, batches, batch);
            batch = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0);
        }
        tarn__jinja_append(r, batch.as.list, list->items[i]);
    }
    if (batch.as.list->count) {
        /* fill_with of none means no filling, so rows cannot be filled with none. */
        while (values[1].kind != TARN__JINJA_NONE &&
               (int64_t)batch.as.list->count < tarn__jinja_index(r, "batch", values[0]))
            tarn__jinja_append(r, batch.as.list, values[1]);
        tarn__jinja_append(r, batches, batch);
    }
    return batches;
}

/* [1, 2, 3, 4, 5]|slice(2, "x") is [1, 2, 3], [4, 5, "x"]: columns that differ by one item at most, the longer ones
 * first. */
static tarn__jinja_list *make_slices(tarn__jinja_run *r, tarn__jinja_value input,
                                     const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_value values[2] = {tarn__jinja_none(), tarn__jinja_none()};
    tarn__jinja_list *slices = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    (void)mode;
    tarn__jinja_bind(r, "slice", arguments, "slices fill_with", 1, values);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    int64_t count = tarn__jinja_index(r, "slice", values[0]), at = 0, total = (int64_t)list->count;
    if (count == 0)
        tarn__jinja_fail(r, "integer division or modulo by zero");
    for (int64_t i = 0; i < count; i++) {
        /* The first `total % count` slices have one item more. */
        int64_t size = total / count + (i < total % count);
        tarn__jinja_value slice = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0);
        for (int64_t k = 0; k < size; k++)
            tarn__jinja_append(r, slice.as.list, list->items[at++]);
        if (values[1].kind != TARN__JINJA_NONE && i >= total % count) /* all of them, where none is longer */
            tarn__jinja_append(r, slice.as.list, values[1]);
        tarn__jinja_append(r, slices, slice);
    }
    return slices;
}

/* ["a", "A", "b"]|unique is "a", "b": the first of those with an equal key. A dict finds what was seen, so keys must be
 * hashable. */
static tarn__jinja_list *make_unique(tarn__jinja_run *r, tarn__jinja_value input,
                                     const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_value values[2] = {tarn__jinja_bool(false), tarn__jinja_none()};
    tarn__jinja_list *unique = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    tarn__jinja_dict seen = {0};
    (void)mode;
    tarn__jinja_bind(r, "unique", arguments, "case_sensitive attribute", 0, values);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    for (size_t i = 0; i < list->count; i++) {
        tarn__jinja_value key = key_of(r, list->items[i], values[1], tarn__jinja_truth(r, values[0]));
        size_t count = seen.count;
        tarn__jinja_dict_set(r, &seen, key, tarn__jinja_none());
        if (seen.count > count)
            tarn__jinja_append(r, unique, list->items[i]);
    }
    return unique;
}

/* Which items an iterator of lazy() makes. */
enum { BATCH, SLICE, UNIQUE };

/* Arguments are checked when the first item is asked for, as a generator's are; they live in the arena until then. */
static tarn__jinja_value lazy(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode)
{
    return tarn__jinja_iterator_new(r, (tarn__jinja_iterator){.make = mode == BATCH   ? make_batches
                                                                      : mode == SLICE ? make_slices
                                                                                      : make_unique,
                                                              .input = input,
                                                              .arguments = arguments});
}

/* [{"a": 1}, {"a": 2}, {"a": 1}]|groupby("a") is pairs (1, [two dicts]), (2, [one dict]): sorted by the attribute,
 * equal ones together. The grouper is the first one's value, with its own case. */
static tarn__jinja_value groupby(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                 int mode)
{
    tarn__jinja_value values[3] = {tarn__jinja_none(), tarn__jinja_none(), tarn__jinja_bool(false)},
                      groups = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0);
    (void)mode;
    tarn__jinja_bind(r, "groupby", arguments, "attribute default case_sensitive", 1, values);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    tarn__jinja_list *keys = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list,
                     *pairs = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    for (size_t i = 0; i < list->count; i++) {
        tarn__jinja_value key = tarn__jinja_path(r, list->items[i], values[0]);
        key = key.kind == TARN__JINJA_UNDEFINED && values[1].kind != TARN__JINJA_NONE ? values[1] : key;
        /* The sort key ignores case, the pair keeps the key as it is. */
        tarn__jinja_append(r, keys, key_of(r, key, tarn__jinja_none(), tarn__jinja_truth(r, values[2])));
        tarn__jinja_append(r, pairs, tarn__jinja_pair_new(r, key, list->items[i]));
    }
    const tarn__jinja_list *sorted = tarn__jinja_sorted(r, pairs, keys, false).as.list;
    tarn__jinja_value previous = tarn__jinja_none();
    for (size_t i = 0; i < sorted->count; i++) {
        /* Equal keys are adjacent now: a key that differs from the one before begins a group, and items go to the last
         * group. */
        const tarn__jinja_list *pair = sorted->items[i].as.list;
        tarn__jinja_value key = key_of(r, pair->items[0], tarn__jinja_none(), tarn__jinja_truth(r, values[2]));
        if (i == 0 || !tarn__jinja_equal(r, key, previous)) {
            tarn__jinja_value group =
                tarn__jinja_pair_new(r, pair->items[0], tarn__jinja_list_new(r, TARN__JINJA_LIST, 0));
            group.as.list->is_group = true;
            tarn__jinja_append(r, groups.as.list, group);
        }
        tarn__jinja_append(r, groups.as.list->items[groups.as.list->count - 1].as.list->items[1].as.list,
                           pair->items[1]);
        previous = key;
    }
    return groups;
}

/* Names and aliases of Jinja, with what their functions take as mode. */
const tarn__jinja_filter tarn__jinja_list_filters[] = {
    {"length", length, 0},   {"count", length, 0},     {"first", first, 0},     {"last", last, 0},
    {"list", to_list, 0},    {"join", join, 0},        {"sort", sort, 0},       {"dictsort", dictsort, 0},
    {"min", min_or_max, -1}, {"max", min_or_max, 1},   {"sum", sum, 0},         {"default", fallback, 0},
    {"d", fallback, 0},      {"items", items, 0},      {"reverse", reverse, 0}, {"batch", lazy, BATCH},
    {"slice", lazy, SLICE},  {"unique", lazy, UNIQUE}, {"groupby", groupby, 0}, {NULL, NULL, 0}};
