/* --state: an output of one batch is an input of the next.
 *
 * A state has a row for each place in the batch. The host keeps the rows: a rank takes those of its
 * places before a piece of the batch and leaves what became of them after it, so that a row follows
 * its place whatever the number of ranks is. A short batch moves the rows of its places only. A
 * batch that begins on a GPU before the one in front of it is finished finds its rows there. */
#include "runtime/base/status.h"
#include "runtime/facade/facade.h"
#include "runtime/graph/alike.h"

#include <string.h>

static struct mgpu_value *input_called(const struct mgpu_graph *g, const char *name)
{
    for (int i = 0; i < g->input_count; i++)
        if (!strcmp(g->inputs[i]->name, name))
            return g->inputs[i];
    return NULL;
}

static void add(struct mgpu_trainer *t, const char *input, const char *output, bool from_zero)
{
    t->carried[t->carries++] =
        (struct mgpu_carried){.input = input, .output = output, .from_zero = from_zero};
}

/* A recurrent node: its states, whatever the graph has of them, from zero on. */
static int add_node(struct mgpu_trainer *t, const char *name)
{
    const struct mgpu_onnx_node *node = NULL;
    for (int i = 0; i < t->model->node_total && !node; i++)
        if (mgpu_onnx_is_called(t->model->all[i], name))
            node = t->model->all[i];
    bool cell = node && !strcmp(node->type, "LSTM");
    if (!node || (!cell && strcmp(node->type, "GRU") && strcmp(node->type, "RNN")))
        return mgpu_fail(MGPU_EUSAGE,
                         "--state %s: it should be INPUT=OUTPUT, or an LSTM, GRU or RNN node",
                         name);
    for (int i = 0; i < 1 + cell; i++)
        add(t, mgpu_arena_format(t->arena, "%s.%c", name, "hc"[i]),
            mgpu_arena_format(t->arena, "%s.%c.last", name, "hc"[i]), true);
    const char **longer = MGPU_NEW_ARRAY(t->arena, const char *, t->lower.statefuls + 1);
    if (t->lower.statefuls)
        memcpy(longer, t->lower.stateful, sizeof *longer * (size_t)t->lower.statefuls);
    longer[t->lower.statefuls++] = name;
    t->lower.stateful = longer;
    return 0;
}

int mgpu_state_parse(struct mgpu_trainer *t)
{
    int count = mgpu_text_count(t->options.state);
    t->carried = MGPU_NEW_ARRAY(t->arena, struct mgpu_carried, 2 * count);
    for (int i = 0; i < count; i++) {
        char *text = mgpu_arena_string(t->arena, t->options.state[i]), *is = strchr(text, '=');
        if (!is)
            MGPU_TRY(add_node(t, text));
        else if (is == text || !is[1])
            return mgpu_fail(MGPU_EUSAGE, "--state %s: it should be INPUT=OUTPUT", text);
        else {
            *is = 0;
            add(t, text, is + 1, false);
        }
    }
    return 0;
}

static int bind_one(const struct mgpu_graph *g, struct mgpu_carried *c)
{
    const struct mgpu_value *in = input_called(g, c->input);
    const struct mgpu_value *out = mgpu_lowered_value(g, c->output);
    char have[MGPU_VALUE_TEXT], want[MGPU_VALUE_TEXT];
    if (!in || !out)
        return mgpu_fail(MGPU_EUSAGE, "--state %s=%s: the model has no %s '%s' that is used",
                         c->input, c->output, in ? "value" : "input", in ? c->output : c->input);
    c->axis = mgpu_rows_axis(in, true);
    bool same = in->rank == out->rank && in->type == out->type;
    for (int k = 0; same && k < in->rank; k++)
        same = in->dims[k].value == out->dims[k].value;
    if (!same || c->axis < 0 || mgpu_rows_axis(out, true) != c->axis)
        return mgpu_fail(MGPU_EUSAGE,
                         "--state %s=%s: %s and %s should be of one shape, with samples on one "
                         "axis (--batch-axis %s=K)",
                         c->input, c->output, mgpu_value_text(want, g, in),
                         mgpu_value_text(have, g, out), c->input);
    c->outer = c->inner = 1;
    for (int k = 0; k < in->rank; k++)
        if (k != c->axis)
            *(k < c->axis ? &c->outer : &c->inner) *= in->dims[k].value;
    c->type = in->type;
    c->bytes = (size_t)c->inner * mgpu_dtype_size(in->type);
    return 0;
}

