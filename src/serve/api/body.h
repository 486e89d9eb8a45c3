/* body.h: members of a request's body, each read and checked once.
 *
 * A member that is null counts as absent. A wrong type or range is an error that names the member; the first error of a
 * request stays. Members that nothing has read are refused at the end: none is ignored silently. */
#ifndef TARN__BODY_H
#define TARN__BODY_H

#include "serve/api/job.h"

enum { TARN__BODY_READ_MAX = 64 };

typedef struct tarn__body {
    json_t *object;
    tarn__api_error *error;
    const char *read[TARN__BODY_READ_MAX];
    int read_count;
} tarn__body;

/* The member; NULL: absent. */
json_t *tarn__body_member(tarn__body *fields, const char *name);

/* Values with bounds. `value` keeps what it has where the member is absent. False with an error. */
bool tarn__body_bool(tarn__body *fields, const char *name, bool *value);
bool tarn__body_int(tarn__body *fields, const char *name, int64_t low, int64_t high, int64_t *value);
bool tarn__body_real(tarn__body *fields, const char *name, double low, double high, double *value);

/* Borrowed from the body, with its length. */
bool tarn__body_string(tarn__body *fields, const char *name, const char **value, size_t *length);

/* Accepts a member that does not change the answer, whatever it holds. */
void tarn__body_skip(tarn__body *fields, const char *name);

/* Refuses a member that is not supported, unless it is absent, false, 0, "" or empty. */
bool tarn__body_unsupported(tarn__body *fields, const char *name);

/* Refuses members that were not read. */
bool tarn__body_end(tarn__body *fields);

#endif
