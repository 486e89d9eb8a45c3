/* command.c: running the command, and reading the JSON it prints. */
#include "support/command.h"

#include <ctype.h>
#include <sys/wait.h>

#include "support/check.h"

char command_output[1 << 20];

const char *command_line(const char *format, ...)
{
    static char text[4][6000];
    static int turn;
    va_list arguments;
    turn = (turn + 1) % 4;
    va_start(arguments, format);
    vsnprintf(text[turn], sizeof(text[turn]), format, arguments);
    va_end(arguments);
    return text[turn];
}

int run_command(const char *arguments)
{
    char line[8192];
    const char *command = getenv("TARN_COMMAND");
    if (!command)
        skip();
    snprintf(line, sizeof(line), "\"%s\" %s", command, arguments);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t count = fread(command_output, 1, sizeof(command_output) - 1, pipe);
    command_output[count] = 0;
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void expect_command(const char *arguments, int status, const char *text)
{
    int found = run_command(arguments);
    if (found != status || !strstr(command_output, text))
        fail_msg("tarn %s: status %d instead of %d, or no '%s' in:\n%s", arguments, found, status, text,
                 command_output);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static const char *value(const char *at);

static const char *blank(const char *at)
{
    while (*at == ' ' || *at == '\t')
        at++;
    return at;
}

/* Each reads one thing and returns where it ends; NULL where it is none. */
static const char *string(const char *at)
{
    if (*at++ != '"')
        return NULL;
    for (; *at != '"'; at++) {
        if ((unsigned char)*at < 0x20)
            return NULL;
        if (*at == '\\' && !strchr("\"\\/bfnrtu", *++at))
            return NULL;
    }
    return at + 1;
}

static const char *number(const char *at)
{
    char *end;
    if (*at != '-' && !isdigit((unsigned char)*at))
        return NULL;
    strtod(at, &end);
    return end;
}

static const char *members(const char *at, char close)
{
    at = blank(at + 1);
    if (*at == close)
        return at + 1;
    for (;;) {
        if (close == '}') {
            at = string(blank(at));
            at = at ? blank(at) : NULL;
            if (!at || *at++ != ':')
                return NULL;
        }
        at = value(blank(at));
        at = at ? blank(at) : NULL;
        if (!at || (*at != ',' && *at != close))
            return NULL;
        if (*at++ == close)
            return at;
    }
}

static const char *value(const char *at)
{
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0)
            return at + strlen(words[i]);
    return *at == '{' ? members(at, '}') : *at == '[' ? members(at, ']') : *at == '"' ? string(at) : number(at);
}

int command_objects(const char *arguments)
{
    int count = 0;
    assert_int_equal(run_command(arguments), 0);
    for (const char *at = command_output; *at; count++) {
        const char *end = *at == '{' ? value(at) : NULL;
        if (!end || *end != '\n')
            fail_msg("tarn %s: line %d is no JSON object:\n%.300s", arguments, count + 1, at);
        at = end + 1;
    }
    return count;
}
