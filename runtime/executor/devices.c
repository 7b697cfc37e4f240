#include "runtime/executor/devices.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/compile/plan.h"
#include "runtime/cuda/cuda.h"

#include <ctype.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int allowed_cores(int core[MGPU_MAX_CORES])
{
    cpu_set_t set;
    int n = 0;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int i = 0; i < CPU_SETSIZE && n < MGPU_MAX_CORES; i++)
            if (CPU_ISSET(i, &set))
                core[n++] = i;
    if (n == 0)
        core[n++] = 0;
    return n;
}

enum { MOST_NUMBER = 1023, GPU = MOST_NUMBER + 1 };

/* The virtual device numbers in order of the list; -1 is the whole CPU, GPU + i is GPU i. */
struct list {
    int count;
    int number[MGPU_MAX_RANKS];
};

static int add(struct list *l, int number)
{
    if (l->count == MGPU_MAX_RANKS)
        return mgpu_fail(MGPU_EUSAGE, "more than %d ranks", MGPU_MAX_RANKS);
    l->number[l->count++] = number;
    return 0;
}

static int parse_number(const char **at, int *out)
{
    if (!isdigit((unsigned char)**at))
        return -1;
    long value = strtol(*at, (char **)at, 10);
    *out = value > MOST_NUMBER ? MOST_NUMBER + 1 : (int)value;
    return value > MOST_NUMBER ? -1 : 0;
}

/* What stands after `cpu` or `cuda`: ":0,2" or ":0-3". */
static int parse_numbers(struct list *l, const char *item, const char **at)
{
    int from, to;
    do {
        ++*at;
        if (parse_number(at, &from) < 0)
            return mgpu_fail(MGPU_EUSAGE, "'%s' needs a device number, 0 to %d, after ':'", item,
                             MOST_NUMBER);
        to = from;
        if (**at == '-' && (++*at, parse_number(at, &to) < 0))
            return mgpu_fail(MGPU_EUSAGE, "'%s' needs a device number, 0 to %d, after '-'", item,
                             MOST_NUMBER);
        if (to < from)
            return mgpu_fail(MGPU_EUSAGE, "'%s' counts down", item);
        for (int i = from; i <= to; i++)
            MGPU_TRY(add(l, i));
    } while (**at == ',' && isdigit((unsigned char)(*at)[1]));
    return 0;
}

static int parse_cpu(struct list *l, const char *item, const char **at)
{
    return **at == ':' ? parse_numbers(l, item, at) : add(l, -1);
}

/* `cuda` is the first GPU, `cuda:all` every one. */
static int list_gpus(struct list *gpus, const char *item, const char **at)
{
    int count = 1;
    if (**at == ':' && strncasecmp(*at, ":all", 4))
        return parse_numbers(gpus, item, at);
    if (**at == ':') {
        MGPU_TRY(mgpu_cuda_count(&count));
        *at += 4;
    }
    for (int i = 0; i < count; i++)
        MGPU_TRY(add(gpus, i));
    return 0;
}

static int parse_gpus(struct list *l, const char *item, const char **at)
{
    struct list gpus = {0};
    int rc = list_gpus(&gpus, item, at);
    if (rc == MGPU_EDEVICE)
        return mgpu_prefix(rc, "cuda:all cannot be used");
    for (int i = 0; i < gpus.count && rc == 0; i++)
        rc = mgpu_prefix(mgpu_cuda_check(gpus.number[i]), "cuda:%d cannot be used", gpus.number[i]);
    for (int i = 0; i < gpus.count && rc == 0; i++)
        rc = add(l, GPU + gpus.number[i]);
    return rc;
}

static int no_device(const char *item)
{
    return mgpu_fail(MGPU_EUSAGE,
                     "'%.*s' is no device here; use cuda:0, cpu, cpu:0,cpu:1 or cpu:0-3 "
                     "(8xh100-nvlink, 2xcpu and files are for mgpu-partition)",
                     (int)strcspn(item, ","), item);
}

static int parse_list(struct list *l, const char *text)
{
    const char *at = text;
    for (;;) {
        const char *item = at;
        bool gpu = !strncasecmp(at, "cuda", 4), cpu = !strncasecmp(at, "cpu", 3);
        if (!*item)
            return mgpu_fail(MGPU_EUSAGE, "'%s' lacks a device at its end", text);
        at += gpu ? 4 : cpu ? 3 : 0;
        if ((!gpu && !cpu) || (*at && *at != ':' && *at != ','))
            return no_device(item);
        MGPU_TRY(gpu ? parse_gpus(l, item, &at) : parse_cpu(l, item, &at));
        if (!*at)
            return 0;
        if (*at != ',')
            return no_device(item);
        at++;
    }
}

