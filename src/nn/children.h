/* children.h: modules put together from parts. */
#ifndef TARN__CHILDREN_H
#define TARN__CHILDREN_H

#include <tarn/nn.h>

/* Adds children under their names. Takes them, on failure too (one that is NULL failed before); the module is freed
 * then, and the result is NULL. */
tarn_module *tarn__with_children(tarn_module *module, const char *const *names, tarn_module *const *children,
                                 int count);

#endif
