/* methods_text.c: methods of strings, and what filters share with them. Positions that templates see count code points,
 * those inside are bytes. Parts of a string are slices that share its bytes and origins. What cannot split a code point
 * is compared by bytes: UTF-8 has no code point whose bytes occur within another's.
 *
 * The names in errors are those of Python's functions, shared by methods of one kind. */
#include <string.h>

#include "text/jinja/builtins/methods.h"
#include "text/jinja/eval.h"

/* ---- shared with filters ----------------------------------------------------------------------------------------- */

/* memchr() skips to the part's first byte, so only candidates are compared. Each counts with the part's length: a text
 * that repeats itself has as many as bytes. An empty part is found at `from`. */
size_t tarn__jinja_find(tarn__jinja_run *r, const tarn__jinja_string *s, size_t from, const tarn__jinja_string *part)
{
    for (size_t at = from; at + part->length <= s->length; at++) {
        tarn__jinja_step(r, 1 + part->length / 64);
        if (part->length == 0 || memcmp(s->text + at, part->text, part->length) == 0)
            return at;
        const char *next = memchr(s->text + at + 1, part->text[0], s->length - at - 1);
        if (!next)
            break;
        at = (size_t)(next - s->text) - 1;
    }
    return SIZE_MAX;
}

/* The last occurrence that ends at or before `end`; SIZE_MAX: none. */
static size_t find_last(tarn__jinja_run *r, const tarn__jinja_string *s, size_t end, const tarn__jinja_string *part)
{
    /* `at` is the end of a candidate, down to the part's length. */
    for (size_t at = end + 1; at-- > part->length;) {
        const char *begin = s->text + at - part->length;
        if (part->length && *begin != part->text[0])
            continue;
        tarn__jinja_step(r, 1 + part->length / 64);
        if (part->length == 0 || memcmp(begin, part->text, part->length) == 0)
            return at - part->length;
    }
    return part->length == 0 ? 0 : SIZE_MAX;
}

/* The beginning of the code point that ends at `end`. */
static size_t previous(const tarn__jinja_string *s, size_t end)
{
    size_t at = end - 1;
    while (at > 0 && end - at < 4 && ((unsigned char)s->text[at] & 0xC0) == 0x80)
        at--;
    return at;
}

/* `characters` is a set; NULL: whitespace. */
static bool is_stripped(const tarn__jinja_string *s, size_t at, size_t size, const tarn__jinja_string *characters)
{
    uint32_t code, other;
    tarn__jinja_decode(s->text + at, size, &code);
    if (!characters)
        return tarn__jinja_is_space(code);
    for (size_t i = 0, length; i < characters->length; i += length) {
        length = tarn__jinja_decode(characters->text + i, characters->length - i, &other);
        if (other == code)
            return true;
    }
    return false;
}

/* "xax".strip("x") is "a". `previous` never goes below begin, as a code point that was kept on the left is kept
 * whole. */
tarn__jinja_value tarn__jinja_strip(tarn__jinja_run *r, const tarn__jinja_string *s, tarn__jinja_value characters,
                                    int sides)
{
    const tarn__jinja_string *set =
        characters.kind == TARN__JINJA_NONE ? NULL : tarn__jinja_want_string(r, "strip", characters);
    size_t begin = 0, end = s->length, size, at;
    uint32_t code;
    while (sides & 1 && begin < end && (size = tarn__jinja_decode(s->text + begin, end - begin, &code)) != 0 &&
           is_stripped(s, begin, size, set))
        begin += size;
    while (sides & 2 && end > begin && (at = previous(s, end)) >= begin && is_stripped(s, at, end - at, set))
        end = at;
    return tarn__jinja_slice_of(r, s, begin, end);
}

/* "abab".replace("a", "x", 1) is "xbab"; count -1 replaces all. An empty `old` is found before each code point and at
 * the end: "ab".replace("", "-") is "-a-b-". */
