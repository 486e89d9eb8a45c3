/* check.c: what Jinja refuses when it compiles a template: filters and tests that do not exist, unless an if decides
 * whether they are used, and assignments to loop inside a loop. It also notes which of their special variables loops
 * and macros use, since Jinja's compiler treats their bodies by that.
 *
 * `is_soft` is true below an if, where an unknown filter or test fails when it is reached: templates ask for filters of
 * other environments that way. */
#include "text/jinja/eval.h"

static void check_node(tarn__jinja_run *r, tarn__jinja_node *node, bool is_soft);

static void check_nodes(tarn__jinja_run *r, const tarn__jinja_nodes *nodes, bool is_soft)
{
    for (int i = 0; i < nodes->count; i++)
        check_node(r, nodes->at[i], is_soft);
}

/* The line is the node's own: an expression may span several. */
static void check_name(tarn__jinja_run *r, tarn__jinja_node *node, bool is_soft)
{
    const tarn__jinja_string *name = node->value.as.string;
    bool is_filter = node->kind == TARN__JINJA_FILTER;
    bool exists = is_filter ? tarn__jinja_find_filter(name->text, name->length) != NULL
                            : tarn__jinja_find_test(name->text, name->length) != NULL;
    r->line = node->line;
    if (!exists && !is_soft)
        tarn__jinja_fail(r, "%s '%.*s' not found", is_filter ? "filter" : "test", tarn__jinja_shown(name->length),
                         name->text);
}

/* True if a target stores the name loop. */
static bool stores_loop(const tarn__jinja_node *target)
{
    if (target->kind == TARN__JINJA_NAME)
        return tarn__jinja_is_text(target->value, "loop");
    for (int i = 0; target->kind == TARN__JINJA_MAKE_TUPLE && i < target->items.count; i++)
        if (stores_loop(target->items.at[i]))
            return true;
    return false;
}

/* Statements of nested blocks and macros count too: Jinja tracks the name through all of them. A with may bind it. */
static bool any_stores_loop(const tarn__jinja_nodes *nodes);

static bool node_stores_loop(const tarn__jinja_node *node)
{
    bool assigns =
        node->kind == TARN__JINJA_SET || node->kind == TARN__JINJA_SET_BLOCK || node->kind == TARN__JINJA_FOR;
    if (assigns && stores_loop(node->left))
        return true;
    return any_stores_loop(&node->items) || any_stores_loop(&node->others);
}

static bool any_stores_loop(const tarn__jinja_nodes *nodes)
{
    for (int i = 0; i < nodes->count; i++)
        if (node_stores_loop(nodes->at[i]))
            return true;
    return false;
}

/* True if a name occurs in nodes. */
static bool mentions(const tarn__jinja_nodes *nodes, const char *name);

static bool node_mentions(const tarn__jinja_node *node, const char *name)
{
    if (!node)
        return false;
    return (node->kind == TARN__JINJA_NAME && tarn__jinja_is_text(node->value, name)) ||
           node_mentions(node->left, name) || node_mentions(node->right, name) || node_mentions(node->third, name) ||
           mentions(&node->items, name) || mentions(&node->others, name);
}

static bool mentions(const tarn__jinja_nodes *nodes, const char *name)
{
    for (int i = 0; i < nodes->count; i++)
        if (node_mentions(nodes->at[i], name))
            return true;
    return false;
}

/* What the code generator of Jinja asks about bodies. A name anywhere in the body counts, whatever block it is in. */
static void find_uses(tarn__jinja_node *node)
{
    if (node->kind == TARN__JINJA_FOR)
        node->uses_loop = mentions(&node->items, "loop");
    if (node->kind != TARN__JINJA_MACRO_BLOCK && node->kind != TARN__JINJA_CALL_BLOCK)
        return;
    node->uses_caller = mentions(&node->items, "caller");
    node->uses_varargs = mentions(&node->items, "varargs");
    node->uses_kwargs = mentions(&node->items, "kwargs");
}

/* Bodies with variables of their own are judged as if no if were around them. */
static bool has_own_scope(const tarn__jinja_node *node)
{
    return node->kind == TARN__JINJA_FOR || node->kind == TARN__JINJA_SET_BLOCK ||
           node->kind == TARN__JINJA_MACRO_BLOCK || node->kind == TARN__JINJA_CALL_BLOCK ||
           node->kind == TARN__JINJA_FILTER_BLOCK || node->kind == TARN__JINJA_WITH ||
           node->kind == TARN__JINJA_GENERATION_BLOCK;
}

static void check_node(tarn__jinja_run *r, tarn__jinja_node *node, bool is_soft)
{
    tarn__jinja_enter(r);
    if (node->kind == TARN__JINJA_FILTER || node->kind == TARN__JINJA_TEST)
        check_name(r, node, is_soft);
    r->line = node->line;
    if (node->kind == TARN__JINJA_FOR && (stores_loop(node->left) || any_stores_loop(&node->items)))
        tarn__jinja_fail(r, "loop cannot be assigned to inside a loop");
    find_uses(node);
    is_soft = is_soft || node->kind == TARN__JINJA_IF || node->kind == TARN__JINJA_CHOICE;
    tarn__jinja_node *const parts[] = {node->left, node->right, node->third};
    for (int i = 0; i < 3; i++)
        if (parts[i])
            check_node(r, parts[i], is_soft);
    is_soft = is_soft && !has_own_scope(node);
    check_nodes(r, &node->items, is_soft);
    check_nodes(r, &node->others, is_soft);
    tarn__jinja_leave(r);
}

void tarn__jinja_check(tarn__jinja_run *r, const tarn__jinja_nodes *nodes)
{
    check_nodes(r, nodes, false);
}
