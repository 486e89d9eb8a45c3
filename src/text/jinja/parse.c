/* parse.c: statements, and compiling a template. The parser looks one token ahead, two for keyword arguments and `not
 * in`; the last token is TARN__JINJA_T_END, which nothing skips, so no check for the end of the array is needed. A body
 * ends at a tag whose name its statement knows (endfor, else), with the parser at the name; the statement decides what
 * follows. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/jinja/eval.h"

static void parse_body(tarn__jinja_parser *p, tarn__jinja_nodes *body, const char *const *ends);

/* True if a block begins here with one of the names; skips to the name. */
static bool is_end(tarn__jinja_parser *p, const char *const *ends)
{
    for (; p->at->kind == TARN__JINJA_T_BLOCK_BEGIN && *ends; ends++)
        if (tarn__jinja_is_name(p->at + 1, *ends)) {
            p->at++;
            return true;
        }
    return false;
}

/* The statements between the end of this tag and a tag with one of the names, where the parser stops. */
static void parse_until(tarn__jinja_parser *p, tarn__jinja_nodes *body, const char *const *ends)
{
    /* {% if x: %} is allowed, for people who write Python. */
    tarn__jinja_skip(p, TARN__JINJA_T_COLON);
    tarn__jinja_expect(p, TARN__JINJA_T_BLOCK_END, "the end of the tag");
    parse_body(p, body, ends);
    if (p->at->kind == TARN__JINJA_T_END)
        tarn__jinja_fail(p->r, "{%% %s %%} is missing", ends[0]);
}

/* The same for a statement with a single end, which is skipped. */
static void parse_to(tarn__jinja_parser *p, tarn__jinja_nodes *body, const char *end)
{
    const char *const ends[] = {end, NULL};
    parse_until(p, body, ends);
    p->at++;
}

/* for TARGET in ITERABLE [if CONDITION] [recursive]. The iterable has no conditional expression, since its `if` would
 * be the loop's. */
static tarn__jinja_node *parse_for(tarn__jinja_parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_FOR);
    node->left = tarn__jinja_parse_target(p, true, false, "in");
    if (!tarn__jinja_skip_name(p, "in"))
        tarn__jinja_fail(p->r, "'in' is expected here");
    node->right = tarn__jinja_parse_tuple(p, false, false, "recursive");
    if (tarn__jinja_skip_name(p, "if"))
        node->third = tarn__jinja_parse_expression(p, true);
    node->is_recursive = tarn__jinja_skip_name(p, "recursive");
    p->loops++;
    parse_until(p, &node->items, ends);
    p->loops--;
    if (tarn__jinja_skip_name(p, "else"))
        parse_to(p, &node->others, "endfor");
    else
        p->at++;
    return node;
}

/* An elif is an if in the else branch that shares the end: the innermost call consumes endif. */
static tarn__jinja_node *parse_if(tarn__jinja_parser *p)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_IF);
    node->left = tarn__jinja_parse_tuple(p, false, false, NULL);
    parse_until(p, &node->items, ends);
    tarn__jinja_enter(p->r);
    if (tarn__jinja_skip_name(p, "elif"))
        tarn__jinja_node_add(p, &node->others, parse_if(p));
    else if (tarn__jinja_skip_name(p, "else"))
        parse_to(p, &node->others, "endif");
    else
        p->at++;
    tarn__jinja_leave(p->r);
    return node;
}

/* {% set a, b = 1, 2 %}, or a block: {% set a | upper %}text{% endset %}. */
static tarn__jinja_node *parse_set(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_SET);
    node->left = tarn__jinja_parse_target(p, true, true, NULL);
    if (tarn__jinja_skip(p, TARN__JINJA_T_ASSIGN)) {
        node->right = tarn__jinja_parse_tuple(p, true, false, NULL);
        return node;
    }
    node->kind = TARN__JINJA_SET_BLOCK;
    node->right = tarn__jinja_parse_filters(p, NULL, false);
    parse_to(p, &node->items, "endset");
    return node;
}