tarn__jinja_value tarn__jinja_replace(tarn__jinja_run *r, const tarn__jinja_string *s, const tarn__jinja_string *old,
                                      const tarn__jinja_string *new, int64_t count)
{
    tarn__jinja_builder b = {0};
    size_t at = 0, found;
    uint32_t code;
    for (; count != 0 && at <= s->length && (found = tarn__jinja_find(r, s, at, old)) != SIZE_MAX; count -= count > 0) {
        tarn__jinja_step(r, 1);
        tarn__jinja_build(r, &b, s->text + at, found - at, s->origin ? s->origin + at : NULL);
        tarn__jinja_build_string(r, &b, new);
        at = found + old->length;
        if (old->length)
            continue;
        size_t size = tarn__jinja_decode(s->text + at, s->length - at, &code);
        tarn__jinja_build(r, &b, s->text + at, size, s->origin ? s->origin + at : NULL);
        at += size ? size : 1;
    }
    if (at < s->length)
        tarn__jinja_build(r, &b, s->text + at, s->length - at, s->origin ? s->origin + at : NULL);
    return tarn__jinja_built(r, &b);
}

/* `begins`: at the beginning of the string or word. */
static uint32_t with_case(uint32_t code, int mode, bool begins)
{
    switch (mode) {
    case TARN__JINJA_UPPER: return tarn__jinja_to_upper(code);
    case TARN__JINJA_LOWER: return tarn__jinja_to_lower(code);
    case TARN__JINJA_SWAPCASE:
        return tarn__jinja_is_upper(code) ? tarn__jinja_to_lower(code) : tarn__jinja_to_upper(code);
    default: return begins ? tarn__jinja_to_upper(code) : tarn__jinja_to_lower(code);
    }
}

tarn__jinja_value tarn__jinja_change_case(tarn__jinja_run *r, const tarn__jinja_string *s, int mode)
{
    tarn__jinja_builder b = {0};
    uint32_t code;
    bool begins = true;
    for (size_t at = 0, size; at < s->length; at += size) {
        size = tarn__jinja_decode(s->text + at, s->length - at, &code);
        /* One code point becomes one, but for the sharp s. */
        uint32_t mapped = with_case(code, mode, begins);
        uint8_t origin = s->origin ? s->origin[at] : 0;
        if (code == 0xDF &&
            (mode == TARN__JINJA_UPPER || mode == TARN__JINJA_SWAPCASE || (mode >= TARN__JINJA_CAPITALIZE && begins))) {
            tarn__jinja_build_code(r, &b, 'S', origin); /* sharp s has no capital of its own */
            mapped = mode == TARN__JINJA_UPPER || mode == TARN__JINJA_SWAPCASE ? 'S' : 's';
        }
        tarn__jinja_build_code(r, &b, mapped, origin);
        /* A word of title() begins after anything but a letter: "it's".title() is "It'S". */
        begins = mode == TARN__JINJA_TITLE && !tarn__jinja_is_alpha(code);
    }
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), s);
}

/* ---- methods ----------------------------------------------------------------------------------------------------- */

/* `mode` has bit 0 for the left side and bit 1 for the right. */
static tarn__jinja_value strip(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                               int mode)
{
    tarn__jinja_value characters = tarn__jinja_none();
    tarn__jinja_bind(r, "strip", arguments, "/chars", 0, &characters);
    return tarn__jinja_strip(r, self.as.string, characters, mode);
}

/* "aB".upper() is "AB", title() "Ab", swapcase() "Ab"; casefold() is lower() here, which differs for sharp s and a few
 * more. */
static tarn__jinja_value change_case(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                     int mode)
{
    tarn__jinja_bind(r, "str", arguments, "", 0, NULL);
    return tarn__jinja_change_case(r, self.as.string, mode);
}

/* Splits at whitespace: " a  b ".split() is ["a", "b"]. count -1 has no limit; with one, the rest is a single item: "a
 * b c".split(none, 1) is ["a", "b c"]. From the right items come in reverse. */
static void split_space(tarn__jinja_run *r, const tarn__jinja_string *s, int64_t count, bool from_right,
                        tarn__jinja_list *list)
{
    size_t begin = 0, end = s->length, at, size;
    uint32_t code;
    for (;;) {
        /* Both sides are stripped to find the end; whether the text is left as the rest is known after that. */
        const tarn__jinja_string *rest = tarn__jinja_strip(r, s, tarn__jinja_none(), 3).as.string;
        if (!rest->length)
            return;
        begin = (size_t)(rest->text - s->text);
        end = begin + rest->length;
        if (count == 0)
            break;
        if (from_right) {
            for (at = end; at > begin && !is_stripped(s, previous(s, at), at - previous(s, at), NULL);)
                at = previous(s, at);
            tarn__jinja_append(r, list, tarn__jinja_slice_of(r, s, at, end));
            s = tarn__jinja_slice_of(r, s, 0, at).as.string;
        } else {
            for (at = begin; at < end && (size = tarn__jinja_decode(s->text + at, end - at, &code)) != 0 &&
                             !tarn__jinja_is_space(code);)
                at += size;
            tarn__jinja_append(r, list, tarn__jinja_slice_of(r, s, begin, at));
            s = tarn__jinja_slice_of(r, s, at, s->length).as.string;
        }
        count -= count > 0;
    }
    /* the rest keeps its whitespace on the far side */
    tarn__jinja_append(r, list,
                       from_right ? tarn__jinja_slice_of(r, s, 0, end) : tarn__jinja_slice_of(r, s, begin, s->length));
}

