/* refuse.c: calls with bad input. */
#include "support/refuse.h"

int refuse_failures;

static void report(const char *what, const char *expression, int line)
{
    print_error("line %d: %s: %s: %s\n", line, expression, what, tarn_error());
    refuse_failures++;
}

static void check_usable(const char *expression, int line)
{
    tarn_clear_error();
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *two = vector(2);
    if (!tarn_grad_enabled() || tarn_item(tarn_add(two, two)) != 4)
        report("no operation works afterwards", expression, line);
    tarn_clear_error();
    tarn_scope_close(scope);
}

/* "tarn_sgd_sized" is called "sgd" in errors: the name that callers write. */
void check_refused(const char *function, const char *expression, int line)
{
    char name[64];
    snprintf(name, sizeof(name) - 1, "%s", function + strlen("tarn_"));
    char *end = strstr(name, "_sized");
    if (end)
        *end = 0;
    strcat(name, ":");
    if (!tarn_failed())
        report("was accepted", expression, line);
    else if (!strstr(tarn_error(), name))
        report("the error does not name the function", expression, line);
    check_usable(expression, line);
}

void check_accepted(const char *expression, int line)
{
    if (tarn_failed())
        report("was refused", expression, line);
    check_usable(expression, line);
}

int open_refusals(void **state)
{
    refuse_failures = 0;
    return open_test(state);
}

int close_refusals(void **state)
{
    int closed = close_test(state);
    return refuse_failures || closed ? -1 : 0;
}
