/* methods.c: methods of dicts, lists and loops, and the table of all methods. A method is looked up by name when an
 * attribute is read, and bound to its object (tarn__jinja_method). Methods that change their object are missing: the
 * sandbox hides them. */
#include <string.h>

#include "text/jinja/builtins/methods.h"
#include "text/jinja/eval.h"

/* ---- dicts ------------------------------------------------------------------------------------------------------- */

/* d.get(key, default). A key whose value is none is there. */
static tarn__jinja_value dict_get(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                  int mode)
{
    tarn__jinja_value values[2] = {tarn__jinja_none(), tarn__jinja_none()};
    (void)mode;
    tarn__jinja_bind(r, "get", arguments, "/key default", 1, values);
    if (!tarn__jinja_is_hashable(values[0]))
        tarn__jinja_fail(r, "unhashable type: '%s'", tarn__jinja_type_name(values[0]));
    const tarn__jinja_value *found = tarn__jinja_dict_find(r, self.as.dict, values[0]);
    return found ? *found : values[1];
}

/* keys(), values() and items(): `mode` is the kind of the view. A view is a copy of the moment; dicts do not change, so
 * none can tell. */
static tarn__jinja_value dict_view(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                   int mode)
{
    tarn__jinja_bind(r, "items", arguments, "", 0, NULL);
    tarn__jinja_value list = tarn__jinja_list_new(r, (tarn__jinja_kind)mode, self.as.dict->count);
    for (size_t i = 0; i < self.as.dict->count; i++) {
        /* The order of insertion, as in Python. */
        const tarn__jinja_pair *pair = &self.as.dict->pairs[i];
        tarn__jinja_append(r, list.as.list,
                           mode == TARN__JINJA_KEYS     ? pair->key
                           : mode == TARN__JINJA_VALUES ? pair->value
                                                        : tarn__jinja_pair_new(r, pair->key, pair->value));
    }
    return list;
}

/* Immutable values are their own copies. */
static tarn__jinja_value copy(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                              int mode)
{
    (void)mode;
    tarn__jinja_bind(r, "copy", arguments, "", 0, NULL);
    return self;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Lists, tuples and ranges. Fails if the item is not there. */
static tarn__jinja_value list_index(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                    int mode)
{
    tarn__jinja_value item;
    (void)mode;
    tarn__jinja_bind(r, "index", arguments, "/value", 1, &item);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, self);
    for (size_t i = 0; i < list->count; i++)
        if (tarn__jinja_equal(r, list->items[i], item))
            return tarn__jinja_int((int64_t)i);
    tarn__jinja_fail(r, "the value is not in the list");
}

/* Equality decides: [1, 1.0, true].count(1) is 3. */
static tarn__jinja_value list_count(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                    int mode)
{
    tarn__jinja_value item;
    int64_t count = 0;
    (void)mode;
    tarn__jinja_bind(r, "count", arguments, "/value", 1, &item);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, self);
    for (size_t i = 0; i < list->count; i++)
        count += tarn__jinja_equal(r, list->items[i], item);
    return tarn__jinja_int(count);
}

/* ---- loops and cyclers ------------------------------------------------------------------------------------------- */

/* loop.cycle("odd", "even"): by the iteration's index. */
static tarn__jinja_value loop_cycle(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                    int mode)
{
    (void)mode;
    if (!arguments->positional.count)
        tarn__jinja_fail(r, "no items for cycling given");
    return arguments->positional.items[self.as.loop->index % arguments->positional.count];
}

/* loop.changed(x): true at the first call and when the arguments differ from those of the last one. */
static tarn__jinja_value loop_changed(tarn__jinja_run *r, tarn__jinja_value self,
                                      const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_value last = {TARN__JINJA_TUPLE, {.list = self.as.loop->changed}},
                      now = tarn__jinja_list_new(r, TARN__JINJA_TUPLE, 0);
    (void)mode;
    for (size_t i = 0; i < arguments->positional.count; i++)
        tarn__jinja_append(r, now.as.list, arguments->positional.items[i]);
    /* No call yet: changed. */
    bool changed = !last.as.list || !tarn__jinja_equal(r, last, now);
    self.as.loop->changed = now.as.list;
    return tarn__jinja_bool(changed);
}

/* revindex and last count what passes the condition, as loop->items holds that if the body reads loop
 * (statements.c). */
