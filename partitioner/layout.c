#include "partitioner/layout.h"

#include <stdlib.h>
#include <string.h>

enum { ORDER_SWEEPS = 8, FIT_SWEEPS = 24, MOST_BENDS = 40000 };

/* A box, or a bend of a line. */
struct item {
    int layer, order;
    double x, half; /* half of its width */
    double wish;    /* barycentre */
    int ups, downs; /* neighbours above and below */
    int *up, *down;
};

struct drawing {
    struct mgpu_arena *arena;
    struct mgpu_layout *layout;
    int items;
    struct item *item; /* boxes first */
    int **in_layer;    /* items of a layer, left to right */
    int *count;        /* by layer */
    int *line_item;    /* by line: its first bend among the items */
    int longest;       /* longer lines go straight, where bends would be too many */
};

/* ---- Boxes ----------------------------------------------------------------------------------- */

static void count_ends(const struct mgpu_outline *o, int *out_edges)
{
    for (int i = 0; i < o->edges; i++)
        out_edges[o->edge[i].from]++;
}

/* Node i continues the chain of its only producer, which nothing else needs. */
static bool continues(const struct mgpu_outline *o, const int *out_edges, const int *place, int i)
{
    const struct mgpu_outline_node *n = &o->node[i];
    if (n->edges != 1)
        return false;
    int from = o->edge[n->first_edge].from;
    return out_edges[from] == 1 && place[from] == place[i];
}

static void make_boxes(struct mgpu_layout *l, const struct mgpu_outline *o, const int *place,
                       int most)
{
    int *out_edges = MGPU_NEW_ARRAY(l->arena, int, o->nodes);
    count_ends(o, out_edges);
    l->box = MGPU_NEW_ARRAY(l->arena, struct mgpu_box, o->nodes);
    l->box_of = MGPU_NEW_ARRAY(l->arena, int, o->nodes);
    for (int i = 0; i < o->nodes; i++) {
        bool chained = o->nodes > most && continues(o, out_edges, place, i);
        l->box_of[i] = chained ? l->box_of[o->edge[o->node[i].first_edge].from] : l->boxes++;
        struct mgpu_box *b = &l->box[l->box_of[i]];
        if (!b->nodes++)
            b->first = i;
        b->last = i;
    }
}

static void make_lines(struct mgpu_layout *l, const struct mgpu_outline *o)
{
    l->line = MGPU_NEW_ARRAY(l->arena, struct mgpu_line, o->edges);
    for (int i = 0; i < o->edges; i++) {
        int from = l->box_of[o->edge[i].from], to = l->box_of[o->edge[i].to];
        if (from != to)
            l->line[l->lines++] =
                (struct mgpu_line){.from = from, .to = to, .bytes = o->edge[i].bytes};
    }
}

/* ---- Layers ---------------------------------------------------------------------------------- */

/* Below all that they need; what needs nothing stands right above its first user. Lines lead from
 * lower to higher numbers of boxes. */
static void set_layers(struct mgpu_layout *l)
{
    int *least = MGPU_NEW_ARRAY(l->arena, int, l->boxes);
    bool *fed = MGPU_NEW_ARRAY(l->arena, bool, l->boxes);
    for (int i = 0; i < l->lines; i++) { /* in the order of `to` */
        const struct mgpu_line *e = &l->line[i];
        int below = l->box[e->from].layer + 1;
        fed[e->to] = true;
        if (l->box[e->to].layer < below)
            l->box[e->to].layer = below;
    }
    for (int i = 0; i < l->lines; i++) {
        const struct mgpu_line *e = &l->line[i];
        int above = l->box[e->to].layer;
        if (!least[e->from] || above < least[e->from])
            least[e->from] = above;
    }
    for (int b = 0; b < l->boxes; b++) {
        if (!fed[b] && least[b])
            l->box[b].layer = least[b] - 1;
        if (l->box[b].layer >= l->layers)
            l->layers = l->box[b].layer + 1;
    }
}

static void join(struct item *a, int above, struct item *b, int below)
{
    a->down[a->downs++] = below;
    b->up[b->ups++] = above;
}

static int span_of(const struct mgpu_layout *l, int line)
{
    return l->box[l->line[line].to].layer - l->box[l->line[line].from].layer;
}

static int bends_of(const struct drawing *d, int line)
{
    int span = span_of(d->layout, line);
    return span <= d->longest ? span - 1 : 0;
}

/* The longest lines that may bend, all bends being at most MOST_BENDS. */
static void set_longest(struct drawing *d)
{
    const struct mgpu_layout *l = d->layout;
    int *lines = MGPU_NEW_ARRAY(d->arena, int, l->layers + 1); /* by span */
    int64_t bends = 0;
    for (int i = 0; i < l->lines; i++)
        lines[span_of(l, i)]++;
    while (d->longest < l->layers) {
        bends += (int64_t)lines[d->longest + 1] * d->longest;
        if (bends > MOST_BENDS)
            return;
        d->longest++;
    }
}

