#include "runtime/cli/train_result.h"

#include "runtime/base/memory.h"

#include <json-c/json.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void mgpu_result_step(struct mgpu_train_result *r, const struct mgpu_step_result *step)
{
    r->steps = step->step;
    r->samples += step->samples;
    r->skipped += step->skipped;
    r->loss = mgpu_grow(r->loss, (size_t)r->loss_count, sizeof *r->loss);
    r->loss[r->loss_count++] = step->loss;
}

static void set(struct mgpu_train_result *r, const char *name, double value)
{
    for (int i = 0; i < r->metrics; i++)
        if (!strcmp(r->metric_name[i], name)) {
            r->metric[i] = value;
            return;
        }
    r->metric_name = mgpu_grow(r->metric_name, (size_t)r->metrics, sizeof(char *));
    r->metric = mgpu_grow(r->metric, (size_t)r->metrics, sizeof *r->metric);
    r->metric_name[r->metrics] = mgpu_xstrdup(name);
    r->metric[r->metrics++] = value;
}

void mgpu_result_numbers(struct mgpu_train_result *r, const struct mgpu_number *numbers, int count)
{
    for (int i = 0; i < count; i++)
        set(r, numbers[i].name, numbers[i].value);
}

void mgpu_result_removed(struct mgpu_train_result *r, const char *path)
{
    int n = 0;
    for (int i = 0; i < r->saved; i++)
        if (strcmp(r->saved_path[i], path) != 0)
            r->saved_path[n++] = r->saved_path[i];
        else
            free(r->saved_path[i]);
    r->saved = n;
}

void mgpu_result_saved(struct mgpu_train_result *r, const char *path)
{
    mgpu_result_removed(r, path);
    r->saved_path = mgpu_grow(r->saved_path, (size_t)r->saved, sizeof(char *));
    r->saved_path[r->saved++] = mgpu_xstrdup(path);
}

void mgpu_result_warning(struct mgpu_train_result *r, const char *text)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    r->warning = mgpu_grow(r->warning, (size_t)r->warnings, sizeof(char *));
    r->warning[r->warnings++] = mgpu_xstrdup(text);
    pthread_mutex_unlock(&lock);
}

/* JSON has no number for what is not finite. */
static struct json_object *number(double value)
{
    return value - value == 0 ? json_object_new_double(value) : NULL;
}

static struct json_object *texts(char *const *text, int count)
{
    struct json_object *list = json_object_new_array();
    for (int i = 0; i < count; i++)
        json_object_array_add(list, json_object_new_string(text[i]));
    return list;
}

void mgpu_result_print(const struct mgpu_train_result *r, FILE *to)
{
    struct json_object *o = json_object_new_object(), *loss = json_object_new_array();
    struct json_object *metrics = json_object_new_object();
    for (int64_t i = 0; i < r->loss_count; i++)
        json_object_array_add(loss, number(r->loss[i]));
    for (int i = 0; i < r->metrics; i++)
        json_object_object_add(metrics, r->metric_name[i], number(r->metric[i]));
    json_object_object_add(o, "steps", json_object_new_int64(r->steps));
    json_object_object_add(o, "loss", loss);
    json_object_object_add(o, "metrics", metrics);
    json_object_object_add(
        o, "samples_per_second",
        json_object_new_double(r->seconds > 0 ? (double)r->samples / r->seconds : 0));
    json_object_object_add(o, "peak_memory_bytes",
                           json_object_new_int64((int64_t)r->peak_memory_bytes));
    json_object_object_add(o, "saved", texts(r->saved_path, r->saved));
    json_object_object_add(o, "warnings", texts(r->warning, r->warnings));
    if (r->interrupted)
        json_object_object_add(o, "interrupted", json_object_new_boolean(1));
    fprintf(
        to, "%s\n",
        json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(o);
}

void mgpu_result_free(struct mgpu_train_result *r)
{
    for (int i = 0; i < r->metrics; i++)
        free(r->metric_name[i]);
    for (int i = 0; i < r->saved; i++)
        free(r->saved_path[i]);
    for (int i = 0; i < r->warnings; i++)
        free(r->warning[i]);
    free(r->warning);
    free(r->metric_name);
    free(r->metric);
    free(r->saved_path);
    free(r->loss);
}
