/* frozen_hash.h: proof that frozen weights do not change: a hash per tensor that is not trained, computed when a run
 * starts, stored with its checkpoints, and compared when the run is resumed and when it ends. */
#ifndef TARN__FROZEN_HASH_H
#define TARN__FROZEN_HASH_H

#include <stdbool.h>
#include <stdint.h>
#include <tarn/nn.h>

typedef struct tarn__frozen_tensor {
    char *name; /* owned, as seen from the model */
    uint64_t hash;
} tarn__frozen_tensor;

/* Hashes in the order of the model's parameters; owns its array. Zeroed is empty. */
typedef struct tarn__frozen_hash {
    int count, capacity;
    tarn__frozen_tensor *tensor;
    uint64_t all; /* of names and hashes together; 0: nothing is frozen */
} tarn__frozen_hash;

/* Hashes every parameter and buffer that is not trained. Bitwise identical tensors give equal hashes on any device.
 * False with an error; free it then too. */
bool tarn__frozen_hash_compute(const char *function, const tarn_module *model, tarn__frozen_hash *frozen);
void tarn__frozen_hash_free(tarn__frozen_hash *frozen); /* all zero is allowed */

/* Raises an error unless both are equal; it names the first tensor that differs, `where` the model was read from, and
 * `against`, the source of `before`. */
bool tarn__frozen_hash_check(const char *function, const tarn__frozen_hash *now, const tarn__frozen_hash *before,
                             const char *where, const char *against);

/* Writes frozen.json (an atomic write), and reads it. False with an error: I/O, or a malformed file. */
bool tarn__frozen_hash_write(const char *function, const tarn__frozen_hash *frozen, const char *path);
bool tarn__frozen_hash_read(const char *function, const char *path, tarn__frozen_hash *frozen);

#endif