int mgpu_state_bind(struct mgpu_trainer *t, const struct mgpu_graph *g)
{
    for (int i = 0; i < t->carries; i++)
        MGPU_TRY(bind_one(g, &t->carried[i]));
    return 0;
}

static const struct mgpu_carried *carried_by(const struct mgpu_trainer *t, const char *input)
{
    for (int i = 0; i < t->carries; i++)
        if (!strcmp(t->carried[i].input, input))
            return &t->carried[i];
    return NULL;
}

bool mgpu_is_state(const struct mgpu_trainer *t, const char *input, bool *from_zero)
{
    const struct mgpu_carried *c = carried_by(t, input);
    *from_zero = c && c->from_zero;
    return c;
}

void mgpu_state_outputs(const struct mgpu_trainer *t, struct mgpu_graph *g)
{
    for (int i = 0; i < t->carries; i++)
        mgpu_graph_output(g, t->carried[i].output, mgpu_lowered_value(g, t->carried[i].output));
}

int mgpu_state_allocate(struct mgpu_trainer *t, int64_t places)
{
    for (int r = 0; r < MGPU_MAX_RANKS; r++)
        t->carry[r] = MGPU_NEW_ARRAY(t->arena, struct mgpu_carry, t->carries);
    for (int i = 0; i < t->carries; i++) {
        struct mgpu_carried *c = &t->carried[i];
        uint64_t total = (uint64_t)(c->outer * places) * c->bytes;
        c->places = places;
        for (int set = 0; set < MGPU_STATE_SETS; set++)
            MGPU_TRY(mgpu_alloc(&c->rows[set], total, "a state (--state)"));
        MGPU_TRY(mgpu_alloc(&c->next, total, "a state (--state)"));
    }
    return 0;
}

bool mgpu_state_follows(const struct mgpu_trainer *t, int64_t count, int64_t next)
{
    bool same = count == next && t->pieces == 1 && mgpu_team_rank(t->team, 0)->places == 1;
    return t->carries == 0 || same;
}

static const struct mgpu_port *port_called(const struct mgpu_port *port, int count,
                                           const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(port[i].name, name))
            return &port[i];
    return NULL;
}

int mgpu_state_carry(struct mgpu_trainer *t, int rank, const struct mgpu_program *p)
{
    int count = 0;
    for (int i = 0; i < t->carries; i++) {
        const struct mgpu_carried *c = &t->carried[i];
        const struct mgpu_port *in = port_called(p->input, p->inputs, c->input);
        const struct mgpu_port *out = port_called(p->result, p->results, c->output);
        if (in && out)
            t->carry[rank][count++] = (struct mgpu_carry){out->offset, in->offset, in->bytes};
    }
    return count;
}

void mgpu_state_free(struct mgpu_trainer *t)
{
    for (int i = 0; i < t->carries; i++) {
        for (int set = 0; set < MGPU_STATE_SETS; set++)
            mgpu_free(t->carried[i].rows[set]);
        mgpu_free(t->carried[i].next);
    }
}

static enum mgpu_state_set set_of(enum mgpu_mode mode)
{
    return mode == MGPU_MODE_TRAIN ? MGPU_STATE_TRAINED : MGPU_STATE_ASIDE;
}

static int read_start(struct mgpu_trainer *t, struct mgpu_source *source,
                      const struct mgpu_carried *c, void *to)
{
    const struct mgpu_dataset *d;
    int slot = 0;
    while (strcmp(t->want[slot].name, c->input))
        slot++;
    MGPU_TRY(mgpu_feed_dataset(&d, source->feed, c->input));
    if (d->dims[c->axis] < c->places)
        return mgpu_fail(MGPU_EINVALID,
                         "--state %s=%s: %s has %lld rows, but a batch has %lld places", c->input,
                         c->output, d->title, (long long)d->dims[c->axis], (long long)c->places);
    for (int64_t k = 0; k < c->places; k++)
        t->rows[k] = k;
    return mgpu_feed_rows(source->feed, slot, t->rows, c->places, to);
}

