/* protobuf.h: walking through the fields of a protobuf message. Nothing is trusted: every length is checked before it
 * is used. */
#ifndef TARN__PROTOBUF_H
#define TARN__PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A message that is being read. */
typedef struct tarn__message {
    const char *function, *name; /* for errors: who asks, and the file */
    const char *file;            /* the file's first byte: errors say where */
    const char *at, *end;
} tarn__message;

typedef enum tarn__wire {
    TARN__WIRE_VARINT = 0,
    TARN__WIRE_I64 = 1,
    TARN__WIRE_LEN = 2,
    TARN__WIRE_I32 = 5
} tarn__wire;

typedef struct tarn__field {
    uint32_t number;
    tarn__wire wire;
    uint64_t value;    /* a number; or the bits of four or eight bytes */
    const char *bytes; /* TARN__WIRE_LEN: borrowed from the file */
    size_t length;
} tarn__field;

/* The next field: 1; 0 behind the last; -1 with an error. */
int tarn__message_next(tarn__message *message, tarn__field *field);

/* The message in a field. False with an error where it is none. */
bool tarn__message_inside(const tarn__message *message, const tarn__field *field, tarn__message *inside);

/* A field as true or false, as an int32, as a float. False with an error where it is of another wire type. */
bool tarn__field_bool(const tarn__message *message, const tarn__field *field, bool *value);
bool tarn__field_int(const tarn__message *message, const tarn__field *field, int64_t *value);
bool tarn__field_float(const tarn__message *message, const tarn__field *field, float *value);

#endif
