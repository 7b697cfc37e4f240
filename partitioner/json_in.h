/* Reading JSON files that were not written by us, or were edited since: every mistake is one
 * message "FILE: where: what". */
#ifndef MGPU_PARTITIONER_JSON_IN_H
#define MGPU_PARTITIONER_JSON_IN_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

/* Parses a file of at most 64 MiB that holds one object. Free with json_object_put. */
int mgpu_json_read(struct json_object **out, const char *path);

/* Fails for a key of `object` that is not among the NULL-terminated `known` (with the nearest). */
int mgpu_json_keys(struct json_object *object, const char *where, const char *const *known);

/* Member `key` of `object`. A missing one leaves *out as it is and succeeds, unless `needed`. A
 * wrong type or a number out of [low, high] fails naming where and key. Text is borrowed. */
int mgpu_json_number(double *out, struct json_object *object, const char *where, const char *key,
                     bool needed, double low, double high);
int mgpu_json_integer(int64_t *out, struct json_object *object, const char *where, const char *key,
                      bool needed, int64_t low, int64_t high);
int mgpu_json_bool(bool *out, struct json_object *object, const char *where, const char *key);
int mgpu_json_text(const char **out, struct json_object *object, const char *where, const char *key,
                   bool needed);
int mgpu_json_object(struct json_object **out, struct json_object *object, const char *where,
                     const char *key, bool needed);
int mgpu_json_array(struct json_object **out, struct json_object *object, const char *where,
                    const char *key, bool needed);

/* Element i of an array, which must be an object. */
int mgpu_json_item(struct json_object **out, struct json_object *array, const char *where, int i);

#endif
