/* eval.c: evaluates expressions: names, attributes, subscripts, calls, filters and tests.
 *
 * Two rules of Jinja show everywhere. A lookup that finds nothing gives an undefined value, which prints as nothing and
 * is false; looking something up in an undefined value fails. And r->line is set again after the operands of a node are
 * evaluated, since they may lie on other lines and an error belongs to the operator's. */
#include "text/jinja/eval.h"

#include <string.h>

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool is_same(const tarn__jinja_string *a, const tarn__jinja_string *b)
{
    return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

/* Scopes from the innermost out, then the context, then the global functions: a variable named range hides the
 * function. */
static tarn__jinja_value look_up(tarn__jinja_run *r, const tarn__jinja_string *name)
{
    for (const tarn__jinja_scope *scope = r->scope; scope; scope = scope->parent)
        for (size_t i = 0; i < scope->count; i++)
            if (is_same(scope->variables[i].name, name))
                return scope->variables[i].value;
    const tarn__jinja_value *variable = tarn__jinja_dict_find_text(&r->context->variables, name->text, name->length);
    if (variable)
        return *variable;
    const tarn__jinja_function *function = tarn__jinja_find_function(name->text, name->length);
    if (function)
        return (tarn__jinja_value){TARN__JINJA_FUNCTION, {.function = function}};
    return tarn__jinja_undefined(r, name->text, name->length);
}

/* Jinja's word for what is done with an undefined value; the name is what the template asked for. */
static _Noreturn void fail_undefined(tarn__jinja_run *r, tarn__jinja_value v)
{
    tarn__jinja_fail(r, "'%.*s' is undefined", (int)v.as.name->length, v.as.name->text);
}

/* ---- attributes and subscripts ----------------------------------------------------------------------------------- */

/* An attribute as getattr() finds it; undefined: none. */
static tarn__jinja_value own_attribute(tarn__jinja_run *r, tarn__jinja_value object, const tarn__jinja_string *name)
{
    if (object.kind == TARN__JINJA_NAMESPACE) {
        const tarn__jinja_value *found = tarn__jinja_dict_find_text(object.as.dict, name->text, name->length);
        return found ? *found : tarn__jinja_undefined(r, name->text, name->length);
    }
    if (object.kind == TARN__JINJA_LOOP)
        return tarn__jinja_loop_attribute(r, object.as.loop, name);
    return tarn__jinja_find_method(r, object, name);
}

/* True for the methods that the sandbox hides: they change what they belong to. */
static bool is_forbidden(tarn__jinja_value object, const tarn__jinja_string *name)
{
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL},
                             *const of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                                 "sort",   "extend", "remove", NULL};
    const char *const *names = object.kind == TARN__JINJA_DICT ? of_dict : of_list;
    tarn__jinja_value wanted = {TARN__JINJA_STRING, {.string = name}};
    for (; (object.kind == TARN__JINJA_DICT || object.kind == TARN__JINJA_LIST) && *names; names++)
        if (tarn__jinja_is_text(wanted, *names))
            return true;
    return false;
}

/* object.name: {{ tool.items }} is the method even if the dict has such a key. The names that the sandbox hides are
 * undefined, also where the dict has a key of that name: only ["pop"] reads it. */
tarn__jinja_value tarn__jinja_attribute(tarn__jinja_run *r, tarn__jinja_value object, const tarn__jinja_string *name)
{
    if (object.kind == TARN__JINJA_UNDEFINED)
        fail_undefined(r, object);
    tarn__jinja_value own = own_attribute(r, object, name);
    if (own.kind != TARN__JINJA_UNDEFINED || object.kind != TARN__JINJA_DICT || is_forbidden(object, name))
        return own;
    const tarn__jinja_value *item = tarn__jinja_dict_find_text(object.as.dict, name->text, name->length);
    return item ? *item : own;
}

