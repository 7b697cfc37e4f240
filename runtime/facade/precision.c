/* --precision, and the scale of the loss in float16. */
#include "runtime/base/option_text.h"
#include "runtime/base/record.h"
#include "runtime/base/status.h"
#include "runtime/cuda/cuda.h"
#include "runtime/facade/facade.h"

#include <string.h>

static const double LEAST = 0x1p-24, MOST = 0x1p24;

/* ---- Options --------------------------------------------------------------------------------- */

static int parse_start(struct mgpu_loss_scale *s, const char *text)
{
    if (mgpu_text_double(&s->asked, "START", text, LEAST, MOST) == 0) {
        s->scale = s->asked;
        return 0;
    }
    return mgpu_fail(MGPU_EUSAGE,
                     "--loss-scale: '%s' is not a number from 2^-24 (%.3g) to 2^24 (%.0f)", text,
                     LEAST, MOST);
}

/* START[,every=N], or one of them */
static int parse_scale(struct mgpu_trainer *t, const char *text)
{
    struct mgpu_item *item;
    int count;
    mgpu_items_cut(&item, &count, text, NULL, 0, t->arena);
    if (count == 0)
        return parse_start(&t->scaling, "");
    for (int i = 0; i < count; i++)
        if (i == 0 && !item[i].value)
            MGPU_TRY(parse_start(&t->scaling, item[i].name));
        else if (!strcmp(item[i].name, "every") && item[i].value)
            MGPU_TRY(mgpu_prefix(
                mgpu_text_int(&t->scaling.every, "every", item[i].value, 1, INT64_C(1) << 52),
                "--loss-scale"));
        else
            return mgpu_fail(MGPU_EUSAGE, "--loss-scale: '%s' is not START[,every=N]", text);
    return 0;
}

int mgpu_settle_precision(struct mgpu_trainer *t)
{
    enum { F32, F64, TF32, BF16, F16 };
    static const char *const words[] = {"f32", "f64", "tf32", "bf16", "f16", NULL};
    const struct mgpu_options *o = &t->options;
    int k;
    MGPU_TRY(mgpu_settle_word(&k, "--precision", o->precision ? o->precision : "f32", words));
    t->lower.float_type = k == F64 ? MGPU_DOUBLE : MGPU_FLOAT;
    t->tf32 = k == TF32;
    t->half = k == BF16 ? MGPU_BFLOAT16 : k == F16 ? MGPU_FLOAT16 : MGPU_UNDEFINED;
    t->scaling =
        (struct mgpu_loss_scale){.on = k == F16, .scale = k == F16 ? 65536 : 1, .every = 2000};
    if (o->loss_scale && k != F16)
        return mgpu_fail(MGPU_EUSAGE, "--loss-scale: only float16 needs one (--precision f16)");
    MGPU_TRY(o->loss_scale ? parse_scale(t, o->loss_scale) : 0);
    t->scaling.used = t->scaling.scale;
    return 0;
}

int mgpu_check_precision(const struct mgpu_rank_device *d, const char *precision)
{
    struct mgpu_gpu_facts gpu = {0};
    if (d->gpu >= 0)
        MGPU_TRY(mgpu_cuda_facts(&gpu, d->gpu));
    return mgpu_device_check_precision(d->name, d->gpu < 0, gpu.sm, precision);
}

void mgpu_warn_tf32(const char *precision, bool cpu, const char *device)
{
    if (cpu && precision && !strcmp(precision, "tf32"))
        mgpu_warn("--precision tf32: only a GPU has TF32; %s computes in float32", device);
}

int mgpu_settle_precision_devices(struct mgpu_trainer *t, int ranks)
{
    const char *precision = t->options.precision;
    for (int i = 0; i < ranks; i++) {
        t->devices[i].tf32 = t->tf32;
        MGPU_TRY(precision ? mgpu_check_precision(&t->devices[i], precision) : 0);
    }
    mgpu_warn_tf32(precision, t->devices[0].gpu < 0, t->devices[0].name);
    return 0;
}

/* ---- The scale ------------------------------------------------------------------------------- */

static void change(struct mgpu_trainer *t, double to)
{
    t->scaling.scale = to;
    t->scaling.good = 0;
}

bool mgpu_scale_grows(const struct mgpu_loss_scale *s)
{
    return s->on && s->good + 1 >= s->every && s->scale * 2 <= MOST;
}

void mgpu_scale_up(struct mgpu_trainer *t)
{
    struct mgpu_loss_scale *s = &t->scaling;
    s->used = s->scale;
    if (mgpu_scale_grows(s))
        change(t, s->scale * 2);
    else
        s->good++;
}

bool mgpu_scale_down(struct mgpu_trainer *t)
{
    struct mgpu_loss_scale *s = &t->scaling;
    s->used = s->scale;
    if (s->scale / 2 < LEAST)
        return false;
    change(t, s->scale / 2);
    mgpu_note("step %lld changes nothing: float16 does not hold its gradients times %g; from now "
              "on they are times %g",
              (long long)t->step + 1, s->used, s->scale);
    return true;
}

/* Of a run in float16, into one. */
int mgpu_scale_record(struct mgpu_trainer *t, struct mgpu_record *r)
{
    if (!t->scaling.on || (r->restores && !mgpu_record_has(r, "loss_scale")))
        return 0;
    MGPU_TRY(mgpu_record_real(r, "loss_scale", &t->scaling.scale));
    MGPU_TRY(mgpu_record_int(r, "loss_scale.good", &t->scaling.good));
    t->scaling.used = t->scaling.scale;
    if (!(t->scaling.scale >= LEAST && t->scaling.scale <= MOST && t->scaling.good >= 0))
        return mgpu_fail(MGPU_EINVALID, "loss_scale %g: there is no such scale", t->scaling.scale);
    if (r->restores && t->scaling.asked && t->scaling.asked != t->scaling.scale)
        mgpu_note("--loss-scale %g: the scale stays %g, that of %s", t->scaling.asked,
                  t->scaling.scale, t->options.resume);
    return 0;
}
