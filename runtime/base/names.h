/* Names, and a table from them to things, in an arena. */
#ifndef MGPU_BASE_NAMES_H
#define MGPU_BASE_NAMES_H

#include "runtime/base/memory.h"

#include <stdbool.h>

bool mgpu_ends_with(const char *name, const char *end);

struct mgpu_names;

struct mgpu_names *mgpu_names_new(struct mgpu_arena *arena);

/* The thing called `name`, or NULL. */
void *mgpu_names_get(const struct mgpu_names *names, const char *name);

/* Adds or replaces. Borrows `name` and `thing`, which is not NULL. */
void mgpu_names_set(struct mgpu_names *names, const char *name, const void *thing);

#endif
