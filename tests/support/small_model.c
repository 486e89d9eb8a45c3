/* small_model.c: writes a small tokenizer.model: protobuf fields, one after the other. */
#include "support/small_model.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct out {
    char *at;
} out;

static void put_number(out *o, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *o->at++ = (char)(0x80 | (value & 0x7F));
    *o->at++ = (char)value;
}

static void put_whole(out *o, int field, uint64_t value)
{
    put_number(o, (uint64_t)field << 3);
    put_number(o, value);
}

static void put_bytes(out *o, int field, const char *bytes, size_t count)
{
    put_number(o, (uint64_t)field << 3 | 2);
    put_number(o, count);
    memcpy(o->at, bytes, count);
    o->at += count;
}

static void put_piece(out *o, const char *text, float score, int type)
{
    char inside[256];
    out i = {inside};
    put_bytes(&i, 1, text, strlen(text));
    put_number(&i, 2 << 3 | 5);
    memcpy(i.at, &score, 4); /* these tests run on little-endian machines, as tarn does */
    i.at += 4;
    if (type != 1)
        put_whole(&i, 3, (uint64_t)type);
    put_bytes(o, 1, inside, (size_t)(i.at - inside));
}

static void put_pieces(out *o, const small_model_options *options)
{
    static const char *const pieces[] = {"▁",  "h",   "e",     "l",  "o",  "w", "▁h", "he",
                                         "ll", "llo", "hello", "▁w", "▁▁", "é", "aa", "a"};
    put_piece(o, "<unk>", 0, 2);
    put_piece(o, "<s>", 0, 3);
    put_piece(o, "</s>", 0, 3);
    for (int i = 0; i < 256 - options->leave_out_byte; i++) {
        char name[8];
        snprintf(name, sizeof(name), "<0x%02X>", (unsigned)i);
        put_piece(o, name, 0, 6);
    }
    /* Later pieces have lower scores, but for "hello", which is better than "▁h". */
    for (int i = 0; i < (int)(sizeof(pieces) / sizeof(pieces[0])); i++)
        put_piece(o, pieces[i], strcmp(pieces[i], "hello") == 0 ? -5.5f : (float)-i, 1);
    if (options->more)
        put_piece(o, options->more, options->more_score, options->more_type ? options->more_type : 1);
}

size_t small_model(char *to, const small_model_options *options)
{
    char inside[256];
    out o = {to}, i = {inside};
    put_pieces(&o, options);
    put_whole(&i, 3, options->type ? (uint64_t)options->type : 2);
    put_whole(&i, 24, options->is_suffix);
    put_whole(&i, 35, !options->no_bytes);
    put_whole(&i, 43, UINT64_MAX); /* no pad: -1 */
    put_bytes(&o, 2, inside, (size_t)(i.at - inside));
    i.at = inside;
    put_bytes(&i, 1, "identity", 8);
    put_bytes(&i, 2, options->rules ? options->rules : "", options->rules ? strlen(options->rules) : 0);
    put_whole(&i, 3, !options->no_prefix);
    put_whole(&i, 4, options->squeezes);
    put_whole(&i, 5, 1);
    put_bytes(&o, 3, inside, (size_t)(i.at - inside));
    return (size_t)(o.at - to);
}
