/* --report: what each initializer is, and what cannot be trained. */
#include "importer/report.h"
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "runtime/graph/fold.h"
#include "runtime/ref/ref.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

struct list {
    int count;
    char **text;
};

static void add(void *context, const char *text)
{
    struct list *l = context;
    l->text = mgpu_grow(l->text, (size_t)l->count, sizeof *l->text);
    l->text[l->count++] = mgpu_xstrdup(text);
}

/* Lowers once only to find what is not supported. Sizes that only data would tell are no fault. */
static void find_unsupported(struct mgpu_trainer *t, struct list *list)
{
    struct mgpu_graph *g = NULL;
    struct mgpu_lower_options o = t->lower;
    o.batch = t->options.batch > 0 ? t->options.batch : 0;
    o.training = true;
    o.unsupported = o.wrong = add;
    o.context = list;
    if (mgpu_lower(&g, t->model, t->weights, &o) < 0 && !list->count)
        mgpu_note("not checked whether every operator is supported: %s", mgpu_error());
    mgpu_graph_free(g);
}

static void print_json(FILE *to, const struct mgpu_trainer *t, const struct list *list)
{
    struct json_object *o = mgpu_weights_report_json(t->model, t->weights,
                                                     (const char *const *)list->text, list->count);
    fprintf(
        to, "%s\n",
        json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(o);
}

int mgpu_report(const char *model, const struct mgpu_options *options, bool json, FILE *to)
{
    mgpu_fold_set(mgpu_ref_fold);
    struct mgpu_trainer *t = mgpu_xcalloc(1, sizeof *t);
    struct list list = {0};
    t->arena = mgpu_arena_new();
    t->options = *options;
    t->path = mgpu_arena_string(t->arena, model);
    int rc = mgpu_settle_model(t);
    if (rc == 0)
        rc = mgpu_settle_data(t);
    if (rc == 0) {
        find_unsupported(t, &list);
        if (json)
            print_json(to, t, &list);
        else
            mgpu_weights_report_text(to, t->model, t->weights, (const char *const *)list.text,
                                     list.count);
    }
    for (int i = 0; i < list.count; i++)
        free(list.text[i]);
    free(list.text);
    mgpu_trainer_free(t);
    return rc;
}
