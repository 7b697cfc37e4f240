#include "partitioner/profile_private.h"
#include "partitioner/signature.h"
#include "runtime/base/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where nothing was measured. */
static const struct mgpu_profile_ranks SENSIBLE = {
    .step_ms = 0.05, .copy_gb_s = 5, .check_gb_s = 8};

/* ---- Machines -------------------------------------------------------------------------------- */

const char *mgpu_machine_name(struct mgpu_arena *arena)
{
    char line[512], model[128] = "processor";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(model, sizeof model, "%.100s", colon[1] ? colon + 2 : "processor");
        break;
    }
    if (f)
        fclose(f);
    return mgpu_arena_format(arena, "%s, %ld cores", model, sysconf(_SC_NPROCESSORS_ONLN));
}

struct mgpu_profile *mgpu_profile_new(void)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_profile *p = MGPU_NEW(arena, struct mgpu_profile);
    p->arena = arena;
    p->machine = mgpu_machine_name(arena);
    p->index = mgpu_names_new(arena);
    return p;
}

void mgpu_profile_free(struct mgpu_profile *p)
{
    if (!p)
        return;
    free(p->entry);
    free(p->ranks);
    free(p->plan);
    mgpu_arena_free(p->arena);
}

const char *mgpu_profile_machine(const struct mgpu_profile *p)
{
    return p->machine;
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

enum { KEY_TEXT = MGPU_SIGNATURE_TEXT + 32 };

static void make_key(char key[KEY_TEXT], int threads, int busy, const char *node)
{
    snprintf(key, KEY_TEXT, "%d %d %s", threads, busy, node);
}

void mgpu_profile_add(struct mgpu_profile *p, int threads, int busy, const char *node, double ms)
{
    char key[KEY_TEXT];
    make_key(key, threads, busy, node);
    struct mgpu_profile_entry *e = mgpu_names_get(p->index, key);
    if (!e) {
        e = MGPU_NEW(p->arena, struct mgpu_profile_entry);
        const char *own = mgpu_arena_string(p->arena, key);
        e->node = own + strlen(key) - strlen(node);
        mgpu_names_set(p->index, own, e);
        p->entry = mgpu_grow(p->entry, (size_t)p->entries, sizeof *p->entry);
        p->entry[p->entries++] = e;
    }
    e->threads = threads;
    e->busy = busy;
    e->ms = ms;
}

void mgpu_profile_set(struct mgpu_profile *p, int threads, int busy, const struct mgpu_node *node,
                      double ms)
{
    char text[MGPU_SIGNATURE_TEXT];
    mgpu_profile_add(p, threads, busy, mgpu_node_signature(text, node), ms);
}

static double find_ms(const struct mgpu_profile *p, int threads, int busy, const char *node)
{
    char key[KEY_TEXT];
    make_key(key, threads, busy, node);
    const struct mgpu_profile_entry *e = mgpu_names_get(p->index, key);
    return e ? e->ms : -1;
}

/* Beside fewer than was measured: between alone and that. */
static double between(const struct mgpu_profile *p, const struct mgpu_device_kind *kind,
                      const char *node)
{
    enum { MOST_BUSY = 64 };
    double alone = find_ms(p, kind->threads, 1, node), beside = -1;
    int busy = kind->busy;
    while (alone >= 0 && beside < 0 && busy++ < MOST_BUSY)
        beside = find_ms(p, kind->threads, busy, node);
    return beside < 0 ? -1 : alone + (beside - alone) * (kind->busy - 1) / (busy - 1);
}

double mgpu_profile_ms(const struct mgpu_profile *p, const struct mgpu_device_kind *kind,
                       const struct mgpu_node *node)
{
    char text[MGPU_SIGNATURE_TEXT];
    if (!kind->threads || !p->entries)
        return -1;
    mgpu_node_signature(text, node);
    double ms = find_ms(p, kind->threads, kind->busy, text);
    return ms >= 0 ? ms : between(p, kind, text);
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static struct mgpu_profile_plan *find_plan(const struct mgpu_profile *p, const char *plan)
{
    for (int i = 0; i < p->plans; i++)
        if (!strcmp(p->plan[i].plan, plan))
            return &p->plan[i];
    return NULL;
}

double mgpu_profile_plan_ms(const struct mgpu_profile *p, const char *plan)
{
    const struct mgpu_profile_plan *there = find_plan(p, plan);
    return there ? there->ms : -1;
}

void mgpu_profile_set_plan(struct mgpu_profile *p, const char *plan, double ms)
{
    struct mgpu_profile_plan *there = find_plan(p, plan);
    if (!there) {
        p->plan = mgpu_grow(p->plan, (size_t)p->plans, sizeof *p->plan);
        there = &p->plan[p->plans++];
        there->plan = mgpu_arena_string(p->arena, plan);
    }
    there->ms = ms;
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

const struct mgpu_profile_ranks *mgpu_profile_ranks(const struct mgpu_profile *p, int threads,
                                                    int ranks)
{
    for (int i = 0; i < p->rank_sets; i++)
        if (p->ranks[i].threads == threads && p->ranks[i].ranks == ranks)
            return &p->ranks[i];
    return NULL;
}

void mgpu_profile_set_ranks(struct mgpu_profile *p, const struct mgpu_profile_ranks *ranks)
{
    const struct mgpu_profile_ranks *there = mgpu_profile_ranks(p, ranks->threads, ranks->ranks);
    int at = there ? (int)(there - p->ranks) : p->rank_sets;
    if (!there) {
        p->ranks = mgpu_grow(p->ranks, (size_t)p->rank_sets, sizeof *p->ranks);
        p->rank_sets++;
    }
    p->ranks[at] = *ranks;
}

bool mgpu_profile_links(const struct mgpu_profile *p, struct mgpu_topology *t)
{
    const struct mgpu_device_kind *kind = &t->kind[t->device[0].kind];
    const struct mgpu_profile_ranks *r = NULL;
    if (kind->threads && t->devices > 1)
        r = mgpu_profile_ranks(p, kind->threads, t->devices);
    if (!r || r->copy_gb_s <= 0 || r->all_reduce_gb_s <= 0)
        return false;
    for (int i = 0; i < t->devices * t->devices; i++) {
        t->link[i].bytes = r->copy_gb_s * 1e9;
        t->link[i].latency_ms = r->copy_ms;
    }
    t->fabric.ring = r->all_reduce_gb_s * 1e9;
    t->fabric.base_ms[MGPU_PROTOCOLS - 1] = r->all_reduce_ms;
    return true;
}

double mgpu_host_ms(const struct mgpu_profile *p, const struct mgpu_device_kind *kind,
                    int64_t input, int64_t gradient)
{
    const struct mgpu_profile_ranks *r = NULL;
    if (!kind->threads)
        return 0;
    if (p)
        r = mgpu_profile_ranks(p, kind->threads, kind->busy);
    r = r ? r : &SENSIBLE;
    double copy = r->copy_gb_s > 0 ? r->copy_gb_s : SENSIBLE.copy_gb_s;
    double check = r->check_gb_s > 0 ? r->check_gb_s : SENSIBLE.check_gb_s;
    return r->step_ms + (double)input / (copy * 1e6) + (double)gradient / (check * 1e6);
}
