/* protobuf.c: protobuf's wire format: a varint with field number and wire type, then the value. 08 96 01 is field 1, a
 * varint, 150; 12 02 68 69 is field 2, two bytes, "hi". The file is not trusted: no length leads beyond the message. */
#include "text/files/protobuf.h"

#include <string.h>

#include "base/error.h"

/* Raises an error at a byte of the file. Is -1. */
static int raise_at(const tarn__message *m, const char *at, const char *problem)
{
    tarn__raise(TARN_ERROR_FORMAT, "%s: '%s', byte %zu: %s; the file is damaged, incomplete, or not a tokenizer.model",
                m->function, m->name, (size_t)(at - m->file), problem);
    return -1;
}

/* Reads a varint: seven bits per byte, lowest first, at most ten bytes; bits above 64 are an error. */
static bool read_varint(tarn__message *m, uint64_t *value)
{
    const char *begin = m->at;
    *value = 0;
    for (int shift = 0; shift < 70 && m->at < m->end; shift += 7) {
        unsigned char byte = (unsigned char)*m->at++;
        if (shift == 63 && byte > 1)
            break;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return true;
    }
    raise_at(m, begin, "a varint does not end");
    return false;
}

/* Reads a little-endian value of 4 or 8 bytes. */
static bool read_bits(tarn__message *m, int bytes, uint64_t *value)
{
    if (m->end - m->at < bytes)
        return raise_at(m, m->at, "a value is incomplete") > 0;
    *value = 0;
    for (int i = 0; i < bytes; i++)
        *value |= (uint64_t)(unsigned char)*m->at++ << 8 * i;
    return true;
}

/* Reads a length and skips that many bytes. */
static bool read_bytes(tarn__message *m, tarn__field *field)
{
    uint64_t length;
    const char *begin = m->at;
    if (!read_varint(m, &length))
        return false;
    if (length > (uint64_t)(m->end - m->at))
        return raise_at(m, begin, "a length exceeds the message") > 0;
    field->bytes = m->at;
    field->length = (size_t)length;
    m->at += length;
    return true;
}

/* Wire types 3 and 4 (groups) are obsolete and an error, as are 6 and 7. */
int tarn__message_next(tarn__message *m, tarn__field *field)
{
    uint64_t key;
    const char *begin = m->at;
    *field = (tarn__field){0};
    if (m->at == m->end)
        return 0;
    if (!read_varint(m, &key))
        return -1;
    if (key >> 3 == 0 || key >> 3 > 536870911)
        return raise_at(m, begin, "a field number is out of range");
    field->number = (uint32_t)(key >> 3);
    field->wire = (tarn__wire)(key & 7);
    switch (field->wire) {
    case TARN__WIRE_VARINT: return read_varint(m, &field->value) ? 1 : -1;
    case TARN__WIRE_I64: return read_bits(m, 8, &field->value) ? 1 : -1;
    case TARN__WIRE_I32: return read_bits(m, 4, &field->value) ? 1 : -1;
    case TARN__WIRE_LEN: return read_bytes(m, field) ? 1 : -1;
    }
    return raise_at(m, begin, "a field has an unsupported wire type");
}

/* Raises an error for another wire type than the format's. */
static bool is_wire(const tarn__message *m, const tarn__field *field, tarn__wire wire)
{
    return field->wire == wire || raise_at(m, m->at, "a field has another wire type than the format") > 0;
}

/* The result keeps the file's beginning, so that errors inside give offsets in the file. */
bool tarn__message_inside(const tarn__message *message, const tarn__field *field, tarn__message *inside)
{
    *inside = *message;
    inside->at = field->bytes;
    inside->end = field->length ? field->bytes + field->length : field->bytes; /* an empty field has no bytes: NULL */
    return is_wire(message, field, TARN__WIRE_LEN);
}

/* Any value but 0 is true. */
bool tarn__field_bool(const tarn__message *message, const tarn__field *field, bool *value)
{
    *value = field->value != 0;
    return is_wire(message, field, TARN__WIRE_VARINT);
}

/* Negative int32 values are sign-extended to 64 bits on the wire: the low 32 bits are the value. */
bool tarn__field_int(const tarn__message *message, const tarn__field *field, int64_t *value)
{
    *value = (int32_t)(uint32_t)field->value;
    return is_wire(message, field, TARN__WIRE_VARINT);
}

/* The bits of an I32 field, not its value. */
bool tarn__field_float(const tarn__message *message, const tarn__field *field, float *value)
{
    uint32_t bits = (uint32_t)field->value;
    memcpy(value, &bits, sizeof(*value));
    return is_wire(message, field, TARN__WIRE_I32);
}
