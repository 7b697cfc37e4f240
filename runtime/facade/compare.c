/* What is in files of weights, and whether two hold the same. */
#include "exporter/checkpoint.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/facade/weights_file.h"
#include "runtime/mgpu.h"

#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void print_object(FILE *to, struct json_object *o)
{
    fprintf(
        to, "%s\n",
        json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(o);
}

static struct json_object *text(const char *s)
{
    return json_object_new_string(s);
}

/* ---- --list ---------------------------------------------------------------------------------- */

static struct json_object *describe(const struct mgpu_checkpoint *c,
                                    const struct mgpu_checkpoint_tensor *t)
{
    struct json_object *o = json_object_new_object(), *shape = json_object_new_array();
    for (int i = 0; i < t->rank; i++)
        json_object_array_add(shape, json_object_new_int64(t->dims[i]));
    json_object_object_add(o, "name", text(t->name));
    json_object_object_add(o, "layer", text(t->layer));
    json_object_object_add(o, "variable", text(t->leaf));
    json_object_object_add(o, "shape", shape);
    json_object_object_add(o, "type", text(mgpu_dtype_name(t->type)));
    json_object_object_add(o, "weight", json_object_new_boolean(t->weight));
    if (t->slot) {
        json_object_object_add(o, "slot", text(t->slot));
        json_object_object_add(o, "of", text(c->tensor[t->slot_of].name));
    }
    return o;
}

static void list_json(const struct mgpu_checkpoint *c, FILE *to)
{
    struct json_object *o = json_object_new_object(), *list = json_object_new_array();
    for (int i = 0; i < c->count; i++)
        json_object_array_add(list, describe(c, &c->tensor[i]));
    json_object_object_add(o, "kind", text(mgpu_checkpoint_kind_name(c->kind)));
    json_object_object_add(o, "weights", json_object_new_int(c->weights));
    json_object_object_add(o, "others", json_object_new_int(c->count - c->weights));
    json_object_object_add(o, "unwrapped", text(c->unwrapped ? c->unwrapped : ""));
    json_object_object_add(o, "tensors", list);
    print_object(to, o);
}

/* Names are the file's: nothing in them reaches a terminal as it is. */
static const char *plain(const struct mgpu_checkpoint *c, const char *name)
{
    size_t size = 4 * strlen(name) + 8;
    char *out = mgpu_arena_alloc(c->arena, size);
    mgpu_plain_text(out, size, name);
    return out;
}

static void list_text(const struct mgpu_checkpoint *c, FILE *to)
{
    char shape[MGPU_SHAPE_TEXT];
    fprintf(to, "%s: %s, %d weights%s%s\n", c->path, mgpu_checkpoint_kind_name(c->kind), c->weights,
            c->unwrapped ? ", " : "", c->unwrapped ? c->unwrapped : "");
    for (int i = 0; i < c->count; i++) {
        const struct mgpu_checkpoint_tensor *t = &c->tensor[i];
        bool known = *t->layer && c->kind < MGPU_CHECKPOINT_SAFETENSORS;
        fprintf(to, "  %s %s %s%s%s%s%s", plain(c, t->name), mgpu_dtype_name(t->type),
                mgpu_shape_text(shape, t->rank, t->dims), known ? "  " : "",
                known ? plain(c, t->layer) : "", known && *t->leaf ? " " : "",
                known ? plain(c, t->leaf) : "");
        if (t->slot)
            fprintf(to, "  (%s of %s)\n", t->slot, plain(c, c->tensor[t->slot_of].name));
        else
            fputs(t->weight ? "\n" : "  (no weight)\n", to);
    }
}

int mgpu_weights_list(const char *path, bool json, FILE *to)
{
    struct mgpu_checkpoint *c;
    MGPU_TRY(mgpu_checkpoint_open(&c, path, true));
    if (json)
        list_json(c, to);
    else
        list_text(c, to);
    mgpu_checkpoint_close(c);
    return 0;
}

/* ---- --compare ------------------------------------------------------------------------------- */

struct side { /* names and contents of one file */
    const char *path;
    struct mgpu_named_array *array; /* of type MGPU_UNDEFINED: the model has it, the file has not */
    int count;
    struct mgpu_weights_result match; /* with a model */
};

struct comparison {
    FILE *to;
    struct json_object *list; /* NULL: lines of text */
    int same, differ;         /* tensors */
    int apart;                /* of these, without one of that name on the other side */
};

static void say(struct comparison *c, const char *name, const char *what, double most)
{
    if (!c->list) {
        char line[8192];
        mgpu_plain_text(line, sizeof line, name);
        fprintf(c->to, "%s: ", line);
        mgpu_plain_text(line, sizeof line, what);
        fputs(line, c->to);
        if (most >= 0)
            fprintf(c->to, " %.9g", most);
        fputc('\n', c->to);
        return;
    }
    struct json_object *o = json_object_new_object();
    json_object_object_add(o, "name", text(name));
    json_object_object_add(o, "result", text(what));
    if (most >= 0)
        json_object_object_add(o, "difference", json_object_new_double(most));
    json_object_array_add(c->list, o);
}

static double largest_difference(const struct mgpu_array *a, const struct mgpu_array *b)
{
    double most = 0;
    for (int64_t i = 0; i < mgpu_array_count(a); i++) {
        double x = mgpu_get_double(a->data, a->type, i), y = mgpu_get_double(b->data, b->type, i);
        double d = x == y || (isnan(x) && isnan(y)) ? 0 : fabs(x - y);
        most = d > most || isnan(d) ? d : most;
    }
    return isnan(most) ? INFINITY : most;
}

static void compare_arrays(struct comparison *c, const char *name, const struct mgpu_array *a,
                           const struct mgpu_array *b)
{
    char x[MGPU_SHAPE_TEXT], y[MGPU_SHAPE_TEXT], what[2 * MGPU_SHAPE_TEXT + 16];
    bool same_shape =
        a->rank == b->rank && !memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims);
    double most = same_shape ? largest_difference(a, b) : -1;
    if (same_shape && most == 0) {
        c->same++;
        return;
    }
    c->differ++;
    snprintf(what, sizeof what, "%s and %s", mgpu_shape_text(x, a->rank, a->dims),
             mgpu_shape_text(y, b->rank, b->dims));
    say(c, name, same_shape ? "differs by" : what, most);
}

