/* parse_expression.c: expressions, by Jinja's grammar, loosest first: if-else, or, and, not, comparisons, + -, ~, * /
 * // %, **, unary signs, then postfixes, filters and tests.
 *
 * It differs from Python's in three ways that templates rely on: a sign binds more tightly than ** (-2**2 is 4), **
 * joins from the left (2**3**2 is 64), and filters and tests bind more tightly than any operator (-1|abs is 1, a is b
 * or c asks (a is b) or c). Each level of the grammar is a function that calls the next; depth is counted where they
 * can call each other in a circle. */
#include <string.h>

#include "text/jinja/program.h"

/* ---- tokens and nodes -------------------------------------------------------------------------------------------- */

/* Nodes take the line of the token where the parser is, which errors of the rendering name. */
tarn__jinja_node *tarn__jinja_node_new(tarn__jinja_parser *p, tarn__jinja_node_kind kind)
{
    tarn__jinja_node *node = tarn__jinja_alloc(p->r->arena, 1, sizeof(*node));
    node->kind = kind;
    node->line = p->r->line = p->at->line;
    return node;
}

void tarn__jinja_node_add(tarn__jinja_parser *p, tarn__jinja_nodes *nodes, tarn__jinja_node *node)
{
    if (nodes->count == nodes->capacity) {
        nodes->capacity = nodes->capacity ? nodes->capacity * 2 : 4;
        tarn__jinja_node **at = tarn__jinja_alloc(p->r->arena, (size_t)nodes->capacity, sizeof(*at));
        if (nodes->count)
            memcpy(at, nodes->at, (size_t)nodes->count * sizeof(*at));
        nodes->at = at;
    }
    nodes->at[nodes->count++] = node;
}

bool tarn__jinja_is_name(const tarn__jinja_token *token, const char *name)
{
    return token->kind == TARN__JINJA_T_NAME && tarn__jinja_is_text(token->value, name);
}

bool tarn__jinja_skip_name(tarn__jinja_parser *p, const char *name)
{
    bool found = tarn__jinja_is_name(p->at, name);
    p->at += found;
    return found;
}

bool tarn__jinja_skip(tarn__jinja_parser *p, tarn__jinja_token_kind kind)
{
    bool found = p->at->kind == kind;
    p->at += found;
    return found;
}

/* Consumes a token of the kind. The end is never passed. */
tarn__jinja_token tarn__jinja_expect(tarn__jinja_parser *p, tarn__jinja_token_kind kind, const char *what)
{
    p->r->line = p->at->line;
    if (p->at->kind != kind)
        tarn__jinja_fail(p->r, "%s is expected here", what);
    return kind == TARN__JINJA_T_END ? *p->at : *p->at++;
}

static tarn__jinja_node *with_left(tarn__jinja_parser *p, tarn__jinja_node_kind kind, tarn__jinja_node *left)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, kind);
    node->left = left;
    return node;
}

static tarn__jinja_node *with_both(tarn__jinja_parser *p, tarn__jinja_node_kind kind, tarn__jinja_token_kind operator,
                                   tarn__jinja_node * left, tarn__jinja_node *right)
{
    tarn__jinja_node *node = with_left(p, kind, left);
    node->operator= operator;
    node->right = right;
    return node;
}

/* ---- primaries --------------------------------------------------------------------------------------------------- */

static tarn__jinja_node *literal(tarn__jinja_parser *p, tarn__jinja_value value)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_LITERAL);
    node->value = value;
    return node;
}

/* Adjacent strings are one, as in Python. */
static tarn__jinja_node *parse_strings(tarn__jinja_parser *p)
{
    tarn__jinja_builder b = {0};
    while (p->at->kind == TARN__JINJA_T_STRING)
        tarn__jinja_build_string(p->r, &b, (p->at++)->value.as.string);
    return literal(p, tarn__jinja_built(p->r, &b));
}