/* The place of `number` among the distinct numbers, and how many of those there are. */
static int distinct(const struct list *l, int number, int *count)
{
    int place = 0, n = 0;
    for (int i = 0; i < l->count; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || l->number[k] == l->number[i];
        if (l->number[i] == number && !seen)
            place = n;
        n += !seen;
    }
    *count = n;
    return place;
}

static void give_cores(struct mgpu_rank_device *d, const struct list *l, int number)
{
    int core[MGPU_MAX_CORES], devices, all = allowed_cores(core);
    int place = distinct(l, number, &devices);
    int from = all * place / devices, to = all * (place + 1) / devices;
    if (to == from) { /* more devices than cores: shared */
        from = place % all;
        to = from + 1;
    }
    d->cores = to - from;
    memcpy(d->core, core + from, sizeof *core * (size_t)d->cores);
}

/* What was asked for, or an even share of the cores; never more than OMP_THREAD_LIMIT, since OpenMP
 * would then run fewer threads than the kernels count on. */
static int threads_of(const struct mgpu_rank_device *d, int twins, int asked)
{
    int threads = asked > 0 ? asked : d->cores / twins, limit = omp_get_thread_limit();
    return threads > limit ? limit : threads > 1 ? threads : 1;
}

int mgpu_devices_parse(struct mgpu_rank_device **out, int *count, const char *text, int threads)
{
    struct list l = {0};
    *out = NULL;
    MGPU_TRY(parse_list(&l, text));
    struct mgpu_rank_device *d = mgpu_xcalloc((size_t)l.count, sizeof *d);
    for (int i = 0; i < l.count; i++) {
        int twins = 0;
        for (int k = 0; k < l.count; k++)
            twins += l.number[k] == l.number[i];
        d[i].gpu = l.number[i] >= GPU ? l.number[i] - GPU : -1;
        if (d[i].gpu >= 0)
            snprintf(d[i].name, sizeof d[i].name, "cuda:%d", d[i].gpu);
        else
            snprintf(d[i].name, sizeof d[i].name, l.number[i] < 0 ? "cpu" : "cpu:%d", l.number[i]);
        give_cores(&d[i], &l, l.number[i]);
        d[i].threads = threads_of(&d[i], twins, threads);
    }
    *out = d;
    *count = l.count;
    return 0;
}

int mgpu_devices_option(struct mgpu_rank_device **out, int *count, const char *text, int threads)
{
    int rc = mgpu_prefix(mgpu_devices_parse(out, count, text, threads), "--devices");
    if (rc == MGPU_EDEVICE)
        return mgpu_fail(rc, "%s; for the CPU, type --devices cpu", mgpu_error());
    if (rc == 0 && threads > omp_get_thread_limit())
        mgpu_warn("--threads %d: OMP_THREAD_LIMIT allows %d", threads, omp_get_thread_limit());
    return rc;
}

int mgpu_device_check_beside(const char *device, bool cpu, const char *first, bool first_cpu)
{
    if (cpu ? first_cpu : !first_cpu && !strcmp(device, first))
        return 0;
    return mgpu_fail(
        MGPU_EUNSUPPORTED,
        "%s beside %s: ranks on several GPUs, or on GPUs and the CPU, are not supported", device,
        first);
}

int mgpu_devices_multiplex(struct mgpu_rank_device **devices, int *count, int ranks)
{
    if (ranks < 1 || ranks > MGPU_MAX_RANKS)
        return mgpu_fail(MGPU_EUSAGE, "--deterministic: 1 to %d logical ranks, not %d",
                         MGPU_MAX_RANKS, ranks);
    struct mgpu_rank_device *d = mgpu_xcalloc((size_t)ranks, sizeof *d);
    for (int i = 0; i < ranks; i++) {
        d[i] = (*devices)[i % *count];
        d[i].threads = 1;
    }
    free(*devices);
    *devices = d;
    *count = ranks;
    return 0;
}

int mgpu_device_check_precision(const char *device, bool cpu, int sm, const char *precision)
{
    bool bf16 = !strcmp(precision, "bf16");
    if (cpu && (bf16 || !strcmp(precision, "f16")))
        return mgpu_fail(MGPU_EUNSUPPORTED,
                         "--precision %s: the kernels of %s compute in float32 and float64; use a "
                         "GPU (--devices cuda:0), or leave --precision out",
                         precision, device);
    if (!cpu && sm && sm < 80 && (bf16 || !strcmp(precision, "tf32")))
        return mgpu_fail(MGPU_EDEVICE,
                         "--precision %s: %s has compute capability %d.%d; products of bfloat16 "
                         "and TF32 need 8.0 (f16 and f32 do not)",
                         precision, device, sm / 10, sm % 10);
    return 0;
}
