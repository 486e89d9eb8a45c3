/* functions.c: arguments of calls, and the global functions: those of Jinja (range, dict, namespace, cycler, joiner)
 * and of transformers (raise_exception, strftime_now). */
#include <string.h>
#include <time.h>

#include "text/jinja/eval.h"

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* The index of a name in a list of names separated by spaces; -1: not there. */
static int index_of(const char *names, const tarn__jinja_string *name)
{
    for (int i = 0; *names; i++) {
        size_t length = strcspn(names, " ");
        if (length == name->length && memcmp(names, name->text, length) == 0)
            return i;
        names += length + (names[length] == ' ');
    }
    return -1;
}

/* Names of a list as tarn__jinja_bind() takes it. */
static int count_names(const char *names)
{
    int count = *names != 0;
    for (; *names; names++)
        count += *names == ' ';
    return count;
}

/* tarn__jinja_bind(r, "indent", arguments, "width first blank", 0, values) sets values[0 … 2] where the call gives
 * them; the caller has put the defaults there. The first `required` names must be given. One `/` at the start is for
 * functions whose parameters have positions only. */
void tarn__jinja_bind(tarn__jinja_run *r, const char *function, const tarn__jinja_arguments *arguments,
                      const char *names, int required, tarn__jinja_value *values)
{
    size_t given = arguments->positional.count;
    int found = 0;
    if (*names == '/' && arguments->keywords.count)
        tarn__jinja_fail(r, "%s() takes no keyword arguments", function);
    names += *names == '/';
    if (given > (size_t)count_names(names))
        tarn__jinja_fail(r, "%s() takes at most %d arguments (%zu given)", function, count_names(names), given);
    for (size_t i = 0; i < given; i++)
        values[i] = arguments->positional.items[i];
    for (size_t i = 0; i < arguments->keywords.count; i++) {
        const tarn__jinja_string *name = arguments->keywords.pairs[i].key.as.string;
        int index = index_of(names, name);
        /* A keyword for a parameter that has a position already is unexpected too. */
        if (index < 0 || (size_t)index < given)
            tarn__jinja_fail(r, "%s() got an unexpected keyword argument '%.*s'", function,
                             tarn__jinja_shown(name->length), name->text);
        values[index] = arguments->keywords.pairs[i].value;
        found += index < required;
    }
    /* `found` counts the required ones given by keyword, and a keyword is never one that has a position too. */
    if ((given < (size_t)required ? (int)given : required) + found < required)
        tarn__jinja_fail(r, "%s() takes at least %d arguments", function, required);
}

/* What Python's operator.index() accepts: an int or bool, no float. */
int64_t tarn__jinja_index(tarn__jinja_run *r, const char *function, tarn__jinja_value v)
{
    if (!tarn__jinja_is_integer(v))
        tarn__jinja_fail(r, "%s: '%s' object cannot be interpreted as an integer", function, tarn__jinja_type_name(v));
    return tarn__jinja_integer_of(v);
}