/* A variable, a constant in either spelling, or with `with_field` also a target namespace.field. */
static tarn__jinja_node *parse_name(tarn__jinja_parser *p, bool with_field)
{
    const tarn__jinja_token *name = p->at++;
    if (tarn__jinja_is_name(name, "true") || tarn__jinja_is_name(name, "True"))
        return literal(p, tarn__jinja_bool(true));
    if (tarn__jinja_is_name(name, "false") || tarn__jinja_is_name(name, "False"))
        return literal(p, tarn__jinja_bool(false));
    if (tarn__jinja_is_name(name, "none") || tarn__jinja_is_name(name, "None"))
        return literal(p, tarn__jinja_none());
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_NAME);
    node->value = name->value;
    if (with_field && tarn__jinja_skip(p, TARN__JINJA_T_DOT)) {
        node = with_left(p, TARN__JINJA_FIELD, node);
        node->value = tarn__jinja_expect(p, TARN__JINJA_T_NAME, "a name").value;
    }
    return node;
}

/* [1, 2,] may end with a comma, [,] may not. */
static tarn__jinja_node *parse_list(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_MAKE_LIST);
    p->at++;
    while (p->at->kind != TARN__JINJA_T_RBRACKET) {
        if (node->items.count)
            tarn__jinja_expect(p, TARN__JINJA_T_COMMA, "a comma");
        if (p->at->kind != TARN__JINJA_T_RBRACKET)
            tarn__jinja_node_add(p, &node->items, tarn__jinja_parse_expression(p, true));
    }
    p->at++;
    return node;
}

static tarn__jinja_node *parse_dict(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_MAKE_DICT);
    p->at++;
    while (p->at->kind != TARN__JINJA_T_RBRACE) {
        if (node->items.count)
            tarn__jinja_expect(p, TARN__JINJA_T_COMMA, "a comma");
        if (p->at->kind == TARN__JINJA_T_RBRACE)
            break;
        tarn__jinja_node_add(p, &node->items, tarn__jinja_parse_expression(p, true));
        tarn__jinja_expect(p, TARN__JINJA_T_COLON, "a colon");
        tarn__jinja_node_add(p, &node->items, tarn__jinja_parse_expression(p, true));
    }
    p->at++;
    return node;
}

static tarn__jinja_node *parse_primary(tarn__jinja_parser *p, bool with_field)
{
    switch (p->at->kind) {
    case TARN__JINJA_T_NAME: return parse_name(p, with_field);
    case TARN__JINJA_T_STRING: return parse_strings(p);
    case TARN__JINJA_T_INTEGER:
    case TARN__JINJA_T_FLOAT: return literal(p, (p->at++)->value);
    case TARN__JINJA_T_LBRACKET: return parse_list(p);
    case TARN__JINJA_T_LBRACE: return parse_dict(p);
    /* (1) is 1, (1,) and () are tuples. */
    case TARN__JINJA_T_LPAREN: {
        p->at++;
        tarn__jinja_node *node = tarn__jinja_parse_tuple(p, true, true, NULL);
        tarn__jinja_expect(p, TARN__JINJA_T_RPAREN, "a closing parenthesis");
        return node;
    }
    default: p->r->line = p->at->line; tarn__jinja_fail(p->r, "an expression is expected here");
    }
}

/* What may follow the last comma of a tuple; `end` is a name that ends it, as "in" ends the targets of for. */
static bool is_tuple_end(const tarn__jinja_parser *p, const char *end)
{
    return p->at->kind == TARN__JINJA_T_VARIABLE_END || p->at->kind == TARN__JINJA_T_BLOCK_END ||
           p->at->kind == TARN__JINJA_T_RPAREN || (end && tarn__jinja_is_name(p->at, end));
}

/* One expression, or several with commas between them. With `is_simple` they are targets of an assignment. */
static tarn__jinja_node *parse_items(tarn__jinja_parser *p, bool is_simple, bool flag, bool is_parenthesized,
                                     const char *end)
{
    tarn__jinja_node *tuple = tarn__jinja_node_new(p, TARN__JINJA_MAKE_TUPLE);
    bool is_tuple = false;
    for (;;) {
        if (tuple->items.count)
            tarn__jinja_expect(p, TARN__JINJA_T_COMMA, "a comma");
        if (is_tuple_end(p, end))
            break;
        tarn__jinja_node_add(p, &tuple->items,
                             is_simple ? parse_primary(p, flag) : tarn__jinja_parse_expression(p, flag));
        if (p->at->kind != TARN__JINJA_T_COMMA)
            break;
        is_tuple = true;
    }
    if (!is_tuple && tuple->items.count)
        return tuple->items.at[0];
    if (!is_tuple && !is_parenthesized)
        tarn__jinja_fail(p->r, "an expression is expected here");
    return tuple;
}

