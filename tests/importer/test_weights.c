/* Which initializer is which weight: against the cases that the frameworks made, and by small
 * models for the rules. */
#include "importer/weights.h"
#include "tests/test.h"

#include <dirent.h>
#include <json-c/json.h>
#include <sys/stat.h>

struct loaded {
    struct mgpu_onnx_file *file;
    struct mgpu_onnx_model *model;
    struct mgpu_weights *weights;
};

static const struct mgpu_weights_options plain;

static int load(struct loaded *l, const char *path, const struct mgpu_weights_options *options)
{
    *l = (struct loaded){0};
    MGPU_TRY(mgpu_onnx_read(&l->file, path));
    MGPU_TRY(mgpu_onnx_model_new(&l->model, l->file));
    return mgpu_weights_identify(&l->weights, l->model, options);
}

static void unload(struct loaded *l)
{
    mgpu_weights_free(l->weights);
    mgpu_onnx_model_free(l->model);
    mgpu_onnx_free(l->file);
}

/* ---- The cases ------------------------------------------------------------------------------ */

static bool has(struct json_object *list, const char *text)
{
    for (size_t i = 0; list && i < json_object_array_length(list); i++)
        if (!strcmp(json_object_get_string(json_object_array_get_idx(list, i)), text))
            return true;
    return false;
}

static struct json_object *field(struct json_object *o, const char *name)
{
    return json_object_object_get(o, name);
}

/* Weights of this role that an initializer holds, and the last of them. */
static int weights_of(const struct loaded *l, int initializer, enum mgpu_weight_role role,
                      int *last)
{
    int n = 0;
    for (int i = 0; i < l->weights->count; i++)
        for (int h = 0; h < l->weights->weight[i].holders; h++)
            if (l->weights->weight[i].holder[h].initializer == initializer &&
                l->weights->weight[i].role == role) {
                n++;
                *last = i;
            }
    return n;
}

static int node_called(const struct loaded *l, const char *name)
{
    for (int i = 0; i < l->model->node_total; i++)
        if (!strcmp(l->model->all[i]->name, name))
            return i;
    return -1;
}

/* Every parameter of a merged initializer is a weight of its own, of the right role. */
static void check_merged(const struct loaded *l, const char *name, struct json_object *parts,
                         const char *of)
{
    int seen[64], n = 0, last, all;
    for (size_t i = 0; i < json_object_array_length(parts) && n < 64; i++) {
        struct json_object *part = json_object_array_get_idx(parts, i);
        const char *node = json_object_get_string(field(part, "node"));
        bool statistic = !strcmp(json_object_get_string(field(part, "role")), "statistic");
        int w = mgpu_weights_of_use(l->weights, node_called(l, node),
                                    json_object_get_int(field(part, "input")), NULL);
        CHECK_(w >= 0, "%s: %s: use by %s is no weight", of, name, node);
        if (w < 0)
            continue;
        CHECK_(l->weights->weight[w].role == (statistic ? MGPU_ROLE_STATISTIC : MGPU_ROLE_TRAINED),
               "%s: %s: wrong role at %s", of, name, node);
        for (int j = 0; j < n; j++)
            CHECK_(seen[j] != w, "%s: %s: not split at %s", of, name, node);
        seen[n++] = w;
    }
    int initializer = mgpu_onnx_find_initializer(l->model, name);
    all = weights_of(l, initializer, MGPU_ROLE_TRAINED, &last) +
          weights_of(l, initializer, MGPU_ROLE_STATISTIC, &last);
    CHECK_(all == n, "%s: %s is split into %d, not %d", of, name, all, n);
}

/* The group of tied initializers that holds `name`, or NULL. */
static struct json_object *group_of(struct json_object *tied, const char *name)
{
    for (size_t i = 0; tied && i < json_object_array_length(tied); i++)
        if (has(json_object_array_get_idx(tied, i), name))
            return json_object_array_get_idx(tied, i);
    return NULL;
}

static void check_initializer(const struct loaded *l, int i, struct json_object *json,
                              const char *of)
{
    const char *name = l->model->initializer[i].name;
    struct json_object *merged = field(field(json, "merged"), name);
    bool trained =
        merged || has(field(json, "trainable"), name) || has(field(json, "frozen"), name);
    bool statistic = has(field(json, "statistics"), name);
    int last = -1, n = weights_of(l, i, MGPU_ROLE_TRAINED, &last);
    enum mgpu_weight_role role = l->weights->role[i];
    CHECK_((role == MGPU_ROLE_TRAINED) == trained, "%s: '%s' is %s (%s)", of, name,
           mgpu_weight_role_name(role), l->weights->note[i]);
    if (!merged)
        CHECK_((role == MGPU_ROLE_STATISTIC) == statistic, "%s: '%s' is %s", of, name,
               mgpu_weight_role_name(role));
    if (merged)
        check_merged(l, name, merged, of);
    else if (trained) {
        struct json_object *group = group_of(field(json, "tied"), name);
        int expected = group ? (int)json_object_array_length(group) : 1;
        CHECK_(n == 1, "%s: '%s' is %d weights", of, name, n);
        if (n == 1)
            CHECK_(l->weights->weight[last].holders == expected, "%s: '%s' is tied %d times", of,
                   name, l->weights->weight[last].holders);
    }
}

/* LSTM biases of TensorFlow exports: the second half belongs to nobody. */
static void check_unowned(const struct loaded *l, const char *of)
{
    bool tensorflow = l->model->producer == MGPU_PRODUCER_TENSORFLOW;
    for (int i = 0; i < l->model->node_total; i++) {
        const struct mgpu_onnx_node *node = l->model->all[i];
        bool lstm = !strcmp(node->type, "LSTM"), gru = !strcmp(node->type, "GRU");
        int w =
            (lstm || gru) && node->inputs > 3 ? mgpu_weights_of_use(l->weights, i, 3, NULL) : -1;
        if (w < 0)
            continue;
        int64_t width = 4 * mgpu_onnx_int(node, "hidden_size", 0);
        CHECK_(l->weights->weight[w].frozen_from == (tensorflow && lstm ? width : -1),
               "%s: B of '%s' is frozen from %lld", of, node->output[0],
               (long long)l->weights->weight[w].frozen_from);
    }
}

static void check_case(const char *folder, const char *of)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/case.json", folder, of);
    struct json_object *json = json_object_from_file(path);
    if (!json)
        return;
    struct loaded l;
    snprintf(path, sizeof path, "%s/%s/model.onnx", folder, of);
    int rc = load(&l, path, &plain);
    CHECK_(rc == 0, "%s: %s", of, mgpu_error());
    for (int i = 0; rc == 0 && i < l.model->initializers; i++)
        check_initializer(&l, i, json, of);
    if (rc == 0)
        check_unowned(&l, of);
    struct json_object *trainable = field(json, "trainable");
    for (size_t i = 0; rc == 0 && i < json_object_array_length(trainable); i++) {
        const char *name = json_object_get_string(json_object_array_get_idx(trainable, i));
        CHECK_(mgpu_onnx_find_initializer(l.model, name) >= 0, "%s: no '%s'", of, name);
    }
    unload(&l);
    json_object_put(json);
}

static int check_cases(const char *folder)
{
    DIR *dir = opendir(folder);
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (*e->d_name == '.')
            continue;
        check_case(folder, e->d_name);
        n++;
    }
    if (dir)
        closedir(dir);
    return n;
}

int main(void)
{
    CHECK(check_cases("tests/cases") > 0);
    const char *more = getenv("MGPU_CASES");
    check_cases(more ? more : "../shared/cases");
    return test_end();
}