int mgpu_state_start(struct mgpu_trainer *t, struct mgpu_source *source, enum mgpu_mode mode)
{
    for (int i = 0; i < t->carries; i++) {
        const struct mgpu_carried *c = &t->carried[i];
        void *rows = c->rows[set_of(mode)];
        if (c->from_zero)
            memset(rows, 0, (size_t)(c->outer * c->places) * c->bytes);
        else
            MGPU_TRY(read_start(t, source, c, rows));
    }
    return 0;
}

/* Rows first .. first + count between the places and an array of `count` rows. */
static void move_rows(const struct mgpu_carried *c, char *places, int64_t first, int64_t count,
                      char *part, bool out)
{
    size_t block = (size_t)count * c->bytes;
    for (int64_t o = 0; o < c->outer; o++) {
        char *at = places + (size_t)(o * c->places + first) * c->bytes,
             *row = part + (size_t)o * block;
        memcpy(out ? row : at, out ? at : row, block);
    }
}

bool mgpu_state_feed(const struct mgpu_trainer *t, enum mgpu_mode mode, const char *input,
                     int64_t first, int64_t count, void *to)
{
    const struct mgpu_carried *c = carried_by(t, input);
    if (c)
        move_rows(c, c->rows[set_of(mode)], first, count, to, true);
    return c;
}

void mgpu_state_keep(const struct mgpu_trainer *t, const struct mgpu_rank *rank,
                     const struct mgpu_program *p, int64_t first, int64_t count)
{
    for (int i = 0; i < t->carries; i++)
        for (int k = 0; k < p->results; k++)
            if (!strcmp(p->result[k].name, t->carried[i].output))
                move_rows(&t->carried[i], t->carried[i].next, first, count,
                          (char *)rank->buffer[MGPU_BUFFER_RESULTS] + p->result[k].offset, false);
}

void mgpu_state_advance(struct mgpu_trainer *t, enum mgpu_mode mode, int64_t count)
{
    for (int i = 0; i < t->carries; i++) {
        struct mgpu_carried *c = &t->carried[i];
        for (int64_t o = 0; o < c->outer; o++) {
            size_t at = (size_t)(o * c->places) * c->bytes;
            memcpy((char *)c->rows[set_of(mode)] + at, (char *)c->next + at,
                   (size_t)count * c->bytes);
        }
    }
}

/* ---- In a checkpoint ------------------------------------------------------------------------- */

int mgpu_state_take(const struct mgpu_trainer *t, struct mgpu_array_list *out)
{
    for (int i = 0; i < t->carries; i++) {
        const struct mgpu_carried *c = &t->carried[i];
        const int64_t dims[3] = {c->outer, c->places, c->inner};
        struct mgpu_array *a = &mgpu_array_list_add(out, c->input)->array;
        MGPU_TRY(mgpu_array_init(a, c->type, 3, dims, c->input));
        memcpy(a->data, c->rows[MGPU_STATE_TRAINED], (size_t)(c->outer * c->places) * c->bytes);
    }
    return 0;
}

static int restore_one(const struct mgpu_carried *c, const struct mgpu_array *from)
{
    char there[MGPU_SHAPE_TEXT], here[MGPU_SHAPE_TEXT];
    const int64_t dims[3] = {c->outer, c->places, c->inner};
    if (!from) {
        mgpu_note("--state %s begins afresh: the run before did not carry it", c->input);
        return 0;
    }
    if (from->type != c->type || from->rank != 3 || memcmp(from->dims, dims, sizeof dims))
        return mgpu_fail(MGPU_EINVALID,
                         "--state %s is %s there and %s now (the places of a batch stand second)",
                         c->input, mgpu_shape_text(there, from->rank, from->dims),
                         mgpu_shape_text(here, 3, dims));
    memcpy(c->rows[MGPU_STATE_TRAINED], from->data, (size_t)(c->outer * c->places) * c->bytes);
    return 0;
}

int mgpu_state_restore(struct mgpu_trainer *t, const struct mgpu_array_list *from)
{
    for (int i = 0; i < t->carries; i++)
        MGPU_TRY(restore_one(&t->carried[i], mgpu_array_list_find(from, t->carried[i].input)));
    for (int i = 0; i < from->count; i++)
        if (!carried_by(t, from->item[i].name))
            mgpu_note("the run before carried %s from batch to batch (--state); this one does not",
                      from->item[i].name);
    return 0;
}