/* "a,b,c".split(",", 1) is ["a", "b,c"]; from the right ["a,b", "c"], in reverse. Adjacent separators have an empty
 * item between them. */
static void split_at(tarn__jinja_run *r, const tarn__jinja_string *s, const tarn__jinja_string *separator,
                     int64_t count, bool from_right, tarn__jinja_list *list)
{
    size_t begin = 0, end = s->length, found;
    if (!separator->length)
        tarn__jinja_fail(r, "empty separator");
    for (; count != 0; count -= count > 0) {
        found = from_right ? find_last(r, s, end, separator) : tarn__jinja_find(r, s, begin, separator);
        if (found == SIZE_MAX)
            break;
        tarn__jinja_append(r, list,
                           from_right ? tarn__jinja_slice_of(r, s, found + separator->length, end)
                                      : tarn__jinja_slice_of(r, s, begin, found));
        begin = from_right ? begin : found + separator->length;
        end = from_right ? found : end;
    }
    tarn__jinja_append(r, list, tarn__jinja_slice_of(r, s, begin, end));
}

/* Splitting from the right finds the last item first. */
static void reverse(tarn__jinja_list *list)
{
    for (size_t i = 0; i < list->count / 2; i++) {
        tarn__jinja_value item = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = item;
    }
}

/* `mode` is 1 for rsplit. */
static tarn__jinja_value split(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                               int mode)
{
    tarn__jinja_value values[2] = {tarn__jinja_none(), tarn__jinja_int(-1)},
                      list = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0);
    tarn__jinja_bind(r, "split", arguments, "sep maxsplit", 0, values);
    int64_t count = tarn__jinja_index(r, "split", values[1]);
    if (values[0].kind == TARN__JINJA_NONE)
        split_space(r, self.as.string, count, mode, list.as.list);
    else
        split_at(r, self.as.string, tarn__jinja_want_string(r, "split", values[0]), count, mode, list.as.list);
    if (mode)
        reverse(list.as.list);
    return list;
}