/* Python's slice.indices(). */
static void slice_bounds(tarn__jinja_run *r, const tarn__jinja_slice *slice, int64_t length, int64_t *begin,
                         int64_t *end, int64_t *step)
{
    const tarn__jinja_value *parts[] = {&slice->begin, &slice->end, &slice->step};
    int64_t bounds[3];
    for (int i = 0; i < 3; i++) {
        if (parts[i]->kind == TARN__JINJA_UNDEFINED)
            fail_undefined(r, *parts[i]);
        if (parts[i]->kind != TARN__JINJA_NONE && !tarn__jinja_is_integer(*parts[i]))
            tarn__jinja_fail(r, "slice indices must be integers or None");
        bounds[i] = parts[i]->kind == TARN__JINJA_NONE ? 0 : tarn__jinja_integer_of(*parts[i]);
    }
    *step = parts[2]->kind == TARN__JINJA_NONE ? 1 : bounds[2];
    if (*step == 0)
        tarn__jinja_fail(r, "slice step cannot be zero");
    if (*step < -INT64_MAX)
        *step = -INT64_MAX;
    for (int i = 0; i < 2; i++) {
        /* From the right a slice may end before index 0, at -1, and begin at the last item at most. */
        int64_t low = *step < 0 ? -1 : 0, high = *step < 0 ? length - 1 : length;
        if (parts[i]->kind == TARN__JINJA_NONE)
            bounds[i] = (i == 0) == (*step > 0) ? low : high;
        else {
            bounds[i] += bounds[i] < 0 ? length : 0;
            bounds[i] = bounds[i] < low ? low : bounds[i] > high ? high : bounds[i];
        }
    }
    *begin = bounds[0];
    *end = bounds[1];
}

/* By one the slice shares the bytes; otherwise code points are copied one by one. */
static tarn__jinja_value slice_string(tarn__jinja_run *r, const tarn__jinja_string *s, int64_t begin, int64_t end,
                                      int64_t step)
{
    if (step == 1) {
        size_t from = tarn__jinja_offset(s, (size_t)begin),
               to = tarn__jinja_offset(s, (size_t)(end > begin ? end : begin));
        return tarn__jinja_slice_of(r, s, from, to);
    }
    tarn__jinja_builder b = {0};
    const tarn__jinja_list *characters = tarn__jinja_iterate(r, (tarn__jinja_value){TARN__JINJA_STRING, {.string = s}});
    /* The test inside keeps `i` from overflowing with steps near the limits. */
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
        tarn__jinja_build_string(r, &b, characters->items[i].as.string);
        if ((step > 0 && i > INT64_MAX - step) || (step < 0 && i < INT64_MIN - step))
            break;
    }
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), s);
}

/* A range of a range. Its bounds are small: the sandbox limits its length, and steps beyond that select one item. */
static tarn__jinja_value slice_range(tarn__jinja_run *r, const tarn__jinja_range *from, int64_t begin, int64_t end,
                                     int64_t step)
{
    tarn__jinja_range *range = tarn__jinja_alloc(r->arena, 1, sizeof(*range));
    int64_t span = step > 0 ? end - begin : begin - end, size = step > 0 ? step : -step;
    range->count = span <= 0 ? 0 : (span - 1) / size + 1;
    if (__builtin_mul_overflow(from->step, step, &range->step) ||
        __builtin_mul_overflow(from->step, begin, &range->begin) ||
        __builtin_add_overflow(range->begin, from->begin, &range->begin) ||
        __builtin_mul_overflow(from->step, end, &range->end) ||
        __builtin_add_overflow(range->end, from->begin, &range->end))
        tarn__jinja_fail(r, "an integer is too large");
    return (tarn__jinja_value){TARN__JINJA_RANGE, {.range = range}};
}

/* Dicts and views have no slices. A slice of a list is a new list that shares the items. */
static tarn__jinja_value take_slice(tarn__jinja_run *r, tarn__jinja_value object, const tarn__jinja_slice *slice)
{
    int64_t begin, end, step;
    if (object.kind != TARN__JINJA_STRING && !tarn__jinja_is_sequence(object) && object.kind != TARN__JINJA_RANGE)
        tarn__jinja_fail(r, "'%s' object cannot be sliced", tarn__jinja_type_name(object));
    slice_bounds(r, slice, tarn__jinja_length(r, object), &begin, &end, &step);
    if (object.kind == TARN__JINJA_RANGE)
        return slice_range(r, object.as.range, begin, end, step);
    if (object.kind == TARN__JINJA_STRING)
        return slice_string(r, object.as.string, begin, end, step);
    tarn__jinja_value result =
        tarn__jinja_list_new(r, object.kind == TARN__JINJA_TUPLE ? TARN__JINJA_TUPLE : TARN__JINJA_LIST, 0);
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
        tarn__jinja_append(r, result.as.list, object.as.list->items[i]);
        if ((step > 0 && i > INT64_MAX - step) || (step < 0 && i < INT64_MIN - step))
            break;
    }
    return result;
}