static void make_items(struct drawing *d, struct mgpu_layout_sizes sizes)
{
    struct mgpu_layout *l = d->layout;
    int *ups = MGPU_NEW_ARRAY(d->arena, int, l->boxes), bends = 0;
    int *downs = MGPU_NEW_ARRAY(d->arena, int, l->boxes);
    for (int i = 0; i < l->lines; i++) {
        downs[l->line[i].from]++;
        ups[l->line[i].to]++;
        bends += bends_of(d, i);
    }
    d->item = MGPU_NEW_ARRAY(d->arena, struct item, l->boxes + bends);
    d->items = l->boxes + bends;
    for (int i = 0; i < d->items; i++) {
        bool box = i < l->boxes;
        d->item[i].half = (box ? sizes.box : sizes.bend) / 2;
        d->item[i].up = MGPU_NEW_ARRAY(d->arena, int, box ? ups[i] : 1);
        d->item[i].down = MGPU_NEW_ARRAY(d->arena, int, box ? downs[i] : 1);
        d->item[i].layer = box ? l->box[i].layer : 0;
    }
}

static void join_items(struct drawing *d)
{
    struct mgpu_layout *l = d->layout;
    int next = l->boxes;
    d->line_item = MGPU_NEW_ARRAY(d->arena, int, l->lines);
    for (int i = 0; i < l->lines; i++) {
        int last = l->line[i].from;
        d->line_item[i] = next;
        for (int k = 0; k < bends_of(d, i); k++, next++) {
            d->item[next].layer = d->item[last].layer + 1;
            join(&d->item[last], last, &d->item[next], next);
            last = next;
        }
        if (span_of(l, i) <= d->longest)
            join(&d->item[last], last, &d->item[l->line[i].to], l->line[i].to);
    }
}

/* ---- Order ----------------------------------------------------------------------------------- */

static void append(struct drawing *d, int item)
{
    struct item *i = &d->item[item];
    i->order = d->count[i->layer];
    d->in_layer[i->layer][d->count[i->layer]++] = item;
}

/* Depth first from the boxes on top: neighbours of one box come side by side. */
static void first_order(struct drawing *d)
{
    int layers = d->layout->layers, *size = MGPU_NEW_ARRAY(d->arena, int, layers);
    bool *seen = MGPU_NEW_ARRAY(d->arena, bool, d->items);
    int *stack = MGPU_NEW_ARRAY(d->arena, int, d->items);
    d->count = MGPU_NEW_ARRAY(d->arena, int, layers);
    d->in_layer = MGPU_NEW_ARRAY(d->arena, int *, layers);
    for (int i = 0; i < d->items; i++)
        size[d->item[i].layer]++;
    for (int i = 0; i < layers; i++)
        d->in_layer[i] = MGPU_NEW_ARRAY(d->arena, int, size[i]);
    for (int start = 0; start < d->items; start++) {
        int depth = 0;
        if (seen[start] || d->item[start].ups)
            continue;
        seen[stack[depth++] = start] = true;
        while (depth) {
            const struct item *i = &d->item[stack[--depth]];
            append(d, stack[depth]);
            for (int k = i->downs - 1; k >= 0; k--)
                if (!seen[i->down[k]])
                    seen[stack[depth++] = i->down[k]] = true;
        }
    }
}

static double mean(const struct drawing *d, const int *list, int count, double otherwise)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += d->item[list[i]].order;
    return count ? sum / count : otherwise;
}

/* Insertion sort: keeps the order of equals; layers are short and nearly sorted. */
static void sort_layer(struct drawing *d, int layer)
{
    int *list = d->in_layer[layer], n = d->count[layer];
    for (int i = 1; i < n; i++) {
        int moved = list[i], k = i;
        for (; k > 0 && d->item[list[k - 1]].wish > d->item[moved].wish; k--)
            list[k] = list[k - 1];
        list[k] = moved;
    }
    for (int i = 0; i < n; i++)
        d->item[list[i]].order = i;
}

static void sweep_order(struct drawing *d, int layer, bool down)
{
    for (int i = 0; i < d->count[layer]; i++) {
        struct item *it = &d->item[d->in_layer[layer][i]];
        it->wish =
            down ? mean(d, it->up, it->ups, it->order) : mean(d, it->down, it->downs, it->order);
    }
    sort_layer(d, layer);
}

