#include "partitioner/predict.h"

#include "partitioner/cost.h"
#include "partitioner/profile.h"
#include "runtime/base/status.h"

#include <stdlib.h>

struct mgpu_predict {
    struct mgpu_topology *topology;
    struct mgpu_profile *profile;
    int replicas, places;
};

static int open_parts(struct mgpu_predict *p, const char *devices, const char *profile)
{
    struct mgpu_topology *all;
    MGPU_TRY(mgpu_topology_parse(&all, devices));
    p->topology = mgpu_topology_first(all, all->devices, p->replicas * p->places);
    mgpu_topology_free(all);
    for (int k = 0; k < p->topology->kinds; k++)
        if (p->replicas == 1 && p->topology->kind[k].busy) /* branches: each alone */
            p->topology->kind[k].busy = 1;
    if (profile) {
        MGPU_TRY(mgpu_profile_read(&p->profile, profile));
        mgpu_profile_links(p->profile, p->topology);
    }
    return 0;
}

int mgpu_predict_new(struct mgpu_predict **out, const char *devices, int replicas, int places,
                     const char *profile)
{
    struct mgpu_predict *p = mgpu_xcalloc(1, sizeof *p);
    p->replicas = replicas;
    p->places = places;
    int rc = open_parts(p, devices, profile);
    if (rc < 0)
        mgpu_predict_free(p);
    else
        *out = p;
    return rc;
}

void mgpu_predict_free(struct mgpu_predict *p)
{
    if (!p)
        return;
    mgpu_topology_free(p->topology);
    mgpu_profile_free(p->profile);
    free(p);
}

static double collective_ms(const struct mgpu_predict *p, const struct mgpu_collective *c, int rank)
{
    int device[MGPU_MAX_RANKS];
    double bytes = 0;
    for (int i = 0; i < c->parts; i++)
        bytes += (double)c->part[i].count * (double)mgpu_dtype_size(c->type);
    if (c->kind == MGPU_COLLECTIVE_SEND || c->kind == MGPU_COLLECTIVE_RECV)
        return mgpu_transfer_ms(p->topology, rank, c->peer, bytes);
    if (c->kind == MGPU_COLLECTIVE_ALL_GATHER)
        bytes = (double)c->out.count * (double)mgpu_dtype_size(c->type);
    for (int r = 0; r < p->replicas; r++)
        device[r] = r * p->places + rank % p->places;
    struct mgpu_ring ring = mgpu_ring_of(p->topology, device, p->replicas);
    return c->kind == MGPU_COLLECTIVE_ALL_REDUCE ? mgpu_all_reduce_ms(&ring, bytes)
                                                 : mgpu_all_gather_ms(&ring, bytes);
}

double mgpu_predict_ms(const struct mgpu_predict *p, const struct mgpu_program *program, int rank,
                       int k)
{
    const struct mgpu_instruction *in = &program->instruction[k];
    const struct mgpu_device_kind *kind = &p->topology->kind[p->topology->device[rank].kind];
    if (in->queue == MGPU_QUEUE_COMMUNICATION)
        return collective_ms(p, &in->collective, rank);
    double ms = p->profile ? mgpu_profile_ms(p->profile, kind, in->node) : -1;
    bool wide = program->graph->float_type == MGPU_DOUBLE;
    return ms >= 0 ? ms : mgpu_cost_ms(kind, in->node, wide ? MGPU_RATE_F64 : MGPU_RATE_F32);
}

const char *mgpu_predict_class(const struct mgpu_instruction *in)
{
    return mgpu_op_class[mgpu_class_of(in->node->op)];
}