static bool is_line_end(uint32_t code)
{
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

/* "a\r\nb\n".splitlines() is ["a", "b"]: the end of the last line begins no further one. */
static tarn__jinja_value splitlines(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                    int mode)
{
    tarn__jinja_value keeps = tarn__jinja_bool(false), list = tarn__jinja_list_new(r, TARN__JINJA_LIST, 0);
    const tarn__jinja_string *s = self.as.string;
    uint32_t code;
    size_t begin = 0;
    (void)mode;
    tarn__jinja_bind(r, "splitlines", arguments, "keepends", 0, &keeps);
    for (size_t at = 0, size; at < s->length; at += size) {
        size = tarn__jinja_decode(s->text + at, s->length - at, &code);
        if (!is_line_end(code))
            continue;
        /* A pair of \r\n is one end. */
        if (code == '\r' && at + 1 < s->length && s->text[at + 1] == '\n')
            size++;
        tarn__jinja_append(r, list.as.list,
                           tarn__jinja_slice_of(r, s, begin, tarn__jinja_truth(r, keeps) ? at + size : at));
        begin = at + size;
    }
    if (begin < s->length)
        tarn__jinja_append(r, list.as.list, tarn__jinja_slice_of(r, s, begin, s->length));
    return list;
}

/* The part of a string that the arguments start and end of a method select; false: start is beyond the end. */
static bool select_part(tarn__jinja_run *r, const tarn__jinja_string **s, const tarn__jinja_value *bounds,
                        size_t *before)
{
    int64_t length = (int64_t)tarn__jinja_count(*s), limits[2] = {0, length};
    for (int i = 0; i < 2; i++)
        if (bounds[i].kind != TARN__JINJA_NONE) {
            limits[i] = tarn__jinja_index(r, "str", bounds[i]);
            /* Negative bounds count from the end, as in slices. */
            limits[i] += limits[i] < 0 ? length : 0;
            limits[i] = limits[i] < 0 ? 0 : limits[i];
        }
    limits[1] = limits[1] > length ? length : limits[1];
    if (limits[0] > limits[1])
        return false;
    *before = tarn__jinja_offset(*s, (size_t)limits[0]);
    *s = tarn__jinja_slice_of(r, *s, *before, tarn__jinja_offset(*s, (size_t)limits[1])).as.string;
    return true;
}

/* `is_suffix`: at the end. */
static bool has_affix(tarn__jinja_run *r, const tarn__jinja_string *s, tarn__jinja_value affix, bool is_suffix)
{
    const tarn__jinja_string *part = tarn__jinja_want_string(r, is_suffix ? "endswith" : "startswith", affix);
    return part->length <= s->length &&
           (part->length == 0 ||
            memcmp(s->text + (is_suffix ? s->length - part->length : 0), part->text, part->length) == 0);
}

/* startswith and endswith, also with a tuple of which one must fit. The bounds are looked at first, for their
 * errors. */
static tarn__jinja_value starts(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                int mode)
{
    tarn__jinja_value values[3] = {tarn__jinja_none(), tarn__jinja_none(), tarn__jinja_none()};
    const tarn__jinja_string *s = self.as.string;
    size_t before;
    tarn__jinja_bind(r, "startswith", arguments, "/prefix start end", 1, values);
    bool found = false, fits = select_part(r, &s, values + 1, &before);
    if (values[0].kind != TARN__JINJA_TUPLE)
        found = has_affix(r, s, values[0], mode);
    else
        for (size_t i = 0; !found && i < values[0].as.list->count; i++)
            found = has_affix(r, s, values[0].as.list->items[i], mode);
    return tarn__jinja_bool(fits && found);
}

enum { FIND, RFIND, INDEX, RINDEX, COUNT };

/* Occurrences that do not overlap: "aaa".count("aa") is 1. An empty part occurs around each code point. */
static int64_t count_parts(tarn__jinja_run *r, const tarn__jinja_string *s, const tarn__jinja_string *part)
{
    int64_t count = 0;
    if (part->length == 0)
        return (int64_t)tarn__jinja_count(s) + 1;
    for (size_t at = 0; (at = tarn__jinja_find(r, s, at, part)) != SIZE_MAX; at += part->length)
        count++;
    return count;
}

/* find, rfind and count give a number, index and rindex fail for what is not there. The result counts from the whole
 * string's beginning, whatever part was searched. */
static tarn__jinja_value find(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                              int mode)
{
    tarn__jinja_value values[3] = {tarn__jinja_none(), tarn__jinja_none(), tarn__jinja_none()};
    const tarn__jinja_string *s = self.as.string, *part;
    size_t before = 0, at = SIZE_MAX;
    tarn__jinja_bind(r, "find", arguments, "/sub start end", 1, values);
    part = tarn__jinja_want_string(r, "find", values[0]);
    bool fits = select_part(r, &s, values + 1, &before);
    tarn__jinja_step(r, s->length / 64);
    if (mode == COUNT)
        return tarn__jinja_int(fits ? count_parts(r, s, part) : 0);
    if (fits)
        at = mode == RFIND || mode == RINDEX ? find_last(r, s, s->length, part) : tarn__jinja_find(r, s, 0, part);
    /* find_last() finds the empty part at the end of what it searches. */
    if (fits && part->length == 0 && (mode == RFIND || mode == RINDEX))
        at = s->length;
    if (at == SIZE_MAX && (mode == INDEX || mode == RINDEX))
        tarn__jinja_fail(r, "substring not found");
    /* Counts the code points before the bytes that were found. */
    tarn__jinja_string head = {self.as.string->text, before + at, NULL, false};
    return tarn__jinja_int(at == SIZE_MAX ? -1 : (int64_t)tarn__jinja_count(&head));
}

/* The method wants strings, where the filter takes anything; of markup it escapes what is put in. */
static tarn__jinja_value replace(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                 int mode)
{
    tarn__jinja_value values[3] = {tarn__jinja_none(), tarn__jinja_none(), tarn__jinja_int(-1)};
    (void)mode;
    tarn__jinja_bind(r, "replace", arguments, "/old new count", 2, values);
    const tarn__jinja_string *s = self.as.string, *new = tarn__jinja_want_string(r, "replace", values[1]);
    if (s->is_markup)
        new = tarn__jinja_escape(r, values[1]).as.string;
    return tarn__jinja_like(r,
                            tarn__jinja_replace(r, s, tarn__jinja_want_string(r, "replace", values[0]), new,
                                                tarn__jinja_index(r, "replace", values[2])),
                            s);
}

/* "-".join(["a", "b"]) is "a-b"; items must be strings. */
static tarn__jinja_value join(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                              int mode)
{
    tarn__jinja_value items;
    tarn__jinja_builder b = {0};
    (void)mode;
    tarn__jinja_bind(r, "join", arguments, "/iterable", 1, &items);
    const tarn__jinja_list *list = tarn__jinja_iterate(r, items);
    for (size_t i = 0; i < list->count; i++) {
        if (i)
            tarn__jinja_build_string(r, &b, self.as.string);
        if (self.as.string->is_markup)
            tarn__jinja_build_string(r, &b, tarn__jinja_escape(r, list->items[i]).as.string);
        else
            tarn__jinja_build_string(r, &b, tarn__jinja_want_string(r, "join", list->items[i]));
    }
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), self.as.string);
}

