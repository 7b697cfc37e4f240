/* A radix sort, eight bits at a time, each pass stable. */
#include "runtime/emit/order.h"

enum { CHUNK = 1024, DIGITS = 256, SCAN_THREADS = 256, RUN = 32 };

struct mgpu_emit_order mgpu_emit_order_of(int64_t entries, int64_t slots)
{
    struct mgpu_emit_order o = {
        .entries = entries, .slots = slots, .chunks = (entries + CHUNK - 1) / CHUNK, .passes = 1};
    while (o.passes < 4 && slots >> (8 * o.passes))
        o.passes++;
    o.counts = o.chunks * DIGITS;
    return o;
}

/* u32 slots and entry numbers, twice, and counts of digits by chunk. */
int64_t mgpu_emit_order_bytes(const struct mgpu_emit_order *o)
{
    return (4 * o->entries + o->counts) * (int64_t)sizeof(uint32_t);
}

void mgpu_write_order_arrays(struct mgpu_writer *w, const struct mgpu_emit_order *o, int pass)
{
    long long n = o->entries;
    mgpu_write(w, "    u32 *slot_of = (u32 *)work + %lldLL, *entry_of = slot_of + %lldLL;\n",
               pass % 2 ? 2 * n : 0LL, n);
    mgpu_write(w, "    u32 *next_slot = (u32 *)work + %lldLL, *next_entry = next_slot + %lldLL;\n",
               pass % 2 ? 0LL : 2 * n, n);
    mgpu_write(w, "    u32 *counts = (u32 *)work + %lldLL;\n", 4 * n);
    mgpu_write(w, "    (void)slot_of, (void)entry_of, (void)next_slot, (void)next_entry, "
                  "(void)counts;\n");
}

/* A block for each chunk, a thread for each digit, which goes through the chunk in order. */
static void write_chunk(struct mgpu_writer *w, const struct mgpu_emit_order *o, int pass)
{
    mgpu_write_kernel(w, o->chunks, DIGITS, true);
    mgpu_write_order_arrays(w, o, pass);
    mgpu_write(w,
               "    __shared__ unsigned char digit[%d];\n    const i64 first = (i64)blockIdx.x * "
               "%d;\n    const int n = %lldLL - first < %d ? (int)(%lldLL - first) : %d;\n",
               CHUNK, CHUNK, (long long)o->entries, CHUNK, (long long)o->entries, CHUNK);
    mgpu_write(w,
               "    for (int k = threadIdx.x; k < n; k += %d)\n        digit[k] = (unsigned "
               "char)(slot_of[first + k] >> %d);\n    __syncthreads();\n",
               DIGITS, 8 * pass);
    mgpu_write(w, "    const i64 at = (i64)threadIdx.x * %lld + blockIdx.x;\n",
               (long long)o->chunks);
}

static void write_pass(struct mgpu_writer *w, const struct mgpu_emit_order *o, int pass)
{
    write_chunk(w, o, pass);
    mgpu_write(w,
               "    u32 count = 0;\n    for (int k = 0; k < n; k++)\n        count += digit[k] == "
               "threadIdx.x;\n    counts[at] = count;\n}\n");
    mgpu_write_kernel(w, 1, SCAN_THREADS, true);
    mgpu_write_order_arrays(w, o, pass);
    long long each = (o->counts + SCAN_THREADS - 1) / SCAN_THREADS;
    mgpu_write(w,
               "    __shared__ u32 part[%d];\n    const i64 first = (i64)threadIdx.x * %lld;\n    "
               "const i64 end = first + %lld < %lld ? first + %lld : %lld;\n    u32 own = 0;\n    "
               "for (i64 k = first; k < end; k++)\n        own += counts[k];\n    "
               "part[threadIdx.x] = own;\n    __syncthreads();\n",
               SCAN_THREADS, each, each, (long long)o->counts, each, (long long)o->counts);
    mgpu_write(
        w,
        "    for (u32 d = 1; d < %d; d *= 2) {\n        const u32 before = threadIdx.x >= d ? "
        "part[threadIdx.x - d] : 0;\n        __syncthreads();\n        part[threadIdx.x] += "
        "before;\n        __syncthreads();\n    }\n    u32 at = part[threadIdx.x] - own;\n",
        SCAN_THREADS);
    mgpu_write(
        w, "    for (i64 k = first; k < end; k++) {\n        const u32 count = counts[k];\n      "
           "  counts[k] = at;\n        at += count;\n    }\n}\n");
    write_chunk(w, o, pass);
    mgpu_write(w,
               "    u32 to = counts[at];\n    for (int k = 0; k < n; k++)\n        if (digit[k] == "
               "threadIdx.x) {\n            next_slot[to] = slot_of[first + k];\n            "
               "next_entry[to++] = entry_of[first + k];\n        }\n}\n");
}

