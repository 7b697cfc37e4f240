/* Text as people type it after an option: "adam,lr=1e-3,nesterov", numbers, yes and no.
 *
 * All errors are MGPU_EUSAGE. `what` stands before the message: "lr: 'abc' is not a number".
 */
#ifndef MGPU_BASE_OPTION_TEXT_H
#define MGPU_BASE_OPTION_TEXT_H

#include "runtime/base/memory.h"

#include <stdbool.h>
#include <stdio.h>

struct mgpu_item {
    const char *name;
    const char *value; /* NULL: there was no '=' */
};

/* Cuts "name=value,name,..." at its commas; items and their text go to the arena. A value that
 * begins with one of `whole` (names that may hold commas; the longest counts) ends behind it. */
void mgpu_items_cut(struct mgpu_item **items, int *count, const char *text,
                    const char *const *whole, int whole_count, struct mgpu_arena *arena);

/* The length of the longest of `names` that `text` begins with and that ends there at the text's
 * end or before one of the characters `stops`; 0: none. */
size_t mgpu_longest_name(const char *text, const char *const *names, int count, const char *stops);

/* A finite number (or X/Y), a whole number (no fraction), within [low, high]. */
int mgpu_text_double(double *out, const char *what, const char *text, double low, double high);
int mgpu_text_int(int64_t *out, const char *what, const char *text, int64_t low, int64_t high);

/* 1, true, yes, on; 0, false, no, off; NULL is yes. */
int mgpu_text_bool(bool *out, const char *what, const char *text);

/* Fails with "unknown WHAT 'NAME'; did you mean 'nearest'?", or "... (known: a, b, c)" where none
 * is near. */
int mgpu_unknown_name(const char *what, const char *name, const char *const *names, int count);

/* The same, always with all that are known: for a few short words. */
int mgpu_unknown_word(const char *what, const char *name, const char *const *names, int count);

/* " 'TEXT'", a word of a command for a person to type into a shell. */
void mgpu_write_shell_word(FILE *to, const char *text);

#endif