/* "{} of {n}".format(1, n=2) is "1 of 2" (format.c). */
static tarn__jinja_value format(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                int mode)
{
    (void)mode;
    return tarn__jinja_format_braces(r, self.as.string, arguments);
}

/* Modes of is_class(). */
enum { IS_DIGIT, IS_ALPHA, IS_ALNUM, IS_SPACE, IS_UPPER, IS_LOWER };

/* Digits are those of ASCII, for isdecimal() and isnumeric() too; Python's have hundreds. */
static bool is_in_class(uint32_t code, int mode)
{
    bool is_digit = code >= '0' && code <= '9';
    switch (mode) {
    case IS_DIGIT: return is_digit;
    case IS_ALPHA: return tarn__jinja_is_alpha(code);
    case IS_ALNUM: return is_digit || tarn__jinja_is_alpha(code);
    default: return tarn__jinja_is_space(code);
    }
}

/* True if the string has characters and all are of the class. isupper and islower ignore those without case, but one
 * with case must be there: "A1".isupper(). */
static tarn__jinja_value is_class(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                  int mode)
{
    const tarn__jinja_string *s = self.as.string;
    uint32_t code;
    bool any = false;
    tarn__jinja_bind(r, "str", arguments, "", 0, NULL);
    for (size_t at = 0; at < s->length;) {
        at += tarn__jinja_decode(s->text + at, s->length - at, &code);
        bool is_cased = mode == IS_UPPER || mode == IS_LOWER, is_upper = tarn__jinja_is_upper(code),
             is_lower = tarn__jinja_is_lower(code);
        if (is_cased ? (mode == IS_UPPER ? is_lower : is_upper) : !is_in_class(code, mode))
            return tarn__jinja_bool(false);
        any |= is_cased ? is_upper || is_lower : true;
    }
    return tarn__jinja_bool(any);
}

/* "abc".removeprefix("ab") is "c"; a string without it is returned as it is. */
static tarn__jinja_value remove_affix(tarn__jinja_run *r, tarn__jinja_value self,
                                      const tarn__jinja_arguments *arguments, int mode)
{
    tarn__jinja_value affix;
    const tarn__jinja_string *s = self.as.string;
    tarn__jinja_bind(r, "removeprefix", arguments, "/prefix", 1, &affix);
    if (!has_affix(r, s, affix, mode))
        return self;
    size_t length = affix.as.string->length;
    return mode ? tarn__jinja_slice_of(r, s, 0, s->length - length) : tarn__jinja_slice_of(r, s, length, s->length);
}

/* "a=b=c".partition("=") is ("a", "=", "b=c"), rpartition ("a=b", "=", "c"). Without the separator the whole string
 * comes first, of rpartition last. */
