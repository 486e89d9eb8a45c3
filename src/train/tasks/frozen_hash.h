/* frozen_hash.h: proof that what is frozen stays as it is: a number for each tensor that is not trained, taken when a
 * run begins, kept with its checkpoints, and held against the tensors when it goes on and when it ends. */
#ifndef TARN__FROZEN_H
#define TARN__FROZEN_H

#include <stdbool.h>
#include <stdint.h>
#include <tarn/nn.h>

typedef struct tarn__frozen_hash {
    int count, room;
    char **name; /* owned, as seen from the model */
    uint64_t *hash;
    uint64_t all; /* of names and hashes together; 0: nothing is frozen */
} tarn__frozen_hash;

/* Looks at every parameter and buffer of a model that is not trained. The same bits give the same numbers on any
 * device. False with an error; free it then too. */
bool tarn__frozen_hash_compute(const char *function, const tarn_module *model, tarn__frozen_hash *frozen);
void tarn__frozen_hash_free(tarn__frozen_hash *frozen); /* all zero is allowed */

/* Raises unless both are the same; the error names the first tensor that differs, `where` the model was read from, and
 * what it was held against. */
bool tarn__frozen_hash_check(const char *function, const tarn__frozen_hash *now, const tarn__frozen_hash *before,
                             const char *where, const char *against);

/* To frozen.json of a folder, whole or not at all, and back. Errors as with any file of ours. */
bool tarn__frozen_hash_write(const char *function, const tarn__frozen_hash *frozen, const char *path);
bool tarn__frozen_hash_read(const char *function, const char *path, tarn__frozen_hash *frozen);

#endif