tarn__jinja_node *tarn__jinja_parse_tuple(tarn__jinja_parser *p, bool with_choice, bool is_parenthesized,
                                          const char *end)
{
    return parse_items(p, false, with_choice, is_parenthesized, end);
}

/* parse_primary() takes constants, lists and strings too. */
static void check_target(tarn__jinja_parser *p, const tarn__jinja_node *node)
{
    if (node->kind == TARN__JINJA_MAKE_TUPLE) {
        for (int i = 0; i < node->items.count; i++)
            check_target(p, node->items.at[i]);
    } else if (node->kind != TARN__JINJA_NAME && node->kind != TARN__JINJA_FIELD)
        tarn__jinja_fail(p->r, "only names can be assigned to");
}

tarn__jinja_node *tarn__jinja_parse_target(tarn__jinja_parser *p, bool with_tuple, bool with_field, const char *end)
{
    tarn__jinja_node *node = with_tuple ? parse_items(p, true, with_field, false, end) : parse_primary(p, with_field);
    check_target(p, node);
    return node;
}

/* ---- postfixes --------------------------------------------------------------------------------------------------- */

/* Arguments in parentheses. Their order is checked: positional, keywords, *, **. */
static void parse_arguments(tarn__jinja_parser *p, tarn__jinja_nodes *items)
{
    /* The kind of the argument before: 0 positional, 1 keyword, 2 *, 3 **. Nothing follows **, nothing positional a
     * keyword. */
    int rank = 0;
    bool has_star = false;
    tarn__jinja_expect(p, TARN__JINJA_T_LPAREN, "a parenthesis");
    while (p->at->kind != TARN__JINJA_T_RPAREN) {
        if (items->count) {
            tarn__jinja_expect(p, TARN__JINJA_T_COMMA, "a comma");
            if (p->at->kind == TARN__JINJA_T_RPAREN)
                break;
        }
        tarn__jinja_node *node = NULL;
        int at = 0;
        if (p->at->kind == TARN__JINJA_T_MUL || p->at->kind == TARN__JINJA_T_POW) {
            at = p->at->kind == TARN__JINJA_T_MUL ? 2 : 3;
            node = tarn__jinja_node_new(p, at == 2 ? TARN__JINJA_STAR : TARN__JINJA_STARS);
            p->at++;
        } else if (p->at->kind == TARN__JINJA_T_NAME && p->at[1].kind == TARN__JINJA_T_ASSIGN) {
            at = 1;
            node = tarn__jinja_node_new(p, TARN__JINJA_KEYWORD);
            node->value = p->at->value;
            p->at += 2;
        }
        if (rank == 3 || (at == 0 && rank > 0) || (at == 2 && has_star))
            tarn__jinja_fail(p->r, "the arguments of a call are in the wrong order");
        has_star = has_star || at == 2;
        rank = at > rank ? at : rank;
        tarn__jinja_node *value = tarn__jinja_parse_expression(p, true);
        if (node)
            node->left = value;
        tarn__jinja_node_add(p, items, node ? node : value);
    }
    p->at++;
}

/* One index or slice: a, :, a:, :b, a:b, a:b:c, ::c. */
static tarn__jinja_node *parse_subscribed(tarn__jinja_parser *p)
{
    tarn__jinja_node *node = NULL, *slice;
    if (p->at->kind != TARN__JINJA_T_COLON) {
        node = tarn__jinja_parse_expression(p, true);
        if (p->at->kind != TARN__JINJA_T_COLON)
            return node;
    }
    p->at++;
    slice = with_left(p, TARN__JINJA_MAKE_SLICE, node);
    bool ends = p->at->kind == TARN__JINJA_T_RBRACKET || p->at->kind == TARN__JINJA_T_COMMA;
    if (p->at->kind != TARN__JINJA_T_COLON && !ends)
        slice->right = tarn__jinja_parse_expression(p, true);
    if (tarn__jinja_skip(p, TARN__JINJA_T_COLON) && p->at->kind != TARN__JINJA_T_RBRACKET &&
        p->at->kind != TARN__JINJA_T_COMMA)
        slice->third = tarn__jinja_parse_expression(p, true);
    return slice;
}

