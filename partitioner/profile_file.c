/* Profiles in files. */
#include "exporter/atomic_file.h"
#include "partitioner/json_in.h"
#include "partitioner/profile_private.h"
#include "partitioner/signature.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key;
    size_t offset;
} rank_fields[] = {
    {"all_reduce_ms", offsetof(struct mgpu_profile_ranks, all_reduce_ms)},
    {"all_reduce_gb_s", offsetof(struct mgpu_profile_ranks, all_reduce_gb_s)},
    {"copy_ms", offsetof(struct mgpu_profile_ranks, copy_ms)},
    {"copy_gb_s", offsetof(struct mgpu_profile_ranks, copy_gb_s)},
    {"step_ms", offsetof(struct mgpu_profile_ranks, step_ms)},
    {"check_gb_s", offsetof(struct mgpu_profile_ranks, check_gb_s)},
};
enum { RANK_FIELDS = sizeof rank_fields / sizeof *rank_fields };

/* ---- Writing --------------------------------------------------------------------------------- */

static int by_entry(const void *a, const void *b)
{
    const struct mgpu_profile_entry *x = *(struct mgpu_profile_entry *const *)a;
    const struct mgpu_profile_entry *y = *(struct mgpu_profile_entry *const *)b;
    if (x->threads != y->threads)
        return x->threads - y->threads;
    return x->busy != y->busy ? x->busy - y->busy : strcmp(x->node, y->node);
}

static int by_ranks(const void *a, const void *b)
{
    const struct mgpu_profile_ranks *x = a, *y = b;
    return x->threads != y->threads ? x->threads - y->threads : x->ranks - y->ranks;
}

static void add_number(struct json_object *o, const char *key, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    json_object_object_add(o, key, json_object_new_double_s(strtod(text, NULL), text));
}

static struct json_object *nodes_json(const struct mgpu_profile *p)
{
    struct json_object *list = json_object_new_array();
    struct mgpu_profile_entry **sorted = mgpu_xcalloc((size_t)p->entries + 1, sizeof(void *));
    for (int i = 0; i < p->entries; i++)
        sorted[i] = p->entry[i];
    qsort(sorted, (size_t)p->entries, sizeof *sorted, by_entry);
    for (int i = 0; i < p->entries; i++) {
        struct json_object *o = json_object_new_object();
        json_object_object_add(o, "threads", json_object_new_int(sorted[i]->threads));
        json_object_object_add(o, "busy", json_object_new_int(sorted[i]->busy));
        json_object_object_add(o, "node", json_object_new_string(sorted[i]->node));
        add_number(o, "ms", sorted[i]->ms);
        json_object_array_add(list, o);
    }
    free(sorted);
    return list;
}

static struct json_object *ranks_json(const struct mgpu_profile *p)
{
    struct json_object *list = json_object_new_array();
    size_t n = (size_t)p->rank_sets;
    struct mgpu_profile_ranks *sorted = mgpu_xcalloc(n + 1, sizeof *sorted);
    for (size_t i = 0; i < n; i++)
        sorted[i] = p->ranks[i];
    qsort(sorted, n, sizeof *sorted, by_ranks);
    for (size_t i = 0; i < n; i++) {
        struct json_object *o = json_object_new_object();
        json_object_object_add(o, "threads", json_object_new_int(sorted[i].threads));
        json_object_object_add(o, "ranks", json_object_new_int(sorted[i].ranks));
        for (int k = 0; k < RANK_FIELDS; k++)
            add_number(o, rank_fields[k].key,
                       *(double *)((char *)&sorted[i] + rank_fields[k].offset));
        json_object_array_add(list, o);
    }
    free(sorted);
    return list;
}

static int by_plan(const void *a, const void *b)
{
    const struct mgpu_profile_plan *x = a, *y = b;
    return strcmp(x->plan, y->plan);
}

static struct json_object *plans_json(const struct mgpu_profile *p)
{
    struct json_object *list = json_object_new_array();
    struct mgpu_profile_plan *sorted = mgpu_xcalloc((size_t)p->plans + 1, sizeof *sorted);
    if (p->plans)
        memcpy(sorted, p->plan, sizeof *sorted * (size_t)p->plans);
    qsort(sorted, (size_t)p->plans, sizeof *sorted, by_plan);
    for (int i = 0; i < p->plans; i++) {
        struct json_object *o = json_object_new_object();
        json_object_object_add(o, "plan", json_object_new_string(sorted[i].plan));
        add_number(o, "ms", sorted[i].ms);
        json_object_array_add(list, o);
    }
    free(sorted);
    return list;
}

static struct json_object *profile_json(const struct mgpu_profile *p)
{
    struct json_object *root = json_object_new_object();
    json_object_object_add(root, "version", json_object_new_int(1));
    json_object_object_add(root, "machine", json_object_new_string(p->machine));
    json_object_object_add(root, "nodes", nodes_json(p));
    json_object_object_add(root, "ranks", ranks_json(p));
    json_object_object_add(root, "plans", plans_json(p));
    return root;
}

static const char *text_of(struct json_object *root)
{
    return json_object_to_json_string_ext(root,
                                          JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE);
}