static void say_apart(struct comparison *c, const char *name, const char *where)
{
    say(c, name, where, -1);
    c->differ++;
    c->apart++;
}

static const struct mgpu_array *contents_of(const struct mgpu_names *names, const char *name)
{
    const struct mgpu_named_array *a = mgpu_names_get(names, name);
    return a && a->array.type != MGPU_UNDEFINED ? &a->array : NULL;
}

static void name_side(struct mgpu_names *names, const struct side *s)
{
    for (int i = 0; i < s->count; i++)
        mgpu_names_set(names, s->array[i].name, &s->array[i]);
}

/* Where the file has the model's weight in another shape: the text of that; else NULL. */
static const char *misfit(const struct side *s, int weight)
{
    for (int i = 0; i < s->match.lefts; i++)
        if (s->match.left[i].kind == MGPU_MATCH_SHAPE && s->match.left[i].weight == weight)
            return s->match.left[i].text;
    return NULL;
}

/* Sides have the same weights in the same order where there is a model. */
static void compare_one(struct comparison *c, const struct side *a, const struct side *b, int i,
                        const struct mgpu_array *y)
{
    const struct mgpu_named_array *x = &a->array[i];
    const char *why = misfit(a, i) ? misfit(a, i) : misfit(b, i);
    if (x->array.type != MGPU_UNDEFINED && y)
        compare_arrays(c, x->name, &x->array, y);
    else if (why)
        say_apart(c, x->name, why);
    else if (!y)
        say_apart(c, x->name, x->array.type == MGPU_UNDEFINED ? "in neither" : "only in the first");
    else
        say_apart(c, x->name, "only in the second");
}

static void tell_left(struct comparison *c, const struct side *s)
{
    for (int i = 0; i < s->match.lefts; i++)
        if (s->match.left[i].kind == MGPU_MATCH_LEFT) {
            say(c, s->path, s->match.left[i].text, -1);
            c->differ++;
        }
}