/* a[1, 2] subscribes with a tuple, which finds nothing in lists but may be the key of a dict. */
static tarn__jinja_node *parse_subscript(tarn__jinja_parser *p, tarn__jinja_node *left)
{
    tarn__jinja_node *tuple = tarn__jinja_node_new(p, TARN__JINJA_MAKE_TUPLE);
    p->at++;
    while (p->at->kind != TARN__JINJA_T_RBRACKET) {
        if (tuple->items.count)
            tarn__jinja_expect(p, TARN__JINJA_T_COMMA, "a comma");
        tarn__jinja_node_add(p, &tuple->items, parse_subscribed(p));
    }
    p->at++;
    return with_both(p, TARN__JINJA_SUBSCRIPT, TARN__JINJA_T_LBRACKET, left,
                     tuple->items.count == 1 ? tuple->items.at[0] : tuple);
}

/* a.b, or a.0, which is a[0]. */
static tarn__jinja_node *parse_attribute(tarn__jinja_parser *p, tarn__jinja_node *left)
{
    p->at++;
    if (p->at->kind == TARN__JINJA_T_INTEGER)
        return with_both(p, TARN__JINJA_SUBSCRIPT, TARN__JINJA_T_LBRACKET, left, literal(p, (p->at++)->value));
    tarn__jinja_node *node = with_left(p, TARN__JINJA_ATTRIBUTE, left);
    node->value = tarn__jinja_expect(p, TARN__JINJA_T_NAME, "a name or number").value;
    return node;
}

static tarn__jinja_node *parse_call(tarn__jinja_parser *p, tarn__jinja_node *left)
{
    tarn__jinja_node *node = with_left(p, TARN__JINJA_CALL, left);
    parse_arguments(p, &node->items);
    return node;
}

/* Any number of .name, [index] and (arguments). */
static tarn__jinja_node *parse_postfix(tarn__jinja_parser *p, tarn__jinja_node *node)
{
    for (;;) {
        if (p->at->kind == TARN__JINJA_T_DOT)
            node = parse_attribute(p, node);
        else if (p->at->kind == TARN__JINJA_T_LBRACKET)
            node = parse_subscript(p, node);
        else if (p->at->kind == TARN__JINJA_T_LPAREN)
            node = parse_call(p, node);
        else
            return node;
    }
}

/* A name with dots in it. */
static tarn__jinja_value parse_dotted(tarn__jinja_parser *p)
{
    tarn__jinja_value name = tarn__jinja_expect(p, TARN__JINJA_T_NAME, "a name").value;
    while (tarn__jinja_skip(p, TARN__JINJA_T_DOT)) {
        tarn__jinja_builder b = {0};
        tarn__jinja_build_string(p->r, &b, name.as.string);
        tarn__jinja_build_text(p->r, &b, ".");
        tarn__jinja_build_string(p->r, &b, tarn__jinja_expect(p, TARN__JINJA_T_NAME, "a name").value.as.string);
        name = tarn__jinja_built(p->r, &b);
    }
    return name;
}

/* `is_inline` says that the first filter has no bar before it; `left` NULL that the block's text is its input. */
tarn__jinja_node *tarn__jinja_parse_filters(tarn__jinja_parser *p, tarn__jinja_node *left, bool is_inline)
{
    while (is_inline || tarn__jinja_skip(p, TARN__JINJA_T_PIPE)) {
        is_inline = false;
        left = with_left(p, TARN__JINJA_FILTER, left);
        left->value = parse_dotted(p);
        if (p->at->kind == TARN__JINJA_T_LPAREN)
            parse_arguments(p, &left->items);
    }
    return left;
}