static void set_order(struct drawing *d)
{
    int layers = d->layout->layers;
    for (int s = 0; s < ORDER_SWEEPS; s++) {
        for (int i = 1; i < layers; i++)
            sweep_order(d, i, true);
        for (int i = layers - 2; i >= 0; i--)
            sweep_order(d, i, false);
    }
}

/* ---- Positions ------------------------------------------------------------------------------- */

/* The x nearest to the wishes (least squares) that keep order and distance: with the least offsets
 * taken off, rising means of blocks ("pool adjacent violators"). */
static void fit_layer(struct drawing *d, int layer, double *block, int *length)
{
    int n = d->count[layer], blocks = 0;
    double offset = 0;
    for (int i = 0; i < n; i++) {
        const struct item *it = &d->item[d->in_layer[layer][i]];
        block[blocks] = it->wish - offset - it->half;
        length[blocks++] = 1;
        for (; blocks > 1 && block[blocks - 2] > block[blocks - 1]; blocks--) {
            int a = length[blocks - 2], b = length[blocks - 1];
            block[blocks - 2] = (block[blocks - 2] * a + block[blocks - 1] * b) / (a + b);
            length[blocks - 2] = a + b;
        }
        offset += 2 * it->half;
    }
    offset = 0;
    for (int b = 0, i = 0; b < blocks; b++)
        for (int k = 0; k < length[b]; k++, i++) {
            struct item *it = &d->item[d->in_layer[layer][i]];
            it->x = block[b] + offset + it->half;
            offset += 2 * it->half;
        }
}

static double mean_x(const struct drawing *d, const int *list, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += d->item[list[i]].x;
    return sum / count;
}

/* Below what it comes from, or above what it leads to. */
static double wish(const struct drawing *d, const struct item *it, bool down)
{
    if (it->ups && (down || !it->downs))
        return mean_x(d, it->up, it->ups);
    return it->downs ? mean_x(d, it->down, it->downs) : it->x;
}

/* The last sweep goes down: chains end up straight. */
static void set_positions(struct drawing *d)
{
    int layers = d->layout->layers;
    double *block = MGPU_NEW_ARRAY(d->arena, double, d->items);
    int *length = MGPU_NEW_ARRAY(d->arena, int, d->items);
    for (int s = 0; s <= FIT_SWEEPS; s++)
        for (int turn = 0; turn < layers; turn++) {
            int layer = s % 2 ? layers - 1 - turn : turn;
            for (int i = 0; i < d->count[layer]; i++) {
                struct item *it = &d->item[d->in_layer[layer][i]];
                it->wish = wish(d, it, s % 2 == 0);
            }
            fit_layer(d, layer, block, length);
        }
}

/* ---- Results --------------------------------------------------------------------------------- */

static void shift(struct drawing *d)
{
    double low = 0, high = 0;
    for (int i = 0; i < d->items; i++) {
        const struct item *it = &d->item[i];
        low = i == 0 || it->x - it->half < low ? it->x - it->half : low;
        high = i == 0 || it->x + it->half > high ? it->x + it->half : high;
    }
    for (int i = 0; i < d->items; i++)
        d->item[i].x -= low;
    d->layout->width = high - low;
}

static void keep_line(struct drawing *d, int line)
{
    struct mgpu_line *e = &d->layout->line[line];
    int bends = bends_of(d, line);
    double *x = MGPU_NEW_ARRAY(d->layout->arena, double, bends + 2);
    x[0] = d->item[e->from].x;
    for (int k = 0; k < bends; k++)
        x[k + 1] = d->item[d->line_item[line] + k].x;
    x[bends + 1] = d->item[e->to].x;
    e->points = bends + 2;
    e->x = x;
}

static void keep(struct drawing *d)
{
    struct mgpu_layout *l = d->layout;
    for (int i = 0; i < l->boxes; i++)
        l->box[i].x = d->item[i].x;
    for (int i = 0; i < l->lines; i++)
        keep_line(d, i);
}

struct mgpu_layout *mgpu_layout_new(const struct mgpu_outline *o, const int *place, int most,
                                    struct mgpu_layout_sizes sizes)
{
    struct mgpu_arena *arena = mgpu_arena_new();
    struct mgpu_layout *l = MGPU_NEW(arena, struct mgpu_layout);
    struct drawing d = {.arena = mgpu_arena_new(), .layout = l};
    l->arena = arena;
    make_boxes(l, o, place, most);
    make_lines(l, o);
    set_layers(l);
    set_longest(&d);
    make_items(&d, sizes);
    join_items(&d);
    first_order(&d);
    set_order(&d);
    set_positions(&d);
    shift(&d);
    keep(&d);
    mgpu_arena_free(d.arena);
    return l;
}

void mgpu_layout_free(struct mgpu_layout *l)
{
    if (l)
        mgpu_arena_free(l->arena);
}