int mgpu_profile_write(const struct mgpu_profile *p, const char *path)
{
    struct mgpu_atomic_file f;
    struct json_object *root = profile_json(p);
    const char *text = text_of(root);
    int rc = mgpu_atomic_open(&f, path);
    if (rc == 0) {
        rc = mgpu_atomic_write(&f, text, strlen(text));
        if (rc == 0)
            rc = mgpu_atomic_write(&f, "\n", 1);
        rc = rc < 0 ? mgpu_atomic_abort(&f, rc) : mgpu_atomic_commit(&f);
    }
    json_object_put(root);
    return rc;
}

void mgpu_profile_hash(const struct mgpu_profile *p, char hash[MGPU_PROFILE_HASH])
{
    struct json_object *root = profile_json(p);
    const char *text = text_of(root);
    snprintf(hash, MGPU_PROFILE_HASH, "%016llx",
             (unsigned long long)mgpu_hash_bytes(0, text, strlen(text)));
    json_object_put(root);
}

/* ---- Reading --------------------------------------------------------------------------------- */

static int read_node(struct mgpu_profile *p, struct json_object *o, const char *where)
{
    static const char *const keys[] = {"threads", "busy", "node", "ms", NULL};
    int64_t threads = 0, busy = 0;
    const char *node = NULL;
    double ms = 0;
    MGPU_TRY(mgpu_json_keys(o, where, keys));
    MGPU_TRY(mgpu_json_integer(&threads, o, where, "threads", true, 1, 4096));
    MGPU_TRY(mgpu_json_integer(&busy, o, where, "busy", true, 1, 4096));
    MGPU_TRY(mgpu_json_text(&node, o, where, "node", true));
    MGPU_TRY(mgpu_json_number(&ms, o, where, "ms", true, 0, 1e9));
    if (strlen(node) >= MGPU_SIGNATURE_TEXT)
        return mgpu_fail(MGPU_EINVALID, "%s: 'node' is longer than %d letters", where,
                         MGPU_SIGNATURE_TEXT - 1);
    mgpu_profile_add(p, (int)threads, (int)busy, node, ms);
    return 0;
}

static int read_ranks(struct mgpu_profile *p, struct json_object *o, const char *where)
{
    const char *keys[RANK_FIELDS + 3] = {"threads", "ranks"};
    struct mgpu_profile_ranks r = {0};
    int64_t threads = 0, ranks = 0;
    for (int k = 0; k < RANK_FIELDS; k++)
        keys[k + 2] = rank_fields[k].key;
    MGPU_TRY(mgpu_json_keys(o, where, keys));
    MGPU_TRY(mgpu_json_integer(&threads, o, where, "threads", true, 1, 4096));
    MGPU_TRY(mgpu_json_integer(&ranks, o, where, "ranks", true, 1, 4096));
    for (int k = 0; k < RANK_FIELDS; k++)
        MGPU_TRY(mgpu_json_number((double *)((char *)&r + rank_fields[k].offset), o, where,
                                  rank_fields[k].key, true, 0, 1e9));
    r.threads = (int)threads;
    r.ranks = (int)ranks;
    mgpu_profile_set_ranks(p, &r);
    return 0;
}

static int read_plan(struct mgpu_profile *p, struct json_object *o, const char *where)
{
    static const char *const keys[] = {"plan", "ms", NULL};
    const char *plan = NULL;
    double ms = 0;
    MGPU_TRY(mgpu_json_keys(o, where, keys));
    MGPU_TRY(mgpu_json_text(&plan, o, where, "plan", true));
    MGPU_TRY(mgpu_json_number(&ms, o, where, "ms", true, 0, 1e9));
    mgpu_profile_set_plan(p, plan, ms);
    return 0;
}

static int read_list(struct mgpu_profile *p, struct json_object *root, const char *key,
                     bool required,
                     int (*read)(struct mgpu_profile *, struct json_object *, const char *))
{
    struct json_object *list = NULL, *o;
    char where[64];
    MGPU_TRY(mgpu_json_array(&list, root, "profile", key, required));
    for (int i = 0; list && i < (int)json_object_array_length(list); i++) {
        snprintf(where, sizeof where, "%s[%d]", key, i);
        MGPU_TRY(mgpu_json_item(&o, list, key, i));
        MGPU_TRY(read(p, o, where));
    }
    return 0;
}

static int read_all(struct mgpu_profile *p, struct json_object *root)
{
    static const char *const keys[] = {"version", "machine", "nodes", "ranks", "plans", NULL};
    int64_t version;
    const char *machine = NULL;
    MGPU_TRY(mgpu_json_keys(root, "profile", keys));
    MGPU_TRY(mgpu_json_integer(&version, root, "profile", "version", true, 1, 1));
    MGPU_TRY(mgpu_json_text(&machine, root, "profile", "machine", true));
    p->machine = mgpu_arena_string(p->arena, machine);
    MGPU_TRY(read_list(p, root, "nodes", true, read_node));
    MGPU_TRY(read_list(p, root, "ranks", true, read_ranks));
    return read_list(p, root, "plans", false, read_plan);
}

int mgpu_profile_read(struct mgpu_profile **out, const char *path)
{
    struct json_object *root;
    struct mgpu_profile *p = mgpu_profile_new();
    *out = NULL;
    int rc = mgpu_json_read(&root, path);
    if (rc == 0)
        rc = mgpu_prefix(read_all(p, root), "%s", path);
    json_object_put(root);
    if (rc < 0)
        mgpu_profile_free(p);
    else
        *out = p;
    return rc;
}
