/* protobuf.h: iterating over the fields of a protobuf message. The input is not trusted: every length is checked
 * against the message before it is used. Nothing is copied. */
#ifndef TARN__PROTOBUF_H
#define TARN__PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A message being read; everything is borrowed. */
typedef struct tarn__message {
    const char *function, *name; /* for errors: the public function, and the file */
    const char *file;            /* the file's first byte: errors give offsets */
    const char *at, *end;
} tarn__message;

typedef enum tarn__wire {
    TARN__WIRE_VARINT = 0,
    TARN__WIRE_I64 = 1,
    TARN__WIRE_LEN = 2,
    TARN__WIRE_I32 = 5
} tarn__wire;

/* A field; `value` or `bytes` is set, by the wire type. */
typedef struct tarn__field {
    uint32_t number;   /* of the field in its message */
    tarn__wire wire;   /* how the value is encoded */
    uint64_t value;    /* VARINT, or the bits of I32 and I64 */
    const char *bytes; /* TARN__WIRE_LEN: borrowed from the file */
    size_t length;     /* of bytes */
} tarn__field;

/* Reads the next field: 1, 0 after the last, -1 with an error. */
int tarn__message_next(tarn__message *message, tarn__field *field);

/* The message or string in a field. False with an error if the field has another wire type. */
bool tarn__message_inside(const tarn__message *message, const tarn__field *field, tarn__message *inside);

/* A field as a bool, an int32, a float. False with an error if it has another wire type. */
bool tarn__field_bool(const tarn__message *message, const tarn__field *field, bool *value);
bool tarn__field_int(const tarn__message *message, const tarn__field *field, int64_t *value);
bool tarn__field_float(const tarn__message *message, const tarn__field *field, float *value);

#endif