static void compare_sides(struct comparison *c, const struct side *a, const struct side *b)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_names *first = mgpu_names_new(arena), *second = mgpu_names_new(arena);
    name_side(first, a);
    name_side(second, b);
    for (int i = 0; i < a->count; i++)
        compare_one(c, a, b, i, contents_of(second, a->array[i].name));
    for (int i = 0; i < b->count; i++)
        if (!mgpu_names_get(first, b->array[i].name))
            say_apart(c, b->array[i].name, "only in the second");
    tell_left(c, a);
    tell_left(c, b);
    mgpu_arena_free(arena);
    if (c->apart && c->apart == c->same + c->differ && !a->match.total && !b->match.total)
        mgpu_note("no tensor of %s is called as one of %s: where names differ, --model MODEL.onnx "
                  "tells which is which",
                  a->path, b->path);
}

static int load_plain(struct side *out, const char *path, bool unwrap)
{
    struct mgpu_checkpoint *c;
    MGPU_TRY(mgpu_checkpoint_open(&c, path, unwrap));
    int rc = mgpu_file_arrays(&out->array, &out->count, c, MGPU_TARGET_NPZ, false);
    mgpu_checkpoint_close(c);
    return rc;
}

static int is_model(const char *path, bool *out)
{
    struct mgpu_checkpoint *c;
    MGPU_TRY(mgpu_checkpoint_open(&c, path, false));
    *out = c->kind == MGPU_CHECKPOINT_ONNX;
    mgpu_checkpoint_close(c);
    return 0;
}

static int load_side(struct side *out, const struct mgpu_convert_options *o)
{
    return o->model ? mgpu_file_arrays_of_model(&out->array, &out->count, out->path, o, &out->match)
                    : load_plain(out, out->path, !o->keep_wrapper);
}

/* Beside a file of weights a model gives the names and layouts. */
static int load_sides(struct side *x, struct side *y, const struct mgpu_convert_options *o)
{
    struct mgpu_convert_options with = *o;
    bool first, second;
    MGPU_TRY(is_model(x->path, &first));
    MGPU_TRY(is_model(y->path, &second));
    if (!with.model && first != second)
        with.model = first ? x->path : y->path;
    if (!with.model && (o->map || o->by_order))
        return mgpu_fail(MGPU_EUSAGE, "%s needs --model MODEL.onnx",
                         o->map ? "--map" : "--by-order");
    if (with.model && !strcmp(x->path, with.model) && !strcmp(y->path, with.model) &&
        (o->map || o->by_order))
        return mgpu_fail(MGPU_EUSAGE, "%s: both files are the model, whose names are its own",
                         o->map ? "--map" : "--by-order");
    MGPU_TRY(load_side(x, &with));
    return load_side(y, &with);
}

static void free_side(struct side *s)
{
    mgpu_named_arrays_free(s->array, s->count);
    mgpu_weights_result_free(&s->match);
}

int mgpu_weights_compare(const char *a, const char *b, const struct mgpu_convert_options *o,
                         bool json, FILE *to, int *differ)
{
    struct side x = {.path = a}, y = {.path = b};
    struct comparison c = {.to = to, .list = json ? json_object_new_array() : NULL};
    int rc = load_sides(&x, &y, o);
    if (rc == 0) {
        compare_sides(&c, &x, &y);
        *differ = c.differ;
        if (!json)
            fprintf(to, "%d of %d tensors are the same\n", c.same, c.same + c.differ);
    }
    if (rc == 0 && json) {
        struct json_object *all = json_object_new_object();
        json_object_object_add(all, "same", json_object_new_int(c.same));
        json_object_object_add(all, "different", json_object_new_int(c.differ));
        json_object_object_add(all, "total", json_object_new_int(c.same + c.differ));
        json_object_object_add(all, "tensors", json_object_get(c.list));
        print_object(to, all);
    }
    json_object_put(c.list);
    free_side(&x);
    free_side(&y);
    return rc;
}
