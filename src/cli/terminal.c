/* terminal.c: output for users: errors, headings, wrapping, and escaping of untrusted strings.
 *
 * Rotating static buffers make results usable as printf() arguments without clean-up: 8 of them, for the main thread.
 *
 * What comes from outside (names of files, texts of models, answers of servers) may hold escape sequences, which a
 * terminal obeys: nothing of it is printed without tarn__escaped() or one of the functions below. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"

int tarn__print_error(const char *command)
{
    char text[TARN__MESSAGE_MAX];
    fprintf(stderr, "tarn %s: %s\n", command, tarn__user_error(command, text, sizeof(text)));
    return TARN__FAILED;
}

bool tarn__in_colour(void)
{
    /* no-color.org: any value but an empty one turns colours off; "du" is the terminal "dumb" */
    const char *no = getenv("NO_COLOR"), *kind = getenv("TERM");
    return !(no && no[0]) && isatty(STDOUT_FILENO) && kind && kind[0] && !(kind[0] == 'd' && kind[1] == 'u');
}

/* Bold is reset before the line break. */
void tarn__heading(const char *format, ...)
{
    bool bold = tarn__in_colour();
    va_list arguments;
    va_start(arguments, format);
    fputs(bold ? "\033[1m" : "", stdout);
    vprintf(format, arguments);
    fputs(bold ? "\033[0m\n" : "\n", stdout);
    va_end(arguments);
}

/* Of the terminal now: it may be resized. 80 where there is none. */
int tarn__columns(void)
{
    struct winsize size = {0};
    int count = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    return count < TARN__MAX_COLUMNS ? count : TARN__MAX_COLUMNS;
}

/* Bytes of a line that fit into `width` columns: up to the last space after the indent, else to the last '|' of a list
 * of values, if there is one. Wide characters count as one column. */
static size_t fitting(const char *line, size_t length, int width, int indent)
{
    int columns = 0;
    size_t last = 0, last_bar = 0;
    for (size_t i = 0; i < length; i++) {
        columns += ((unsigned char)line[i] & 0xC0) != 0x80; /* UTF-8: one column per code point */
        if (columns > width)
            return last ? last : last_bar ? last_bar : i;
        if (line[i] == ' ' && columns > indent + 1)
            last = i;
        if (line[i] == '|' && columns > indent + 1)
            last_bar = i + 1;
    }
    return length;
}

/* Prints one line, without its line break; continuation lines are indented. */
static void print_line(const char *line, size_t length, int width, int indent)
{
    size_t first = fitting(line, length, width, indent);
    printf("%.*s\n", (int)first, line);
    for (size_t at = first; at < length;) {
        at += line[at] == ' ';
        size_t count = fitting(line + at, length - at, width - indent, 0);
        printf("%*s%.*s\n", indent, "", (int)count, line + at);
        at += count;
    }
}

void tarn__print_wrapped(const char *text, int indent)
{
    int width = tarn__on_terminal() ? tarn__columns() : 0;
    /* a pipe, or a terminal too narrow for an indent */
    if (width < 2 * indent) {
        fputs(text, stdout);
        return;
    }
    for (const char *end; *text; text = end + (*end == '\n')) {
        end = text + strcspn(text, "\n");
        print_line(text, (size_t)(end - text), width, indent);
    }
}

void tarn__print_option(const char *left, const char *help, const char *bounds, const char *default_value)
{
    enum { COLUMN = 25, LEFT = COLUMN - 4 }; /* of the help; widest left side next to it */
    char line[1536];
    const char *own = strrchr(help, '['); /* the default that the help ends with */
    bool ends_so = own && own > help && own[-1] == ' ' && help[strlen(help) - 1] == ']';
    int text = (int)(ends_so ? own - 1 - help : (ptrdiff_t)strlen(help));
    bool is_apart = strlen(left) > LEFT;
    if (is_apart) {
        snprintf(line, sizeof(line), "  %s\n", left);
        tarn__print_wrapped(line, COLUMN);
    }
    snprintf(line, sizeof(line), "%s%-*s %.*s%s%s%s%s%s\n", is_apart ? "" : "  ", is_apart ? COLUMN - 1 : LEFT + 1,
             is_apart ? "" : left, text, help, bounds, help + text, default_value[0] ? " [" : "", default_value,
             default_value[0] ? "]" : "");
    tarn__print_wrapped(line, COLUMN);
}

/* "95 s", and from two minutes on "0:02:00". */
const char *tarn__time_text(double seconds, char text[32])
{
    long long whole = (long long)(seconds + 0.5);
    if (whole < 120)
        snprintf(text, 32, "%lld s", whole);
    else
        snprintf(text, 32, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    return text;
}

/* Unlike tarn__in_colour(), NO_COLOR does not matter: redrawing needs no colour. */
bool tarn__on_terminal(void)
{
    const char *kind = getenv("TERM");
    return isatty(STDOUT_FILENO) && !(kind && strcmp(kind, "dumb") == 0);
}

/* "512 B", "1 KiB", "1.5 GiB": a digit after the point only where the number needs one. */
const char *tarn__bytes_text(int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    static char buffers[8][24];
    static int turn;
    char *text = buffers[turn++ % 8];
    double amount = (double)bytes;
    int unit = 0;
    for (; amount >= 1024 && unit < 4; unit++)
        amount /= 1024;
    snprintf(text, sizeof(buffers[0]), amount == (double)(int64_t)amount ? "%.0f %s" : "%.1f %s", amount, units[unit]);
    return text;
}

/* The escaped string; the caller frees it. NULL without memory. */
static char *escape(const char *text, size_t length, bool keep_lines)
{
    size_t bytes = tarn_string_escape(NULL, 0, text, length, keep_lines);
    char *shown = malloc(bytes + 1);
    if (shown)
        tarn_string_escape(shown, bytes + 1, text, length, keep_lines);
    return shown;
}

const char *tarn__escaped(const char *text)
{
    static char *buffers[8];
    static int turn;
    char **buffer = &buffers[turn++ % 8];
    free(*buffer);
    *buffer = escape(text, text ? strlen(text) : 0, false);
    return *buffer ? *buffer : "?";
}

void tarn__print_lines(const char *text, size_t length)
{
    char *shown = escape(text, length, true);
    fputs(shown ? shown : "?", stdout);
    free(shown);
}

/* To a file or pipe byte for byte: what a model wrote is the output there. */
void tarn__print_generated(const char *text, size_t length)
{
    if (isatty(STDOUT_FILENO))
        tarn__print_lines(text, length);
    else
        fwrite(text, 1, length, stdout);
}

/* A backslash is doubled, so that the output is unambiguous. */
void tarn__print_token(const char *piece, size_t length)
{
    for (size_t i = 0, bytes; i < length; i += bytes ? bytes : 1) {
        char shown[8];
        unsigned char c = (unsigned char)piece[i];
        bytes = tarn__utf8_bytes(piece + i, length - i);
        if (bytes == 0 || c < 0x20 || c == 0x7F)
            printf(c == '\n' || c == '\t' || c == '\r' ? "\\%c" : "\\x%02X", c == '\n'   ? 'n'
                                                                             : c == '\t' ? 't'
                                                                             : c == '\r' ? 'r'
                                                                                         : c);
        else if (tarn_string_escape(shown, sizeof(shown), piece + i, bytes, false) > 0)
            fputs(c == '\\' ? "\\\\" : shown, stdout);
    }
}