tarn__jinja_value tarn__jinja_loop_attribute(tarn__jinja_run *r, tarn__jinja_loop *loop, const tarn__jinja_string *name)
{
    tarn__jinja_value n = {TARN__JINJA_STRING, {.string = name}}, self = {TARN__JINJA_LOOP, {.loop = loop}};
    int64_t index = (int64_t)loop->index, count = (int64_t)loop->items->count;
    /* Made for each lookup, whichever of them is asked for: none allocates. */
    const struct {
        const char *name;
        tarn__jinja_value value;
    } values[] = {{"index", tarn__jinja_int(index + 1)},        {"index0", tarn__jinja_int(index)},
                  {"revindex", tarn__jinja_int(count - index)}, {"revindex0", tarn__jinja_int(count - index - 1)},
                  {"first", tarn__jinja_bool(index == 0)},      {"last", tarn__jinja_bool(index + 1 == count)},
                  {"length", tarn__jinja_int(count)},           {"depth", tarn__jinja_int(loop->depth + 1)},
                  {"depth0", tarn__jinja_int(loop->depth)}};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (tarn__jinja_is_text(n, values[i].name))
            return values[i].value;
    if (tarn__jinja_is_text(n, "previtem") && index > 0)
        return loop->items->items[index - 1];
    if (tarn__jinja_is_text(n, "nextitem") && index + 1 < count)
        return loop->items->items[index + 1];
    if (tarn__jinja_is_text(n, "cycle"))
        return tarn__jinja_method_new(r, self, loop_cycle, 0);
    if (tarn__jinja_is_text(n, "changed"))
        return tarn__jinja_method_new(r, self, loop_changed, 0);
    return tarn__jinja_undefined(r, name->text, name->length);
}

/* next() and reset(). */
static tarn__jinja_value cycler_next(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                     int mode)
{
    tarn__jinja_cycler *cycler = self.as.cycler;
    tarn__jinja_bind(r, "next", arguments, "", 0, NULL);
    tarn__jinja_value item = cycler->items->items[cycler->next];
    cycler->next = mode ? 0 : (cycler->next + 1) % cycler->items->count;
    return mode ? tarn__jinja_none() : item;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const tarn__jinja_method_row dict_methods[] = {{"get", dict_get, 0},
                                                      {"keys", dict_view, TARN__JINJA_KEYS},
                                                      {"values", dict_view, TARN__JINJA_VALUES},
                                                      {"items", dict_view, TARN__JINJA_ITEMS},
                                                      {"copy", copy, 0},
                                                      {NULL, NULL, 0}};
/* list.index() takes no bounds here. */
static const tarn__jinja_method_row list_methods[] = {
    {"index", list_index, 0}, {"count", list_count, 0}, {"copy", copy, 0}, {NULL, NULL, 0}};
static const tarn__jinja_method_row cycler_methods[] = {
    {"next", cycler_next, 0}, {"reset", cycler_next, 1}, {NULL, NULL, 0}};

/* Views, numbers and namespaces have no methods here. */
static const tarn__jinja_method_row *table_of(tarn__jinja_kind kind)
{
    static const tarn__jinja_method_row none[] = {{NULL, NULL, 0}};
    switch (kind) {
    case TARN__JINJA_STRING: return tarn__jinja_text_methods;
    case TARN__JINJA_DICT: return dict_methods;
    case TARN__JINJA_LIST:
    case TARN__JINJA_RANGE:
    case TARN__JINJA_TUPLE: return list_methods;
    case TARN__JINJA_CYCLER: return cycler_methods;
    default: return none;
    }
}

/* Tuples and ranges share the methods of lists but copy(), which theirs do not have in Python. `current` and a macro's
 * `name` are attributes, no methods. */
tarn__jinja_value tarn__jinja_find_method(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_string *name)
{
    tarn__jinja_value n = {TARN__JINJA_STRING, {.string = name}};
    for (const tarn__jinja_method_row *row = table_of(self.kind); row->name; row++)
        if (tarn__jinja_is_text(n, row->name) &&
            !(self.kind != TARN__JINJA_LIST && self.kind != TARN__JINJA_DICT && row->call == copy))
            return tarn__jinja_method_new(r, self, row->call, row->mode);
    if (self.kind == TARN__JINJA_TUPLE && self.as.list->is_group)
        for (int i = 0; i < 2; i++)
            if (tarn__jinja_is_text(n, i ? "list" : "grouper"))
                return self.as.list->items[i];
    if (self.kind == TARN__JINJA_CYCLER && tarn__jinja_is_text(n, "current"))
        return self.as.cycler->items->items[self.as.cycler->next];
    if (self.kind == TARN__JINJA_MACRO && tarn__jinja_is_text(n, "name"))
        return self.as.macro->name ? (tarn__jinja_value){TARN__JINJA_STRING, {.string = self.as.macro->name}}
                                   : TARN__JINJA_TEXT("caller");
    return tarn__jinja_undefined(r, name->text, name->length);
}