/* True if the argument of a test without parentheses follows: `x is divisibleby 3`. Names but for else, or and and are
 * arguments too, so `x is defined if y` reads y's `if` as one, as Jinja does. */
static bool is_test_argument(const tarn__jinja_parser *p)
{
    switch (p->at->kind) {
    case TARN__JINJA_T_NAME:
        return !tarn__jinja_is_name(p->at, "else") && !tarn__jinja_is_name(p->at, "or") &&
               !tarn__jinja_is_name(p->at, "and");
    case TARN__JINJA_T_STRING:
    case TARN__JINJA_T_INTEGER:
    case TARN__JINJA_T_FLOAT:
    case TARN__JINJA_T_LBRACKET:
    case TARN__JINJA_T_LBRACE: return true;
    default: return false;
    }
}

/* `is not` negates the test as a whole. */
static tarn__jinja_node *parse_test(tarn__jinja_parser *p, tarn__jinja_node *left)
{
    p->at++;
    bool is_negated = tarn__jinja_skip_name(p, "not");
    tarn__jinja_node *node = with_left(p, TARN__JINJA_TEST, left);
    node->value = parse_dotted(p);
    if (p->at->kind == TARN__JINJA_T_LPAREN)
        parse_arguments(p, &node->items);
    else if (is_test_argument(p)) {
        if (tarn__jinja_is_name(p->at, "is"))
            tarn__jinja_fail(p->r, "tests with is cannot be chained");
        tarn__jinja_node_add(p, &node->items, parse_postfix(p, parse_primary(p, false)));
    }
    return is_negated ? with_left(p, TARN__JINJA_NOT, node) : node;
}

