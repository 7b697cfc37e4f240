/* Named numbers and texts that outlive a process: what a checkpoint keeps besides arrays.
 *
 * One function says what is kept; saving and restoring call the same one:
 *
 *     static int keep(struct counter *c, struct mgpu_record *r)
 *     {
 *         MGPU_TRY(mgpu_record_int(r, "counter.steps", &c->steps));
 *         return mgpu_record_real(r, "counter.best", &c->best);
 *     }
 *
 * A record that saves appends the values; one that restores (`restores`, filled by whoever read the
 * file) sets them, exactly as they were.
 */
#ifndef MGPU_BASE_RECORD_H
#define MGPU_BASE_RECORD_H

#include "runtime/base/memory.h"

#include <stdbool.h>

enum mgpu_field_kind { MGPU_FIELD_INT, MGPU_FIELD_REAL, MGPU_FIELD_TEXT };

struct mgpu_field {
    const char *name;
    enum mgpu_field_kind kind;
    int64_t integer;
    double real;
    const char *text;
};

struct mgpu_record {
    struct mgpu_arena *arena; /* of names and texts */
    bool restores;
    int count;
    struct mgpu_field *field; /* grows; mgpu_record_free */
};

void mgpu_record_init(struct mgpu_record *record, struct mgpu_arena *arena);
void mgpu_record_free(struct mgpu_record *record); /* not the arena */

/* Saves or restores one value. Restoring what the record lacks, or has as another kind, is
 * MGPU_EINVALID. A text that is restored belongs to the record's arena. */
int mgpu_record_int(struct mgpu_record *record, const char *name, int64_t *value);
int mgpu_record_real(struct mgpu_record *record, const char *name, double *value);
int mgpu_record_text(struct mgpu_record *record, const char *name, const char **value);

/* Whether the record has this field. */
bool mgpu_record_has(const struct mgpu_record *record, const char *name);

/* Appends a field, for whoever reads a file; the name is copied. */
struct mgpu_field *mgpu_record_add(struct mgpu_record *record, const char *name,
                                   enum mgpu_field_kind kind);

#endif