/* Where Jinja would raise an error in the middle of a method of str. */
const tarn__jinja_string *tarn__jinja_want_string(tarn__jinja_run *r, const char *function, tarn__jinja_value v)
{
    if (v.kind != TARN__JINJA_STRING)
        tarn__jinja_fail(r, "%s: a string is expected, not %s", function, tarn__jinja_type_name(v));
    return v.as.string;
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

#define MAX_RANGE 100000 /* the sandbox's */

/* range(3), range(1, 3), range(3, 0, -1). Its numbers are made when they are asked for. */
static tarn__jinja_value make_range(tarn__jinja_run *r, const tarn__jinja_arguments *arguments)
{
    size_t count = arguments->positional.count;
    int64_t bounds[3] = {0, 0, 1};
    if (arguments->keywords.count || count < 1 || count > 3)
        tarn__jinja_fail(r, "range expects 1 to 3 arguments");
    for (size_t i = 0; i < count; i++)
        bounds[count == 1 ? 1 : i] = tarn__jinja_index(r, "range", arguments->positional.items[i]);
    tarn__jinja_range *range = tarn__jinja_alloc(r->arena, 1, sizeof(*range));
    *range = (tarn__jinja_range){bounds[0], bounds[2], 0, bounds[1]};
    if (bounds[2] == 0)
        tarn__jinja_fail(r, "range() arg 3 must not be zero");
    bool is_up = bounds[2] > 0;
    /* (span - 1) / step + 1 numbers; the sandbox's limit is checked before the sum. */
    if (is_up ? bounds[0] < bounds[1] : bounds[0] > bounds[1]) {
        /* Unsigned, since the difference of two int64_t may not fit one. */
        uint64_t span = is_up ? (uint64_t)bounds[1] - (uint64_t)bounds[0] : (uint64_t)bounds[0] - (uint64_t)bounds[1],
                 step = is_up ? (uint64_t)bounds[2] : (uint64_t)0 - (uint64_t)bounds[2];
        if ((span - 1) / step >= MAX_RANGE)
            tarn__jinja_fail(r, "range too big: the sandbox blocks ranges larger than %d", MAX_RANGE);
        range->count = (int64_t)((span - 1) / step) + 1;
    }
    return (tarn__jinja_value){TARN__JINJA_RANGE, {.range = range}};
}

/* dict(pairs, key=value …). */
static tarn__jinja_value make_dict(tarn__jinja_run *r, const tarn__jinja_arguments *arguments)
{
    tarn__jinja_value dict = tarn__jinja_dict_new(r);
    if (arguments->positional.count > 1)
        tarn__jinja_fail(r, "dict expected at most 1 argument, got %zu", arguments->positional.count);
    /* A dict is copied; otherwise each item is a pair, which may be any iterable of two. */
    if (arguments->positional.count) {
        tarn__jinja_value from = arguments->positional.items[0];
        bool is_dict = from.kind == TARN__JINJA_DICT;
        const tarn__jinja_list *items = is_dict ? NULL : tarn__jinja_iterate(r, from);
        for (size_t i = 0; is_dict && i < from.as.dict->count; i++)
            tarn__jinja_dict_set(r, dict.as.dict, from.as.dict->pairs[i].key, from.as.dict->pairs[i].value);
        for (size_t i = 0; items && i < items->count; i++) {
            const tarn__jinja_list *pair = tarn__jinja_iterate(r, items->items[i]);
            if (pair->count != 2)
                tarn__jinja_fail(r, "dictionary update sequence element %zu has length %zu; 2 is required", i,
                                 pair->count);
            tarn__jinja_dict_set(r, dict.as.dict, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < arguments->keywords.count; i++)
        tarn__jinja_dict_set(r, dict.as.dict, arguments->keywords.pairs[i].key, arguments->keywords.pairs[i].value);
    return dict;
}

/* namespace(a=1): a dict whose members {% set ns.a = … %} changes. The sandbox shows no attribute that begins with _,
 * so none is accepted. */
static tarn__jinja_value make_namespace(tarn__jinja_run *r, const tarn__jinja_arguments *arguments)
{
    tarn__jinja_value dict = make_dict(r, arguments);
    for (size_t i = 0; i < dict.as.dict->count; i++) {
        tarn__jinja_value key = dict.as.dict->pairs[i].key;
        if (key.kind == TARN__JINJA_STRING && key.as.string->length && key.as.string->text[0] == '_')
            tarn__jinja_fail(r, "the attributes of a namespace cannot begin with '_'");
    }
    dict.kind = TARN__JINJA_NAMESPACE;
    return dict;
}

/* cycler("odd", "even") with next(), current and reset(). */
static tarn__jinja_value make_cycler(tarn__jinja_run *r, const tarn__jinja_arguments *arguments)
{
    tarn__jinja_cycler *cycler = tarn__jinja_alloc(r->arena, 1, sizeof(*cycler));
    cycler->items = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0).as.list;
    for (size_t i = 0; i < arguments->positional.count; i++)
        tarn__jinja_append(r, cycler->items, arguments->positional.items[i]);
    if (!cycler->items->count)
        tarn__jinja_fail(r, "at least one item has to be provided");
    return (tarn__jinja_value){TARN__JINJA_CYCLER, {.cycler = cycler}};
}

/* joiner(", "): called before each item of a list, it separates them. */
static tarn__jinja_value make_joiner(tarn__jinja_run *r, const tarn__jinja_arguments *arguments)
{
    tarn__jinja_value separator = TARN__JINJA_TEXT(", ");
    tarn__jinja_bind(r, "joiner", arguments, "sep", 0, &separator);
    tarn__jinja_cycler *joiner = tarn__jinja_alloc(r->arena, 1, sizeof(*joiner));
    joiner->items = tarn__jinja_list_new(r, TARN__JINJA_LIST, 1).as.list;
    tarn__jinja_append(r, joiner->items, separator);
    return (tarn__jinja_value){TARN__JINJA_JOINER, {.cycler = joiner}};
}

/* A template refuses its input by this; the rest of the message is the template's. */
static tarn__jinja_value raise_exception(tarn__jinja_run *r, const tarn__jinja_arguments *arguments)
{
    tarn__jinja_value message;
    tarn__jinja_bind(r, "raise_exception", arguments, "message", 1, &message);
    const tarn__jinja_string *text = tarn__jinja_str(r, message);
    tarn__jinja_fail(r, "the template says: %.*s", text->length < 300 ? (int)text->length : 300, text->text);
}

/* One directive of strftime, in the C locale's words whatever the program's locale is. */
static void put_date(tarn__jinja_run *r, tarn__jinja_builder *b, char letter, const struct tm *now)
{
    static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                         "July",    "August",   "September", "October", "November", "December"},
                             *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                              "Thursday", "Friday", "Saturday"};
    char format[3] = {'%', letter, 0}, text[64];
    switch (letter) {
    case 'B': tarn__jinja_build_text(r, b, months[now->tm_mon % 12]); return;
    case 'b':
    case 'h': tarn__jinja_build(r, b, months[now->tm_mon % 12], 3, NULL); return;
    case 'A': tarn__jinja_build_text(r, b, days[now->tm_wday % 7]); return;
    case 'a': tarn__jinja_build(r, b, days[now->tm_wday % 7], 3, NULL); return;
    case 'p': tarn__jinja_build_text(r, b, now->tm_hour < 12 ? "AM" : "PM"); return;
    /* The time has no fraction and no zone: %f is zeros, %z and %Z are empty, as for a datetime without a time zone. */
    case 'f': tarn__jinja_build_text(r, b, "000000"); return;
    case 'z':
    case 'Z': return;
    default: break;
    }
    /* The rest prints numbers and fixed signs, which the locale does not change. */
    if (!letter || !strchr("YmdHIMSyjeDTFRUWwuCGVnt%", letter))
        tarn__jinja_fail(r, "strftime_now: unknown directive '%%%c'", letter);
    tarn__jinja_build(r, b, text, strftime(text, sizeof(text), format, now), NULL);
}

