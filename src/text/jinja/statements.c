/* statements.c: runs statements: scopes, loops, macros, and the entry point of a rendering.
 *
 * Statements print to r->output, which is replaced while a macro or block runs whose text is a value. Scopes are pushed
 * and restored by the function that runs a block; one that a macro refers to stays alive in the arena. Assignments go
 * to the innermost scope only: a loop cannot change a variable outside, which is what namespaces are for. */
#include <string.h>

#include "base/error.h"
#include "text/jinja/eval.h"

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

void tarn__jinja_set(tarn__jinja_run *r, tarn__jinja_scope *scope, const tarn__jinja_string *name, tarn__jinja_value v)
{
    for (size_t i = 0; i < scope->count; i++)
        if (scope->variables[i].name->length == name->length &&
            memcmp(scope->variables[i].name->text, name->text, name->length) == 0) {
            scope->variables[i].value = v;
            return;
        }
    if (scope->count == scope->capacity) {
        scope->capacity = scope->capacity ? scope->capacity * 2 : 4;
        tarn__jinja_variable *variables = tarn__jinja_alloc(r->arena, scope->capacity, sizeof(*variables));
        if (scope->count)
            memcpy(variables, scope->variables, scope->count * sizeof(*variables));
        scope->variables = variables;
    }
    scope->variables[scope->count++] = (tarn__jinja_variable){name, v};
}

/* The new scope is r->scope; the caller has remembered the old one and puts it back. Variables that begin undefined are
 * set here (symbols.c). */
tarn__jinja_scope *tarn__jinja_push(tarn__jinja_run *r, const tarn__jinja_names *unset)
{
    tarn__jinja_scope *scope = tarn__jinja_alloc(r->arena, 1, sizeof(*scope));
    scope->parent = r->scope;
    for (int i = 0; unset && i < unset->count; i++)
        tarn__jinja_set(r, scope, unset->at[i], (tarn__jinja_value){TARN__JINJA_UNDEFINED, {.name = unset->at[i]}});
    return r->scope = scope;
}

/* A variable of the current scope, by a C string. */
static void set_text(tarn__jinja_run *r, const char *name, tarn__jinja_value v)
{
    tarn__jinja_set(r, r->scope, tarn__jinja_text(r, name, strlen(name)).as.string, v);
}

/* {% set ns.field = v %}: namespaces are the only values that templates can change. */
static void assign_field(tarn__jinja_run *r, const tarn__jinja_node *target, tarn__jinja_value v)
{
    tarn__jinja_value object = tarn__jinja_eval(r, target->left);
    if (object.kind != TARN__JINJA_NAMESPACE)
        tarn__jinja_fail(r, "cannot assign attribute on non-namespace object");
    if (target->value.as.string->text[0] == '_')
        tarn__jinja_fail(r, "the attributes of a namespace cannot begin with '_'");
    tarn__jinja_dict_set(r, object.as.dict, target->value, v);
}

/* Tuples of targets take a value apart, at any depth; any iterable will do. */
void tarn__jinja_assign(tarn__jinja_run *r, const tarn__jinja_node *target, tarn__jinja_value v)
{
    if (target->kind == TARN__JINJA_NAME) {
        tarn__jinja_set(r, r->scope, target->value.as.string, v);
        return;
    }
    if (target->kind == TARN__JINJA_FIELD) {
        assign_field(r, target, v);
        return;
    }
    const tarn__jinja_list *items = tarn__jinja_iterate(r, v);
    if (items->count != (size_t)target->items.count)
        tarn__jinja_fail(r, "%zu values for %d names", items->count, target->items.count);
    for (size_t i = 0; i < items->count; i++)
        tarn__jinja_assign(r, target->items.at[i], items->items[i]);
}