/* Parameters in parentheses: items are names, others the defaults of the last of them. */
static tarn__jinja_node *parse_parameters(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_MAKE_TUPLE);
    tarn__jinja_expect(p, TARN__JINJA_T_LPAREN, "a parenthesis");
    while (p->at->kind != TARN__JINJA_T_RPAREN) {
        if (node->items.count)
            tarn__jinja_expect(p, TARN__JINJA_T_COMMA, "a comma");
        tarn__jinja_node *name = tarn__jinja_node_new(p, TARN__JINJA_NAME);
        name->value = tarn__jinja_expect(p, TARN__JINJA_T_NAME, "a name").value;
        tarn__jinja_node_add(p, &node->items, name);
        if (tarn__jinja_skip(p, TARN__JINJA_T_ASSIGN))
            tarn__jinja_node_add(p, &node->others, tarn__jinja_parse_expression(p, true));
        else if (node->others.count)
            tarn__jinja_fail(p->r, "a parameter without default follows one with a default");
    }
    p->at++;
    return node;
}

/* The body of a macro or call, where an outer loop cannot be left. */
static void parse_macro_body(tarn__jinja_parser *p, tarn__jinja_node *node, const char *end)
{
    int loops = p->loops;
    p->loops = 0;
    parse_to(p, &node->items, end);
    p->loops = loops;
}

/* {% macro name(a, b=1) %}. */
static tarn__jinja_node *parse_macro(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_MACRO_BLOCK);
    node->value = tarn__jinja_expect(p, TARN__JINJA_T_NAME, "a name").value;
    node->left = parse_parameters(p);
    parse_macro_body(p, node, "endmacro");
    return node;
}

/* {% call(parameters) macro(arguments) %}: without parameters the tuple is empty. */
static tarn__jinja_node *parse_call_block(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_CALL_BLOCK);
    node->left =
        p->at->kind == TARN__JINJA_T_LPAREN ? parse_parameters(p) : tarn__jinja_node_new(p, TARN__JINJA_MAKE_TUPLE);
    node->right = tarn__jinja_parse_expression(p, true);
    if (node->right->kind != TARN__JINJA_CALL)
        tarn__jinja_fail(p->r, "a call is expected here");
    parse_macro_body(p, node, "endcall");
    return node;
}

/* {% filter upper | trim %}: the first filter has no bar before it. */
static tarn__jinja_node *parse_filter_block(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_FILTER_BLOCK);
    node->right = tarn__jinja_parse_filters(p, NULL, true);
    parse_to(p, &node->items, "endfilter");
    return node;
}

/* All values are evaluated outside the block, so none sees the targets before it. */
static tarn__jinja_node *parse_with(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_WITH);
    node->left = tarn__jinja_node_new(p, TARN__JINJA_MAKE_TUPLE);
    while (p->at->kind != TARN__JINJA_T_BLOCK_END) {
        if (node->left->items.count)
            tarn__jinja_expect(p, TARN__JINJA_T_COMMA, "a comma");
        tarn__jinja_node_add(p, &node->left->items, tarn__jinja_parse_target(p, true, false, NULL));
        tarn__jinja_expect(p, TARN__JINJA_T_ASSIGN, "'='");
        tarn__jinja_node_add(p, &node->left->others, tarn__jinja_parse_expression(p, true));
    }
    parse_to(p, &node->items, "endwith");
    return node;
}

/* transformers' extension, which marks what a model is trained on. It compiles to a call block, hence no break out of
 * it. */
static tarn__jinja_node *parse_generation(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_GENERATION_BLOCK);
    p->has_generation = true;
    parse_macro_body(p, node, "endgeneration");
    return node;
}

/* {% print a, b %}: each expression is printed, as by a ~ b. */
static tarn__jinja_node *parse_print(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_OUTPUT), *all;
    node->left = all = tarn__jinja_node_new(p, TARN__JINJA_CONCAT);
    while (p->at->kind != TARN__JINJA_T_BLOCK_END) {
        if (all->items.count)
            tarn__jinja_expect(p, TARN__JINJA_T_COMMA, "a comma");
        tarn__jinja_node_add(p, &all->items, tarn__jinja_parse_expression(p, true));
    }
    return node;
}

/* Jinja leaves this error to Python's compiler, which refuses a jump outside of a loop of the same function. */
static tarn__jinja_node *parse_jump(tarn__jinja_parser *p, tarn__jinja_node_kind kind)
{
    if (p->loops == 0)
        tarn__jinja_fail(p->r, "'%s' is outside of a loop", kind == TARN__JINJA_BREAK ? "break" : "continue");
    return tarn__jinja_node_new(p, kind);
}