/* strftime_now("%d %b %Y") is "26 Jul 2024". %-d, a GNU extension, removes zeros and spaces before the number. */
static tarn__jinja_value strftime_now(tarn__jinja_run *r, const tarn__jinja_arguments *arguments)
{
    tarn__jinja_value argument;
    tarn__jinja_bind(r, "strftime_now", arguments, "format", 1, &argument);
    const tarn__jinja_string *format = tarn__jinja_want_string(r, "strftime_now", argument);
    /* Read for each call; a context with a time gives the same one to all. */
    struct tm now = r->context->now;
    time_t seconds = time(NULL);
    if (!r->context->has_time)
        localtime_r(&seconds, &now);
    tarn__jinja_builder b = {0};
    for (size_t i = 0; i < format->length; i++) {
        if (format->text[i] != '%' || i + 1 == format->length) {
            tarn__jinja_build(r, &b, format->text + i, 1, NULL);
            continue;
        }
        /* The letter after the minus, if there is one. */
        bool trims = format->text[++i] == '-' && i + 1 < format->length;
        i += trims;
        tarn__jinja_builder part = {0};
        put_date(r, &part, format->text[i], &now);
        size_t skip = 0;
        while (trims && skip + 1 < part.length && (part.text[skip] == '0' || part.text[skip] == ' '))
            skip++;
        tarn__jinja_build(r, &b, part.text + skip, part.length - skip, NULL);
    }
    return tarn__jinja_built(r, &b);
}

/* lipsum is missing: it is for drafts of web pages. */
const tarn__jinja_function *tarn__jinja_find_function(const char *name, size_t length)
{
    static const tarn__jinja_function functions[] = {
        {"range", make_range},         {"dict", make_dict},     {"namespace", make_namespace},
        {"cycler", make_cycler},       {"joiner", make_joiner}, {"raise_exception", raise_exception},
        {"strftime_now", strftime_now}};
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
        if (strlen(functions[i].name) == length && memcmp(functions[i].name, name, length) == 0)
            return &functions[i];
    return NULL;
}