static tarn__jinja_value partition(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                   int mode)
{
    tarn__jinja_value separator, parts = tarn__jinja_list_new(r, TARN__JINJA_TUPLE, 3), empty = TARN__JINJA_TEXT("");
    const tarn__jinja_string *s = self.as.string;
    tarn__jinja_bind(r, "partition", arguments, "/sep", 1, &separator);
    const tarn__jinja_string *part = tarn__jinja_want_string(r, "partition", separator);
    if (!part->length)
        tarn__jinja_fail(r, "empty separator");
    /* The separator in the result is the argument, without the origins that the string has there. */
    size_t at = mode ? find_last(r, s, s->length, part) : tarn__jinja_find(r, s, 0, part);
    bool found = at != SIZE_MAX;
    tarn__jinja_append(r, parts.as.list, found ? tarn__jinja_slice_of(r, s, 0, at) : mode ? empty : self);
    tarn__jinja_append(r, parts.as.list, found ? separator : empty);
    tarn__jinja_append(r, parts.as.list,
                       found  ? tarn__jinja_slice_of(r, s, at + part->length, s->length)
                       : mode ? self
                              : empty);
    return parts;
}

/* ljust, rjust and center: mode is 1, 2 and 3; zfill: 4. */
static tarn__jinja_value justify(tarn__jinja_run *r, tarn__jinja_value self, const tarn__jinja_arguments *arguments,
                                 int mode)
{
    tarn__jinja_value values[2] = {tarn__jinja_none(), mode == 4 ? TARN__JINJA_TEXT("0") : TARN__JINJA_TEXT(" ")};
    const tarn__jinja_string *s = self.as.string;
    tarn__jinja_bind(r, "justify", arguments, mode == 4 ? "/width" : "/width fillchar", 1, values);
    int64_t width = tarn__jinja_index(r, "justify", values[0]), length = (int64_t)tarn__jinja_count(s),
            count = width - length;
    if (tarn__jinja_count(tarn__jinja_want_string(r, "justify", values[1])) != 1)
        tarn__jinja_fail(r, "the fill character must be exactly one character long");
    if (count <= 0)
        return self;
    /* Python's center(): an odd space goes to the left if the width is odd. */
    int64_t left = mode == 1 ? 0 : mode == 3 ? count / 2 + (count & width & 1) : count;
    /* zfill() puts zeros after a sign: "-5".zfill(4) is "-005". */
    bool has_sign = mode == 4 && s->length && (s->text[0] == '-' || s->text[0] == '+');
    tarn__jinja_builder b = {0};
    tarn__jinja_build(r, &b, s->text, has_sign, NULL);
    for (int64_t i = 0; i < left; i++)
        tarn__jinja_build_string(r, &b, values[1].as.string);
    tarn__jinja_build_string(r, &b, tarn__jinja_slice_of(r, s, has_sign, s->length).as.string);
    for (int64_t i = left; i < count; i++)
        tarn__jinja_build_string(r, &b, values[1].as.string);
    return tarn__jinja_like(r, tarn__jinja_built(r, &b), s);
}

/* encode, translate, expandtabs, isidentifier and their like are missing: no chat template uses them. */
const tarn__jinja_method_row tarn__jinja_text_methods[] = {
    {"strip", strip, 3},
    {"lstrip", strip, 1},
    {"rstrip", strip, 2},
    {"split", split, 0},
    {"rsplit", split, 1},
    {"splitlines", splitlines, 0},
    {"startswith", starts, 0},
    {"endswith", starts, 1},
    {"find", find, FIND},
    {"rfind", find, RFIND},
    {"index", find, INDEX},
    {"rindex", find, RINDEX},
    {"count", find, COUNT},
    {"replace", replace, 0},
    {"join", join, 0},
    {"format", format, 0},
    {"upper", change_case, TARN__JINJA_UPPER},
    {"lower", change_case, TARN__JINJA_LOWER},
    {"casefold", change_case, TARN__JINJA_LOWER},
    {"title", change_case, TARN__JINJA_TITLE},
    {"capitalize", change_case, TARN__JINJA_CAPITALIZE},
    {"swapcase", change_case, TARN__JINJA_SWAPCASE},
    {"isdigit", is_class, IS_DIGIT},
    {"isdecimal", is_class, IS_DIGIT},
    {"isnumeric", is_class, IS_DIGIT},
    {"isalpha", is_class, IS_ALPHA},
    {"isalnum", is_class, IS_ALNUM},
    {"isspace", is_class, IS_SPACE},
    {"isupper", is_class, IS_UPPER},
    {"islower", is_class, IS_LOWER},
    {"removeprefix", remove_affix, 0},
    {"removesuffix", remove_affix, 1},
    {"partition", partition, 0},
    {"rpartition", partition, 1},
    {"ljust", justify, 1},
    {"rjust", justify, 2},
    {"center", justify, 3},
    {"zfill", justify, 4},
    {NULL, NULL, 0},
};
