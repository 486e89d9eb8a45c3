/* config_json.h: what reading and writing of config.json files share. */
#ifndef TARN__CONFIG_JSON_H
#define TARN__CONFIG_JSON_H

#include <stdio.h>

#include "models/lm/arch.h"

/* State of one read. */
typedef struct tarn__config_reader {
    const char *function;
    const tarn__json_file *json;
    const tarn__arch *arch;
    tarn_lm_config c;
} tarn__config_reader;

/* True if a key is there and not null; false for NULL. */
bool tarn__config_has(const tarn__config_reader *r, const char *key);

/* Raises an unsupported setting. Always false. */
bool tarn__config_unsupported(const tarn__config_reader *r, const char *key, const char *what);

/* A positive number, or the default. */
bool tarn__config_real(const tarn__config_reader *r, const char *key, double default_value, double *value);

/* RoPE (config_rope.c). */
bool tarn__config_read_rope(tarn__config_reader *r);
bool tarn__config_write_rope(const tarn_lm_config *c, tarn__json_file *json);

#endif