void mgpu_write_order(struct mgpu_writer *w, const struct mgpu_emit_order *o)
{
    for (int pass = 0; pass < o->passes; pass++)
        write_pass(w, o, pass);
}

/* ---- Runs of one slot ------------------------------------------------------------------------
 *
 * A thread goes through RUN entries of a lane. What it finds of a run that began before it is
 * carried: the thread where the run began adds that in a second kernel. */

static int64_t parts_of(const struct mgpu_emit_order *o)
{
    return (o->entries + RUN - 1) / RUN;
}

int64_t mgpu_emit_runs_bytes(const struct mgpu_emit_order *o, const struct mgpu_emit_runs *r)
{
    return parts_of(o) * r->lanes * 8;
}

static void open_parts(struct mgpu_writer *w, const struct mgpu_emit_order *o,
                       const struct mgpu_emit_runs *r, int64_t at)
{
    const char *real = mgpu_compute_type(r->type);
    mgpu_write_kernel_each(w, parts_of(o) * r->lanes);
    mgpu_write_order_arrays(w, o, o->passes);
    mgpu_write(w, "    %s *carried = (%s *)((char *)work + %lldLL);\n", real, real, (long long)at);
    mgpu_write(w, "    const i64 lane = i %% %lldLL, part = i / %lldLL, first = part * %d;\n",
               (long long)r->lanes, (long long)r->lanes, RUN);
    mgpu_write(w, "    const i64 end = first + %d < %lldLL ? first + %d : %lldLL;\n    %s\n", RUN,
               (long long)o->entries, RUN, (long long)o->entries, r->declare);
}

/* a = join(a, value). */
static void write_join(struct mgpu_writer *w, const struct mgpu_emit_runs *r, const char *value)
{
    if (*r->join)
        mgpu_write(w, "            a = %s(a, %s);\n", r->join, value);
    else
        mgpu_write(w, "            a = %s;\n", value);
}

/* a takes the values of slot `slot` from entry e on. */
static void write_run(struct mgpu_writer *w, const struct mgpu_emit_runs *r)
{
    mgpu_write(w, "        for (; e < end && slot_of[e] == slot; e++) {\n"
                  "            const u32 entry = entry_of[e];\n");
    write_join(w, r, r->value);
    mgpu_write(w, "        }\n");
}

static void write_parts(struct mgpu_writer *w, const struct mgpu_emit_order *o,
                        const struct mgpu_emit_runs *r, int64_t at)
{
    const char *real = mgpu_compute_type(r->type);
    const char *type = mgpu_dtype_name(w->node->output[0]->type);
    open_parts(w, o, r, at);
    mgpu_write(w, "    i64 e = first;\n    if (e > 0 && slot_of[e - 1] == slot_of[e]) {\n"
                  "        const u32 slot = slot_of[e], entry = entry_of[e++];\n");
    mgpu_write(w, "        %s a = %s;\n", real, r->value);
    write_run(w, r);
    mgpu_write(w, "        carried[i] = a;\n    }\n");
    mgpu_write(w,
               "    while (e < end && slot_of[e] != %lluu) {\n        const u32 slot = "
               "slot_of[e];\n",
               (unsigned long long)o->slots);
    mgpu_write(w, "        %s a = LOAD_%s(y0, %s);\n", real, type, r->place);
    write_run(w, r);
    mgpu_write(w, "        STORE_%s(y0, %s, a);\n    }\n}\n", type, r->place);
}

/* For the parts where a run begins that goes on behind them. */
static void write_carried(struct mgpu_writer *w, const struct mgpu_emit_order *o,
                          const struct mgpu_emit_runs *r, int64_t at)
{
    const char *type = mgpu_dtype_name(w->node->output[0]->type);
    open_parts(w, o, r, at);
    mgpu_write(w,
               "    const u32 slot = slot_of[end - 1];\n    if (end == %lldLL || slot == %lluu ||"
               " slot_of[end] != slot)\n        return;\n",
               (long long)o->entries, (unsigned long long)o->slots);
    mgpu_write(w, "    if (first > 0 && slot_of[first - 1] == slot)\n        return;\n");
    mgpu_write(w, "    %s a = LOAD_%s(y0, %s);\n", mgpu_compute_type(r->type), type, r->place);
    mgpu_write(w, "    for (i64 p = part + 1; p < %lldLL && slot_of[p * %d] == slot; p++)\n",
               (long long)parts_of(o), RUN);
    char carried[64];
    snprintf(carried, sizeof carried, "carried[p * %lldLL + lane]", (long long)r->lanes);
    write_join(w, r, carried);
    mgpu_write(w, "    STORE_%s(y0, %s, a);\n}\n", type, r->place);
}

void mgpu_write_runs(struct mgpu_writer *w, const struct mgpu_emit_order *o,
                     const struct mgpu_emit_runs *r, int64_t at)
{
    write_parts(w, o, r, at);
    if (parts_of(o) > 1)
        write_carried(w, o, r, at);
}
