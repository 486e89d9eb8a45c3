/* json.c: the JSON writer. */
#include "cli/json.h"

#include <math.h>

static void write_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(to, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(to, "\\u%04x", *c);
        else
            fputc(*c, to);
    }
    fputc('"', to);
}

static void begin(tarn__json *json, const char *key)
{
    if (json->follows)
        fputs(", ", json->to);
    json->follows = true;
    if (key) {
        write_text(json->to, key);
        fputs(": ", json->to);
    }
}

void tarn__json_open(tarn__json *json, const char *key, char bracket)
{
    begin(json, key);
    fputc(bracket, json->to);
    json->follows = false;
}

void tarn__json_close(tarn__json *json, char bracket)
{
    fputc(bracket, json->to);
    json->follows = true;
}

void tarn__json_end(tarn__json *json)
{
    tarn__json_close(json, '}');
    fputc('\n', json->to);
    fflush(json->to);
    json->follows = false;
}

void tarn__json_text(tarn__json *json, const char *key, const char *text)
{
    begin(json, key);
    if (text)
        write_text(json->to, text);
    else
        fputs("null", json->to);
}

void tarn__json_whole(tarn__json *json, const char *key, int64_t number)
{
    begin(json, key);
    fprintf(json->to, "%lld", (long long)number);
}

void tarn__json_real(tarn__json *json, const char *key, double number, int digits)
{
    begin(json, key);
    if (isfinite(number))
        fprintf(json->to, "%.*f", digits, number);
    else
        fputs("null", json->to);
}

void tarn__json_bool(tarn__json *json, const char *key, bool value)
{
    begin(json, key);
    fputs(value ? "true" : "false", json->to);
}

void tarn__json_null(tarn__json *json, const char *key)
{
    begin(json, key);
    fputs("null", json->to);
}

void tarn__json_shape(tarn__json *json, const char *key, tarn_shape shape)
{
    tarn__json_open(json, key, '[');
    for (int i = 0; i < shape.rank; i++)
        tarn__json_whole(json, NULL, shape.size[i]);
    tarn__json_close(json, ']');
}