/* Calls come again here: x|attr("f")() calls what the filter returns. */
static tarn__jinja_node *parse_filters_and_tests(tarn__jinja_parser *p, tarn__jinja_node *node)
{
    for (;;) {
        if (p->at->kind == TARN__JINJA_T_PIPE)
            node = tarn__jinja_parse_filters(p, node, false);
        else if (tarn__jinja_is_name(p->at, "is"))
            node = parse_test(p, node);
        else if (p->at->kind == TARN__JINJA_T_LPAREN)
            node = parse_call(p, node);
        else
            return node;
    }
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

/* Without filters below a sign: they apply to the signed value. */
tarn__jinja_node *tarn__jinja_parse_unary(tarn__jinja_parser *p, bool with_filter)
{
    tarn__jinja_node *node;
    tarn__jinja_enter(p->r);
    if (p->at->kind == TARN__JINJA_T_SUB || p->at->kind == TARN__JINJA_T_ADD) {
        node = tarn__jinja_node_new(p, TARN__JINJA_UNARY);
        node->operator=(p->at++)->kind;
        node->left = tarn__jinja_parse_unary(p, false);
    } else
        node = parse_primary(p, false);
    node = parse_postfix(p, node);
    if (with_filter)
        node = parse_filters_and_tests(p, node);
    tarn__jinja_leave(p->r);
    return node;
}

/* Joins from the left, unlike Python's. */
static tarn__jinja_node *parse_pow(tarn__jinja_parser *p)
{
    tarn__jinja_node *left = tarn__jinja_parse_unary(p, true);
    while (tarn__jinja_skip(p, TARN__JINJA_T_POW))
        left = with_both(p, TARN__JINJA_BINARY, TARN__JINJA_T_POW, left, tarn__jinja_parse_unary(p, true));
    return left;
}

static tarn__jinja_node *parse_product(tarn__jinja_parser *p)
{
    tarn__jinja_node *left = parse_pow(p);
    while (p->at->kind == TARN__JINJA_T_MUL || p->at->kind == TARN__JINJA_T_DIV ||
           p->at->kind == TARN__JINJA_T_FLOORDIV || p->at->kind == TARN__JINJA_T_MOD) {
        tarn__jinja_token_kind operator=(p->at++)->kind;
        left = with_both(p, TARN__JINJA_BINARY, operator, left, parse_pow(p));
    }
    return left;
}

static tarn__jinja_node *parse_concat(tarn__jinja_parser *p)
{
    tarn__jinja_node *first = parse_product(p);
    if (p->at->kind != TARN__JINJA_T_TILDE)
        return first;
    /* a ~ b ~ c is one node, so that long sums of text are not copied at each step. */
    tarn__jinja_node *node = tarn__jinja_node_new(p, TARN__JINJA_CONCAT);
    tarn__jinja_node_add(p, &node->items, first);
    while (tarn__jinja_skip(p, TARN__JINJA_T_TILDE))
        tarn__jinja_node_add(p, &node->items, parse_product(p));
    return node;
}

static tarn__jinja_node *parse_sum(tarn__jinja_parser *p)
{
    tarn__jinja_node *left = parse_concat(p);
    while (p->at->kind == TARN__JINJA_T_ADD || p->at->kind == TARN__JINJA_T_SUB) {
        tarn__jinja_token_kind operator=(p->at++)->kind;
        left = with_both(p, TARN__JINJA_BINARY, operator, left, parse_concat(p));
    }
    return left;
}

/* The comparison at this position, which is skipped; TARN__JINJA_T_END: none. */
static tarn__jinja_token_kind skip_comparison(tarn__jinja_parser *p)
{
    if (p->at->kind >= TARN__JINJA_T_EQ && p->at->kind <= TARN__JINJA_T_LTEQ)
        return (p->at++)->kind;
    if (tarn__jinja_skip_name(p, "in"))
        return TARN__JINJA_T_IN;
    if (tarn__jinja_is_name(p->at, "not") && tarn__jinja_is_name(p->at + 1, "in")) {
        p->at += 2;
        return TARN__JINJA_T_NOT_IN;
    }
    return TARN__JINJA_T_END;
}

/* a < b < c is one node with operands, of which the first is in `left`. */
static tarn__jinja_node *parse_compare(tarn__jinja_parser *p)
{
    tarn__jinja_node *left = parse_sum(p), *node = NULL;
    for (tarn__jinja_token_kind operator; (operator= skip_comparison(p)) != TARN__JINJA_T_END;) {
        node = node ? node : with_left(p, TARN__JINJA_COMPARE, left);
        tarn__jinja_node_add(p, &node->items, with_both(p, TARN__JINJA_OPERAND, operator, parse_sum(p), NULL));
    }
    return node ? node : left;
}

/* not binds more loosely than comparisons: not a == b is not (a == b). */
static tarn__jinja_node *parse_not(tarn__jinja_parser *p)
{
    if (!tarn__jinja_skip_name(p, "not"))
        return parse_compare(p);
    tarn__jinja_enter(p->r);
    tarn__jinja_node *node = with_left(p, TARN__JINJA_NOT, parse_not(p));
    tarn__jinja_leave(p->r);
    return node;
}

static tarn__jinja_node *parse_and(tarn__jinja_parser *p)
{
    tarn__jinja_node *left = parse_not(p);
    while (tarn__jinja_skip_name(p, "and"))
        left = with_both(p, TARN__JINJA_AND, TARN__JINJA_T_END, left, parse_not(p));
    return left;
}

static tarn__jinja_node *parse_or(tarn__jinja_parser *p)
{
    tarn__jinja_node *left = parse_and(p);
    while (tarn__jinja_skip_name(p, "or"))
        left = with_both(p, TARN__JINJA_OR, TARN__JINJA_T_END, left, parse_and(p));
    return left;
}

/* `with_choice` allows a if b else c. The else branch takes another choice; a second `if` without else nests the
 * first. */
tarn__jinja_node *tarn__jinja_parse_expression(tarn__jinja_parser *p, bool with_choice)
{
    tarn__jinja_enter(p->r);
    tarn__jinja_node *node = parse_or(p);
    while (with_choice && tarn__jinja_skip_name(p, "if")) {
        tarn__jinja_node *choice = tarn__jinja_node_new(p, TARN__JINJA_CHOICE);
        choice->right = node;
        choice->left = parse_or(p);
        if (tarn__jinja_skip_name(p, "else"))
            choice->third = tarn__jinja_parse_expression(p, true);
        node = choice;
    }
    tarn__jinja_leave(p->r);
    return node;
}
