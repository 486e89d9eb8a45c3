/* filters_select.c: map, select and their kin, and applying filters and tests by name. Their arguments hold the name of
 * another filter or test and what is passed on to it; all are iterators (filters_list.c). */
#include <string.h>

#include "text/jinja/eval.h"

/* Copies the iterator; its arguments must live in the arena, as those of a call do. */
tarn__jinja_value tarn__jinja_iterator_new(tarn__jinja_run *r, tarn__jinja_iterator iterator)
{
    tarn__jinja_iterator *copy = tarn__jinja_alloc(r->arena, 1, sizeof(*copy));
    *copy = iterator;
    return (tarn__jinja_value){TARN__JINJA_ITERATOR, {.iterator = copy}};
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */

/* A search through all names, for each use: templates are short, and a program has no resolved names. */
const tarn__jinja_filter *tarn__jinja_find_filter(const char *name, size_t length)
{
    const tarn__jinja_filter *const tables[] = {tarn__jinja_text_filters, tarn__jinja_list_filters,
                                                tarn__jinja_select_filters};
    for (int i = 0; i < 3; i++)
        for (const tarn__jinja_filter *filter = tables[i]; filter->name; filter++)
            if (strlen(filter->name) == length && memcmp(filter->name, name, length) == 0)
                return filter;
    return NULL;
}

/* The name may be unknown at this point: below an if, or as an argument of map. */
tarn__jinja_value tarn__jinja_apply_filter(tarn__jinja_run *r, const tarn__jinja_string *name, tarn__jinja_value input,
                                           const tarn__jinja_arguments *arguments)
{
    const tarn__jinja_filter *filter = tarn__jinja_find_filter(name->text, name->length);
    if (!filter)
        tarn__jinja_fail(r, "filter '%.*s' not found", tarn__jinja_shown(name->length), name->text);
    tarn__jinja_enter(r);
    tarn__jinja_value result = filter->call(r, input, arguments, filter->mode);
    tarn__jinja_leave(r);
    return result;
}

bool tarn__jinja_apply_test(tarn__jinja_run *r, const tarn__jinja_string *name, tarn__jinja_value input,
                            const tarn__jinja_arguments *arguments)
{
    const tarn__jinja_test *test = tarn__jinja_find_test(name->text, name->length);
    if (!test)
        tarn__jinja_fail(r, "test '%.*s' not found", tarn__jinja_shown(name->length), name->text);
    return test->call(r, input, arguments, test->mode);
}

/* ---- paths ------------------------------------------------------------------------------------------------------- */

/* A part of digits is an index, as Jinja's int(part); longer ones than 17 digits fit no list. */
static tarn__jinja_value part_of(tarn__jinja_run *r, const tarn__jinja_string *path, size_t begin, size_t end)
{
    int64_t index = 0;
    bool is_index = end > begin && end - begin < 18;
    for (size_t i = begin; is_index && i < end; i++) {
        is_index = path->text[i] >= '0' && path->text[i] <= '9';
        index = index * 10 + (path->text[i] - '0');
    }
    return is_index ? tarn__jinja_int(index) : tarn__jinja_slice_of(r, path, begin, end);
}

/* "a.b.0" is item["a"]["b"][0], an int one subscript, none the item itself. A fallback other than none stands in for
 * each part that is undefined, so what comes after it is looked up in the fallback. */
static tarn__jinja_value path_or(tarn__jinja_run *r, tarn__jinja_value item, tarn__jinja_value attribute,
                                 tarn__jinja_value fallback)
{
    if (attribute.kind != TARN__JINJA_STRING)
        /* An int is one subscript; none changes nothing. */
        attribute.kind == TARN__JINJA_NONE ? (void)0 : (void)(item = tarn__jinja_subscript(r, item, attribute));
    const tarn__jinja_string *path = attribute.kind == TARN__JINJA_STRING ? attribute.as.string : NULL;
    for (size_t begin = 0, end; path && begin <= path->length; begin = end + 1) {
        for (end = begin; end < path->length && path->text[end] != '.';)
            end++;
        item = tarn__jinja_subscript(r, item, part_of(r, path, begin, end));
        if (item.kind == TARN__JINJA_UNDEFINED && fallback.kind != TARN__JINJA_NONE)
            item = fallback;
    }
    return item.kind == TARN__JINJA_UNDEFINED && fallback.kind != TARN__JINJA_NONE ? fallback : item;
}

tarn__jinja_value tarn__jinja_path(tarn__jinja_run *r, tarn__jinja_value item, tarn__jinja_value attribute)
{
    return path_or(r, item, attribute, tarn__jinja_none());
}

/* ---- map --------------------------------------------------------------------------------------------------------- */

/* The arguments after the first `skip`. */
static tarn__jinja_arguments *rest_of(tarn__jinja_run *r, const tarn__jinja_arguments *arguments, size_t skip)
{
    tarn__jinja_arguments *rest = tarn__jinja_alloc(r->arena, 1, sizeof(*rest));
    *rest = *arguments;
    rest->positional.items += skip;
    rest->positional.count -= skip;
    rest->positional.capacity = rest->positional.count;
    return rest;
}

/* users|map(attribute="name.first", default="?"). */
static tarn__jinja_list *map_attribute(tarn__jinja_run *r, const tarn__jinja_list *list,
                                       const tarn__jinja_arguments *arguments)
{
    tarn__jinja_list *mapped = tarn__jinja_list_new(r, TARN__JINJA_LIST, list->count).as.list;
    const tarn__jinja_value *attribute = tarn__jinja_dict_find_text(&arguments->keywords, "attribute", 9),
                            *fallback = tarn__jinja_dict_find_text(&arguments->keywords, "default", 7);
    if (!attribute || arguments->keywords.count != 1 + (size_t)(fallback != NULL))
        tarn__jinja_fail(r, "map requires a filter argument");
    for (size_t i = 0; i < list->count; i++)
        tarn__jinja_append(r, mapped,
                           path_or(r, list->items[i], *attribute, fallback ? *fallback : tarn__jinja_none()));
    return mapped;
}

/* [1, 2]|map("string") is "1", "2". Arguments after the name are the filter's. They are looked at only if there is an
 * item, as in Jinja, where a generator without items never runs. */
static tarn__jinja_list *make_map(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                  int mode)
{
    (void)mode;
    /* Jinja's map begins with `if seq:`, so none and 0 give no items instead of an error. */
    const tarn__jinja_list *list = tarn__jinja_truth(r, input) ? tarn__jinja_iterate(r, input)
                                                               : tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    if (!list->count)
        return tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    if (!arguments->positional.count)
        return map_attribute(r, list, arguments);
    const tarn__jinja_string *name = tarn__jinja_want_string(r, "map", arguments->positional.items[0]);
    const tarn__jinja_arguments *rest = rest_of(r, arguments, 1);
    tarn__jinja_list *mapped = tarn__jinja_list_new(r, TARN__JINJA_LIST, list->count).as.list;
    for (size_t i = 0; i < list->count; i++)
        tarn__jinja_append(r, mapped, tarn__jinja_apply_filter(r, name, list->items[i], rest));
    return mapped;
}

/* ---- select ------------------------------------------------------------------------------------------------------ */

/* Bits of mode. MAPS stands alone. */
enum { REJECTS = 1, BY_ATTRIBUTE = 2, MAPS = 4 };

/* select, reject, selectattr and rejectattr: [0, 1, 2]|select is 1, 2; |reject("odd") is 0, 2; |selectattr("a", "eq",
 * 1) asks for the attribute's value. Without a test, truth decides; the selected items are always whole. */
static tarn__jinja_list *make_selection(tarn__jinja_run *r, tarn__jinja_value input,
                                        const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_list *selected = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    size_t skip = mode & BY_ATTRIBUTE ? 1 : 0, given = arguments->positional.count;
    if (!tarn__jinja_truth(r, input))
        return selected;
    const tarn__jinja_list *list = tarn__jinja_iterate(r, input);
    if (list->count == 0)
        return selected;
    if (given < skip)
        tarn__jinja_fail(r, "missing parameter for attribute name");
    bool has_test = given > skip;
    const tarn__jinja_arguments *rest = rest_of(r, arguments, skip + has_test);
    /* `given` counts the attribute, if there is one, the test's name and the test's own arguments, in this order. */
    for (size_t i = 0; i < list->count; i++) {
        tarn__jinja_value v =
            skip ? tarn__jinja_path(r, list->items[i], arguments->positional.items[0]) : list->items[i];
        /* The test's name is read for each item, so a name that is no string fails only if there are items. */
        bool passes = has_test
                          ? tarn__jinja_apply_test(
                                r, tarn__jinja_want_string(r, "select", arguments->positional.items[skip]), v, rest)
                          : tarn__jinja_truth(r, v);
        if (passes != ((mode & REJECTS) != 0))
            tarn__jinja_append(r, selected, list->items[i]);
    }
    return selected;
}

/* Makes the iterator; nothing is evaluated yet. */
static tarn__jinja_value lazy(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                              int mode)
{
    return tarn__jinja_iterator_new(
        r, (tarn__jinja_iterator){
               .make = mode & MAPS ? make_map : make_selection, .input = input, .arguments = arguments, .mode = mode});
}

/* Attributes only, unlike the dot: no keys of a dict. */
static tarn__jinja_value attribute(tarn__jinja_run *r, tarn__jinja_value input, const tarn__jinja_arguments *arguments,
                                   int mode)
{
    tarn__jinja_value name;
    (void)mode;
    tarn__jinja_bind(r, "attr", arguments, "name", 1, &name);
    /* Namespaces and loops keep attributes apart from methods, and an undefined value fails as with the dot. */
    const tarn__jinja_string *text = tarn__jinja_str(r, name);
    if (input.kind == TARN__JINJA_UNDEFINED || input.kind == TARN__JINJA_NAMESPACE || input.kind == TARN__JINJA_LOOP)
        return tarn__jinja_attribute(r, input, text);
    return tarn__jinja_find_method(r, input, text);
}

const tarn__jinja_filter tarn__jinja_select_filters[] = {{"map", lazy, MAPS},
                                                         {"select", lazy, 0},
                                                         {"reject", lazy, REJECTS},
                                                         {"selectattr", lazy, BY_ATTRIBUTE},
                                                         {"rejectattr", lazy, BY_ATTRIBUTE | REJECTS},
                                                         {"attr", attribute, 0},
                                                         {NULL, NULL, 0}};