/* Inheritance, includes and imports are missing: a chat template is one file. */
static tarn__jinja_node *parse_statement(tarn__jinja_parser *p)
{
    static const struct {
        const char *name;
        tarn__jinja_node *(*parse)(tarn__jinja_parser *p);
    } statements[] = {{"for", parse_for},     {"if", parse_if},           {"set", parse_set},
                      {"macro", parse_macro}, {"call", parse_call_block}, {"filter", parse_filter_block},
                      {"with", parse_with},   {"print", parse_print},     {"generation", parse_generation}};
    const tarn__jinja_token *name = p->at;
    p->r->line = name->line;
    if (name->kind != TARN__JINJA_T_NAME)
        tarn__jinja_fail(p->r, "the name of a statement is expected here");
    p->at++;
    if (tarn__jinja_is_name(name, "break"))
        return parse_jump(p, TARN__JINJA_BREAK);
    if (tarn__jinja_is_name(name, "continue"))
        return parse_jump(p, TARN__JINJA_CONTINUE);
    for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++)
        if (tarn__jinja_is_name(name, statements[i].name))
            return statements[i].parse(p);
    tarn__jinja_fail(p->r, "unknown or misplaced statement '%.*s'", tarn__jinja_shown(name->value.as.string->length),
                     name->value.as.string->text);
}

static void parse_body(tarn__jinja_parser *p, tarn__jinja_nodes *body, const char *const *ends)
{
    tarn__jinja_enter(p->r);
    while (p->at->kind != TARN__JINJA_T_END && !is_end(p, ends)) {
        tarn__jinja_node *node = NULL;
        if (p->at->kind == TARN__JINJA_T_DATA) {
            node = tarn__jinja_node_new(p, TARN__JINJA_DATA);
            node->value = (p->at++)->value;
        } else if (tarn__jinja_skip(p, TARN__JINJA_T_VARIABLE_BEGIN)) {
            node = tarn__jinja_node_new(p, TARN__JINJA_OUTPUT);
            node->left = tarn__jinja_parse_tuple(p, true, false, NULL);
            tarn__jinja_expect(p, TARN__JINJA_T_VARIABLE_END, "the end of the tag");
        } else {
            tarn__jinja_expect(p, TARN__JINJA_T_BLOCK_BEGIN, "a tag");
            node = parse_statement(p);
            tarn__jinja_expect(p, TARN__JINJA_T_BLOCK_END, "the end of the tag");
        }
        tarn__jinja_node_add(p, body, node);
    }
    tarn__jinja_leave(p->r);
}

void tarn__jinja_parse(tarn__jinja_parser *p, tarn__jinja_nodes *body)
{
    static const char *const none[] = {NULL};
    parse_body(p, body, none);
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

/* The program outlives the strings of its caller. */
static char *copy(tarn__jinja_arena *arena, const char *text)
{
    size_t size = strlen(text) + 1;
    return memcpy(tarn__jinja_alloc(arena, size, 1), text, size);
}

/* Where a failure jumps to this returns false; `program` is not changed after setjmp(). */
static bool compile(tarn__jinja_program *program, const char *function, const char *name, const char *source,
                    size_t length)
{
    jmp_buf escape;
    program->arena = (tarn__jinja_arena){.max_bytes = TARN__JINJA_MAX_BYTES, .escape = &escape};
    if (setjmp(escape))
        return false;
    program->function = copy(&program->arena, function);
    program->name = copy(&program->arena, name);
    tarn__jinja_run r = {
        .function = function, .name = name, .line = 1, .code = TARN_ERROR_FORMAT, .arena = &program->arena};
    program->arena.run = &r;
    size_t count;
    tarn__jinja_parser p = {.r = &r, .at = tarn__jinja_tokenize(&r, source, length, &count)};
    tarn__jinja_parse(&p, &program->body);
    tarn__jinja_check(&r, &program->body);
    program->unset = tarn__jinja_find_symbols(&r, &program->body);
    program->has_generation = p.has_generation;
    program->arena.escape = NULL;
    program->arena.run = NULL;
    return true;
}

tarn__jinja_program *tarn__jinja_compile(const char *function, const char *name, const char *source, size_t length)
{
    tarn__jinja_program *program = tarn_failed() ? NULL : tarn__alloc(sizeof(*program));
    if (program && !compile(program, function, name, source, length)) {
        tarn__raise_within(function);
        tarn__jinja_program_free(program);
        program = NULL;
    }
    return program;
}

void tarn__jinja_program_free(tarn__jinja_program *program)
{
    if (!program)
        return;
    tarn__jinja_arena_free(&program->arena);
    tarn__release(program, sizeof(*program));
}

bool tarn__jinja_has_generation(const tarn__jinja_program *program)
{
    return program->has_generation;
}
