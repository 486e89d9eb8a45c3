/* jinja_lines.c: renders templates for tests/parity/jinja.py. Reads cases from the standard input, each a line with the
 * sizes of a template and of a context in JSON, then both; the time is 26 July 2024, 13:05:09. Answers with a line
 * `1 SIZE`, the output and the origin of each of its bytes, or `0 SIZE` and an error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/jinja.h"

static char *read_bytes(size_t size)
{
    char *bytes = malloc(size + 1);
    if (!bytes || fread(bytes, 1, size, stdin) != size)
        exit(1);
    return bytes;
}

static void answer(const char *template, size_t template_size, const char *json, size_t json_size)
{
    const struct tm now = {.tm_year = 124,
                           .tm_mon = 6,
                           .tm_mday = 26,
                           .tm_hour = 13,
                           .tm_min = 5,
                           .tm_sec = 9,
                           .tm_wday = 5,
                           .tm_yday = 207};
    tarn__buffer output = {0};
    tarn__jinja_masks masks = {{0}};
    tarn__jinja_program *program = tarn__jinja_compile("render", "template", template, template_size);
    tarn__jinja_context *context = tarn__jinja_context_json("render", json, json_size);
    if (context)
        tarn__jinja_context_set_time(context, &now);
    if (program && context && tarn__jinja_render(program, context, &output, &masks)) {
        printf("1 %zu\n", output.count);
        fwrite(output.data, 1, output.count, stdout);
        fwrite(masks.origins.data, 1, masks.origins.count, stdout);
    } else {
        const char *text = tarn_error();
        printf("0 %zu\n%s", strlen(text), text);
    }
    fflush(stdout);
    tarn_clear_error();
    tarn__buffer_free(&output, 1);
    tarn__buffer_free(&masks.origins, 1);
    tarn__jinja_context_free(context);
    tarn__jinja_program_free(program);
}

int main(void)
{
    size_t template_size, json_size;
    while (scanf("%zu %zu", &template_size, &json_size) == 2 && getchar() == '\n') {
        char *template = read_bytes(template_size), *json = read_bytes(json_size);
        answer(template, template_size, json, json_size);
        free(template);
        free(json);
    }
    return 0;
}