/* Runs statements in a scope of their own; their output as a string in *text. */
static tarn__jinja_flow capture(tarn__jinja_run *r, const tarn__jinja_node *node, tarn__jinja_value *text)
{
    tarn__jinja_builder b = {0}, *output = r->output;
    tarn__jinja_scope *scope = r->scope;
    r->output = &b;
    tarn__jinja_push(r, &node->unset);
    tarn__jinja_flow flow = tarn__jinja_execute(r, &node->items);
    r->scope = scope;
    r->output = output;
    *text = tarn__jinja_built(r, &b);
    return flow;
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

/* The loop's condition for one item, in a scope that has the loop's targets and is dropped. */
static bool passes(tarn__jinja_run *r, const tarn__jinja_node *node, tarn__jinja_value item)
{
    tarn__jinja_scope *scope = r->scope;
    tarn__jinja_push(r, NULL);
    tarn__jinja_assign(r, node->left, item);
    bool passed = tarn__jinja_truth(r, tarn__jinja_eval(r, node->third));
    r->scope = scope;
    return passed;
}

/* The items that pass the loop's condition. */
static tarn__jinja_list *select_items(tarn__jinja_run *r, const tarn__jinja_node *node, tarn__jinja_list *items)
{
    if (!node->third)
        return items;
    tarn__jinja_list *selected = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    for (size_t i = 0; i < items->count; i++)
        if (passes(r, node, items->items[i]))
            tarn__jinja_append(r, selected, items->items[i]);
    return selected;
}

/* A scope for each iteration: nothing that a body sets is seen by the next one. The targets are set after `loop`, which
 * they may hide. */
static tarn__jinja_flow run_iteration(tarn__jinja_run *r, const tarn__jinja_node *node, tarn__jinja_loop *loop)
{
    tarn__jinja_scope *scope = r->scope;
    tarn__jinja_push(r, &node->unset);
    static const tarn__jinja_string name = {"loop", 4, NULL, false};
    tarn__jinja_set(r, r->scope, &name, (tarn__jinja_value){TARN__JINJA_LOOP, {.loop = loop}});
    tarn__jinja_assign(r, node->left, loop->items->items[loop->index]);
    tarn__jinja_flow flow = tarn__jinja_execute(r, &node->items);
    r->scope = scope;
    return flow;
}

/* Items are collected before the first iteration. The condition is asked when Jinja asks it: before the loop where the
 * body reads `loop`, whose length counts what passes; otherwise item by item, so that a body that changes a namespace
 * changes what is selected. */
static void run_loop(tarn__jinja_run *r, const tarn__jinja_node *node, tarn__jinja_value iterable, int depth)
{
    tarn__jinja_loop *loop = tarn__jinja_alloc(r->arena, 1, sizeof(*loop));
    *loop = (tarn__jinja_loop){.node = node, .scope = r->scope, .depth = depth};
    bool is_lazy = node->third && !node->uses_loop;
    loop->items = tarn__jinja_iterate(r, iterable);
    if (!is_lazy)
        loop->items = select_items(r, node, loop->items);
    bool ran = false;
    for (; loop->index < loop->items->count; loop->index++) {
        tarn__jinja_step(r, 1);
        if (is_lazy && !passes(r, node, loop->items->items[loop->index]))
            continue;
        tarn__jinja_flow flow = run_iteration(r, node, loop);
        ran = ran || flow == TARN__JINJA_NEXT; /* as in Jinja, one cut short does not count for else */
        if (flow == TARN__JINJA_BREAKS)
            break;
    }
    if (ran)
        return;
    tarn__jinja_scope *scope = r->scope;
    tarn__jinja_push(r, &node->others_unset);
    tarn__jinja_execute(r, &node->others);
    r->scope = scope;
}

/* loop(items) inside a recursive loop: the body again, in the scope around the loop; its text is the result. */
tarn__jinja_value tarn__jinja_call_loop(tarn__jinja_run *r, const tarn__jinja_loop *loop,
                                        const tarn__jinja_arguments *arguments)
{
    tarn__jinja_value iterable;
    if (!loop->node->is_recursive)
        tarn__jinja_fail(r, "the loop must have the 'recursive' marker to be called recursively");
    tarn__jinja_bind(r, "loop", arguments, "iterable", 1, &iterable);
    tarn__jinja_builder b = {0}, *output = r->output;
    tarn__jinja_scope *scope = r->scope;
    r->output = &b;
    r->scope = loop->scope;
    run_loop(r, loop->node, iterable, loop->depth + 1);
    r->scope = scope;
    r->output = output;
    return tarn__jinja_built(r, &b);
}

/* ---- macros ------------------------------------------------------------------------------------------------------ */

/* Removes a keyword from `keywords`, which is the call's own copy. */
static bool take_keyword(tarn__jinja_run *r, tarn__jinja_dict *keywords, tarn__jinja_value name, tarn__jinja_value *v)
{
    for (size_t i = 0; i < keywords->count; i++)
        if (tarn__jinja_equal(r, keywords->pairs[i].key, name)) {
            *v = keywords->pairs[i].value;
            memmove(keywords->pairs + i, keywords->pairs + i + 1, (keywords->count - i - 1) * sizeof(tarn__jinja_pair));
            keywords->count--;
            return true;
        }
    return false;
}

/* Sets the parameters; a default may use all that were given, and the defaults before it. */
static void bind_parameters(tarn__jinja_run *r, const tarn__jinja_macro *macro, const tarn__jinja_list *given,
                            tarn__jinja_dict *keywords)
{
    const tarn__jinja_node *parameters = macro->node->left;
    int count = parameters->items.count, first_default = count - parameters->others.count;
    bool *is_given = tarn__jinja_alloc(r->arena, (size_t)count + 1, sizeof(bool));
    for (int i = 0; i < count; i++) {
        const tarn__jinja_string *name = parameters->items.at[i]->value.as.string;
        tarn__jinja_value v = tarn__jinja_undefined(r, name->text, name->length);
        is_given[i] = (size_t)i < given->count || take_keyword(r, keywords, parameters->items.at[i]->value, &v);
        tarn__jinja_set(r, r->scope, name, (size_t)i < given->count ? given->items[i] : v);
    }
    for (int i = first_default; i < count; i++)
        if (!is_given[i])
            tarn__jinja_set(r, r->scope, parameters->items.at[i]->value.as.string,
                            tarn__jinja_eval(r, parameters->others.at[i - first_default]));
}

/* Sets caller, kwargs and varargs where the body uses them; fails for arguments that nothing takes. */
static void bind_rest(tarn__jinja_run *r, const tarn__jinja_macro *macro, const tarn__jinja_list *given,
                      tarn__jinja_dict *keywords)
{
    const tarn__jinja_node *node = macro->node;
    size_t count = (size_t)node->left->items.count;
    tarn__jinja_value caller = tarn__jinja_undefined(r, "caller", 6), dict = {TARN__JINJA_DICT, {.dict = keywords}};
    if (node->uses_caller) {
        take_keyword(r, keywords, TARN__JINJA_TEXT("caller"), &caller);
        set_text(r, "caller", caller);
    }
    if (node->uses_kwargs)
        set_text(r, "kwargs", dict);
    else if (keywords->count)
        tarn__jinja_fail(r, "the macro takes no keyword argument '%.*s'",
                         tarn__jinja_shown(keywords->pairs[0].key.as.string->length),
                         keywords->pairs[0].key.as.string->text);
    tarn__jinja_value rest = tarn__jinja_list_new(r, TARN__JINJA_TUPLE, 0);
    for (size_t i = count; i < given->count; i++)
        tarn__jinja_append(r, rest.as.list, given->items[i]);
    if (node->uses_varargs)
        set_text(r, "varargs", rest);
    else if (given->count > count)
        tarn__jinja_fail(r, "the macro takes not more than %zu arguments: %zu", count, given->count);
}

tarn__jinja_value tarn__jinja_call_macro(tarn__jinja_run *r, const tarn__jinja_macro *macro,
                                         const tarn__jinja_arguments *arguments)
{
    tarn__jinja_builder b = {0}, *output = r->output;
    tarn__jinja_scope *scope = r->scope;
    tarn__jinja_dict keywords = {0};
    for (size_t i = 0; i < arguments->keywords.count; i++)
        tarn__jinja_dict_set(r, &keywords, arguments->keywords.pairs[i].key, arguments->keywords.pairs[i].value);
    /* The macro's own keywords: kwargs may be stored by the body and outlive this call. */
    tarn__jinja_dict *kept = tarn__jinja_dict_new(r).as.dict;
    *kept = keywords;
    r->scope = macro->scope;
    r->output = &b;
    tarn__jinja_push(r, &macro->node->unset);
    bind_parameters(r, macro, &arguments->positional, kept);
    bind_rest(r, macro, &arguments->positional, kept);
    tarn__jinja_execute(r, &macro->node->items);
    r->scope = scope;
    r->output = output;
    return tarn__jinja_built(r, &b);
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

/* The macro is a variable of the scope where it stands, and can be hidden or passed on like others. */
static void define_macro(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_macro *macro = tarn__jinja_alloc(r->arena, 1, sizeof(*macro));
    *macro = (tarn__jinja_macro){node, r->scope, node->value.as.string};
    tarn__jinja_set(r, r->scope, node->value.as.string, (tarn__jinja_value){TARN__JINJA_MACRO, {.macro = macro}});
}

/* A block whose text goes through its filters, if any, and is then assigned or printed. A break or continue inside
 * leaves the block without its text. */
static tarn__jinja_flow run_block(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value text, input = r->filter_input;
    tarn__jinja_flow flow = capture(r, node, &text);
    if (flow != TARN__JINJA_NEXT)
        return flow;
    if (node->right) {
        r->filter_input = text;
        text = tarn__jinja_eval(r, node->right);
        r->filter_input = input;
    }
    if (node->kind == TARN__JINJA_SET_BLOCK)
        tarn__jinja_assign(r, node->left, text);
    else
        tarn__jinja_print(r, r->output, text);
    return TARN__JINJA_NEXT;
}

/* {% with a = 1, b = 2 %}: values first, in the scope outside. */
static tarn__jinja_flow run_with(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_scope *scope = r->scope;
    tarn__jinja_list *values = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    for (int i = 0; i < node->left->others.count; i++)
        tarn__jinja_append(r, values, tarn__jinja_eval(r, node->left->others.at[i]));
    tarn__jinja_push(r, &node->unset);
    for (int i = 0; i < node->left->items.count; i++)
        tarn__jinja_assign(r, node->left->items.at[i], values->items[i]);
    tarn__jinja_flow flow = tarn__jinja_execute(r, &node->items);
    r->scope = scope;
    return flow;
}

/* Its text with the flag that makes a training mask, kept beside the origins. */
static void run_generation(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    tarn__jinja_value text;
    capture(r, node, &text); /* which no break can leave: the parser refuses it */
    const tarn__jinja_string *s = text.as.string;
    uint8_t *origin = tarn__jinja_alloc(r->arena, s->length, 1);
    for (size_t i = 0; i < s->length; i++)
        origin[i] = (uint8_t)(TARN__JINJA_GENERATION | (s->origin ? s->origin[i] : 0));
    tarn__jinja_build(r, r->output, s->text, s->length, origin);
}

static tarn__jinja_flow run_statement(tarn__jinja_run *r, const tarn__jinja_node *node)
{
    switch (node->kind) {
    case TARN__JINJA_DATA: tarn__jinja_build_string(r, r->output, node->value.as.string); break;
    case TARN__JINJA_OUTPUT: tarn__jinja_print(r, r->output, tarn__jinja_eval(r, node->left)); break;
    case TARN__JINJA_FOR: run_loop(r, node, tarn__jinja_eval(r, node->right), 0); break;
    case TARN__JINJA_IF:
        return tarn__jinja_execute(r, tarn__jinja_truth(r, tarn__jinja_eval(r, node->left)) ? &node->items
                                                                                            : &node->others);
    case TARN__JINJA_SET: tarn__jinja_assign(r, node->left, tarn__jinja_eval(r, node->right)); break;
    case TARN__JINJA_SET_BLOCK:
    case TARN__JINJA_FILTER_BLOCK: return run_block(r, node);
    case TARN__JINJA_MACRO_BLOCK: define_macro(r, node); break;
    case TARN__JINJA_CALL_BLOCK: tarn__jinja_print(r, r->output, tarn__jinja_eval(r, node)); break;
    case TARN__JINJA_GENERATION_BLOCK: run_generation(r, node); break;
    case TARN__JINJA_WITH: return run_with(r, node);
    case TARN__JINJA_BREAK: return TARN__JINJA_BREAKS;
    case TARN__JINJA_CONTINUE: return TARN__JINJA_CONTINUES;
    default: tarn__jinja_fail(r, "this is no statement");
    }
    return TARN__JINJA_NEXT;
}

/* Stops at a break or continue and returns it to the statement around it, up to the loop. None leaves a macro: the
 * parser refuses those. */
tarn__jinja_flow tarn__jinja_execute(tarn__jinja_run *r, const tarn__jinja_nodes *nodes)
{
    tarn__jinja_flow flow = TARN__JINJA_NEXT;
    tarn__jinja_enter(r);
    for (int i = 0; flow == TARN__JINJA_NEXT && i < nodes->count; i++) {
        r->line = nodes->at[i]->line;
        tarn__jinja_step(r, 1);
        flow = run_statement(r, nodes->at[i]);
    }
    tarn__jinja_leave(r);
    return flow;
}

/* ---- the entry point --------------------------------------------------------------------------------------------- */

/* Appends what was printed. False with an error. */
static bool hand_out(const tarn__jinja_builder *b, tarn__buffer *output, tarn__jinja_masks *masks)
{
    /* A byte more than needed, for the terminator of a caller. */
    if (!tarn__buffer_reserve(output, b->length + 1, 1) ||
        (masks && !tarn__buffer_reserve(&masks->origins, b->length + 1, 1)))
        return false;
    if (b->length)
        memcpy(output->data + output->count, b->text, b->length);
    output->count += b->length;
    if (!masks)
        return true;
    if (b->origin)
        memcpy(masks->origins.data + masks->origins.count, b->origin, b->length);
    else
        memset(masks->origins.data + masks->origins.count, 0, b->length);
    masks->origins.count += b->length;
    return true;
}

/* A failure jumps back here; what it needs afterwards is not changed after setjmp(). */
static bool run(const tarn__jinja_program *program, const tarn__jinja_context *context, tarn__jinja_arena *arena,
                tarn__buffer *output, tarn__jinja_masks *masks)
{
    jmp_buf escape;
    *arena = (tarn__jinja_arena){.max_bytes = TARN__JINJA_MAX_BYTES, .escape = &escape};
    if (setjmp(escape))
        return false;
    tarn__jinja_builder b = {0};
    tarn__jinja_run r = {.function = program->function,
                         .name = program->name,
                         .line = 1,
                         .code = TARN_ERROR_ARGUMENT,
                         .arena = arena,
                         .output = &b,
                         .context = context};
    arena->run = &r;
    tarn__jinja_push(&r, &program->unset);
    tarn__jinja_execute(&r, &program->body);
    return hand_out(&b, output, masks);
}

bool tarn__jinja_render(const tarn__jinja_program *program, const tarn__jinja_context *context, tarn__buffer *output,
                        tarn__jinja_masks *masks)
{
    tarn__jinja_arena arena;
    if (tarn_failed())
        return false;
    bool good = run(program, context, &arena, output, masks);
    tarn__jinja_arena_free(&arena);
    return good || tarn__raise_within(program->function);
}