/* object[index]; undefined: out of range. */
static tarn__jinja_value item_at(tarn__jinja_run *r, tarn__jinja_value object, int64_t index)
{
    int64_t length = tarn__jinja_length(r, object);
    index += index < 0 ? length : 0;
    if (index < 0 || index >= length)
        return tarn__jinja_undefined(r, "element", 7);
    if (object.kind == TARN__JINJA_RANGE)
        return tarn__jinja_range_at(object.as.range, index);
    if (object.kind != TARN__JINJA_STRING)
        return object.as.list->items[index];
    size_t begin = tarn__jinja_offset(object.as.string, (size_t)index);
    uint32_t code;
    return tarn__jinja_slice_of(
        r, object.as.string, begin,
        begin + tarn__jinja_decode(object.as.string->text + begin, object.as.string->length - begin, &code));
}

/* object[key]: keys and indices first, then attributes: {{ tool["items"] }} is the key, {{ "abc"["upper"] }}
 * the method. A key of any other kind that finds nothing is undefined, not an error. */
tarn__jinja_value tarn__jinja_subscript(tarn__jinja_run *r, tarn__jinja_value object, tarn__jinja_value key)
{
    if (object.kind == TARN__JINJA_UNDEFINED)
        fail_undefined(r, object);
    if (key.kind == TARN__JINJA_SLICE)
        return take_slice(r, object, key.as.slice);
    bool has_index =
        object.kind == TARN__JINJA_STRING || tarn__jinja_is_sequence(object) || object.kind == TARN__JINJA_RANGE;
    if (object.kind == TARN__JINJA_DICT && tarn__jinja_is_hashable(key)) {
        const tarn__jinja_value *item = tarn__jinja_dict_find(r, object.as.dict, key);
        if (item)
            return *item;
    } else if (has_index && tarn__jinja_is_integer(key))
        return item_at(r, object, tarn__jinja_integer_of(key));
    if (key.kind == TARN__JINJA_STRING)
        return own_attribute(r, object, key.as.string);
    const tarn__jinja_string *name = tarn__jinja_str(r, key);
    return tarn__jinja_undefined(r, name->text, name->length);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* *v: the items of anything that can be iterated. */
static void add_star(tarn__jinja_run *r, tarn__jinja_arguments *arguments, tarn__jinja_value v)
{
    const tarn__jinja_list *items = tarn__jinja_iterate(r, v);
    for (size_t i = 0; i < items->count; i++)
        tarn__jinja_append(r, &arguments->positional, items->items[i]);
}

/* Fails if the name was given, by a keyword or by **. */
static void add_keyword(tarn__jinja_run *r, tarn__jinja_arguments *arguments, tarn__jinja_value name,
                        tarn__jinja_value v)
{
    if (name.kind != TARN__JINJA_STRING)
        tarn__jinja_fail(r, "keywords must be strings");
    if (tarn__jinja_dict_find(r, &arguments->keywords, name))
        tarn__jinja_fail(r, "got multiple values for keyword argument '%.*s'",
                         tarn__jinja_shown(name.as.string->length), name.as.string->text);
    tarn__jinja_dict_set(r, &arguments->keywords, name, v);
}

/* The arguments of a call; `caller` is the block of {% call %}, or NULL: a keyword before those of **. */
static tarn__jinja_arguments *eval_arguments(tarn__jinja_run *r, const tarn__jinja_nodes *items,
                                             const tarn__jinja_value *caller)
{
    tarn__jinja_arguments *arguments = tarn__jinja_alloc(r->arena, 1, sizeof(*arguments));
    for (int i = 0; i < items->count; i++) {
        const tarn__jinja_node *node = items->at[i];
        bool is_plain =
            node->kind != TARN__JINJA_KEYWORD && node->kind != TARN__JINJA_STAR && node->kind != TARN__JINJA_STARS;
        tarn__jinja_value v = tarn__jinja_eval(r, is_plain ? node : node->left);
        /* Jinja's compiler writes caller after the keywords of the source and before **, where a "caller" would be a
         * duplicate. */
        if (caller && node->kind == TARN__JINJA_STARS) {
            add_keyword(r, arguments, TARN__JINJA_TEXT("caller"), *caller);
            caller = NULL;
        }
        if (is_plain)
            tarn__jinja_append(r, &arguments->positional, v);
        else if (node->kind == TARN__JINJA_KEYWORD)
            add_keyword(r, arguments, node->value, v);
        else if (node->kind == TARN__JINJA_STAR)
            add_star(r, arguments, v);
        else if (v.kind != TARN__JINJA_DICT)
            tarn__jinja_fail(r, "argument after ** must be a mapping, not %s", tarn__jinja_type_name(v));
        else
            for (size_t k = 0; k < v.as.dict->count; k++)
                add_keyword(r, arguments, v.as.dict->pairs[k].key, v.as.dict->pairs[k].value);
    }
    if (caller)
        add_keyword(r, arguments, TARN__JINJA_TEXT("caller"), *caller);
    return arguments;
}

/* A joiner gives nothing at its first call and its separator at all others. */
static tarn__jinja_value join(tarn__jinja_run *r, tarn__jinja_cycler *joiner)
{
    return joiner->next++ ? joiner->items->items[0] : TARN__JINJA_TEXT("");
}

/* A level of depth for each call: macros and recursive loops are the only recursion of a template, and both pass here.
 */
tarn__jinja_value tarn__jinja_call(tarn__jinja_run *r, tarn__jinja_value callee, tarn__jinja_arguments *arguments)
{
    tarn__jinja_value result;
    tarn__jinja_enter(r);
    switch (callee.kind) {
    case TARN__JINJA_UNDEFINED: fail_undefined(r, callee);
    case TARN__JINJA_MACRO: result = tarn__jinja_call_macro(r, callee.as.macro, arguments); break;
    case TARN__JINJA_FUNCTION: result = callee.as.function->call(r, arguments); break;
    case TARN__JINJA_METHOD:
        result = callee.as.method->call(r, callee.as.method->self, arguments, callee.as.method->mode);
        break;
    /* A call of loop is a recursion into its body. */
    case TARN__JINJA_LOOP: result = tarn__jinja_call_loop(r, callee.as.loop, arguments); break;
    case TARN__JINJA_JOINER: result = join(r, callee.as.cycler); break;
    default: tarn__jinja_fail(r, "'%s' object is not callable", tarn__jinja_type_name(callee));
    }
    tarn__jinja_leave(r);
    return result;
}

/* A filter without an expression before it stands in a filter or set block, whose text is r->filter_input. */
static tarn__jinja_value eval_filter(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value input = node->left ? tarn__jinja_eval(r, node->left) : r->filter_input;
    r->line = node->line;
    return tarn__jinja_apply_filter(r, node->value.as.string, input, eval_arguments(r, &node->items, NULL));
}

/* The callee before its arguments, as in Python. */
static tarn__jinja_value eval_call(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value callee = tarn__jinja_eval(r, node->left);
    tarn__jinja_arguments *arguments = eval_arguments(r, &node->items, NULL);
    r->line = node->line;
    return tarn__jinja_call(r, callee, arguments);
}

/* {% call %}: the block is passed as the keyword caller. */
static tarn__jinja_value eval_call_block(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value callee = tarn__jinja_eval(r, node->right->left);
    tarn__jinja_macro *macro = tarn__jinja_alloc(r->arena, 1, sizeof(*macro));
    /* The block sees the variables around {% call %}, not those of the macro that calls it. */
    *macro = (tarn__jinja_macro){node, r->scope, NULL};
    tarn__jinja_value caller = {TARN__JINJA_MACRO, {.macro = macro}};
    tarn__jinja_arguments *arguments = eval_arguments(r, &node->right->items, &caller);
    r->line = node->line;
    return tarn__jinja_call(r, callee, arguments);
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

/* Items are evaluated from the left, each time: a list in a loop is a new one. */
static tarn__jinja_value eval_list(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value list =
        tarn__jinja_list_new(r, node->kind == TARN__JINJA_MAKE_LIST ? TARN__JINJA_LIST : TARN__JINJA_TUPLE, 0);
    for (int i = 0; i < node->items.count; i++)
        tarn__jinja_append(r, list.as.list, tarn__jinja_eval(r, node->items.at[i]));
    return list;
}

/* Keys and values in the order of the source; a key that occurs twice has the last value. */
static tarn__jinja_value eval_dict(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value dict = tarn__jinja_dict_new(r);
    for (int i = 0; i < node->items.count; i += 2) {
        tarn__jinja_value key = tarn__jinja_eval(r, node->items.at[i]);
        tarn__jinja_dict_set(r, dict.as.dict, key, tarn__jinja_eval(r, node->items.at[i + 1]));
    }
    return dict;
}

/* a < b < c as Python has it: each operand is evaluated once, and those after the first false comparison never. */
static tarn__jinja_value eval_compare(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value left = tarn__jinja_eval(r, node->left);
    for (int i = 0; i < node->items.count; i++) {
        const tarn__jinja_node *operand = node->items.at[i];
        tarn__jinja_value right = tarn__jinja_eval(r, operand->left);
        r->line = node->line;
        if (!tarn__jinja_relation(r, operand->operator, left, right))
            return tarn__jinja_bool(false);
        left = right;
    }
    return tarn__jinja_bool(true);
}

/* a ~ b: operands become text as {{ }} prints them, undefined values nothing. */
static tarn__jinja_value eval_concat(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_builder b = {0};
    for (int i = 0; i < node->items.count; i++)
        tarn__jinja_print(r, &b, tarn__jinja_eval(r, node->items.at[i]));
    return tarn__jinja_built(r, &b);
}

/* Without else, the result of a false condition is undefined, not none. */
static tarn__jinja_value eval_choice(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    static const char text[] = "the inline if-expression";
    if (tarn__jinja_truth(r, tarn__jinja_eval(r, node->left)))
        return tarn__jinja_eval(r, node->right);
    return node->third ? tarn__jinja_eval(r, node->third) : tarn__jinja_undefined(r, text, sizeof(text) - 1);
}

/* Missing parts are none; take_slice() gives them their meaning, which depends on the step's sign. */
static tarn__jinja_value eval_slice(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_slice *slice = tarn__jinja_alloc(r->arena, 1, sizeof(*slice));
    slice->begin = node->left ? tarn__jinja_eval(r, node->left) : tarn__jinja_none();
    slice->end = node->right ? tarn__jinja_eval(r, node->right) : tarn__jinja_none();
    slice->step = node->third ? tarn__jinja_eval(r, node->third) : tarn__jinja_none();
    return (tarn__jinja_value){TARN__JINJA_SLICE, {.slice = slice}};
}

static tarn__jinja_value eval_binary(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value left = tarn__jinja_eval(r, node->left), right = tarn__jinja_eval(r, node->right);
    r->line = node->line;
    return tarn__jinja_binary(r, node->operator, left, right);
}

static tarn__jinja_value eval_subscript(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value object = tarn__jinja_eval(r, node->left), key = tarn__jinja_eval(r, node->right);
    r->line = node->line;
    return tarn__jinja_subscript(r, object, key);
}

/* As in Python, the result is one of the operands, not a bool. */
static tarn__jinja_value eval_logic(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value left = tarn__jinja_eval(r, node->left);
    return tarn__jinja_truth(r, left) == (node->kind == TARN__JINJA_OR) ? left : tarn__jinja_eval(r, node->right);
}

/* The input before the arguments; an undefined one is for the test to judge. */
static tarn__jinja_value eval_test(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value input = tarn__jinja_eval(r, node->left);
    r->line = node->line;
    return tarn__jinja_bool(
        tarn__jinja_apply_test(r, node->value.as.string, input, eval_arguments(r, &node->items, NULL)));
}

static tarn__jinja_value eval(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    switch (node->kind) {
    case TARN__JINJA_LITERAL: return node->value;
    case TARN__JINJA_NAME: return look_up(r, node->value.as.string);
    case TARN__JINJA_MAKE_LIST:
    case TARN__JINJA_MAKE_TUPLE: return eval_list(r, node);
    case TARN__JINJA_MAKE_DICT: return eval_dict(r, node);
    case TARN__JINJA_UNARY: return tarn__jinja_unary(r, node->operator, tarn__jinja_eval(r, node->left));
    case TARN__JINJA_BINARY: return eval_binary(r, node);
    case TARN__JINJA_AND:
    case TARN__JINJA_OR: return eval_logic(r, node);
    case TARN__JINJA_NOT: return tarn__jinja_bool(!tarn__jinja_truth(r, tarn__jinja_eval(r, node->left)));
    case TARN__JINJA_COMPARE: return eval_compare(r, node);
    case TARN__JINJA_CONCAT: return eval_concat(r, node);
    case TARN__JINJA_CHOICE: return eval_choice(r, node);
    case TARN__JINJA_ATTRIBUTE: return tarn__jinja_attribute(r, tarn__jinja_eval(r, node->left), node->value.as.string);
    case TARN__JINJA_SUBSCRIPT: return eval_subscript(r, node);
    case TARN__JINJA_MAKE_SLICE: return eval_slice(r, node);
    case TARN__JINJA_CALL: return eval_call(r, node);
    case TARN__JINJA_CALL_BLOCK: return eval_call_block(r, node);
    case TARN__JINJA_FILTER: return eval_filter(r, node);
    case TARN__JINJA_TEST: return eval_test(r, node);
    default: tarn__jinja_fail(r, "this is no expression");
    }
}

/* Every node passes here: a step for each and a level of depth for each nesting bound what an expression costs. */
tarn__jinja_value tarn__jinja_eval(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    r->line = node->line;
    tarn__jinja_step(r, 1);
    tarn__jinja_enter(r);
    tarn__jinja_value v = eval(r, node);
    tarn__jinja_leave(r);
    return v;
}
