#include "runtime/graph/dim.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct mgpu_dim mgpu_dim_const(int64_t value)
{
    return (struct mgpu_dim){.value = value, .factor = value};
}

struct mgpu_dim mgpu_dim_symbol(int symbol, int64_t value)
{
    struct mgpu_dim d = {.value = value, .factor = 1};
    d.power[symbol] = 1;
    return d;
}

struct mgpu_dim mgpu_dim_opaque(int64_t value)
{
    struct mgpu_dim d = {.value = value, .factor = value, .opaque = true};
    d.power[MGPU_BATCH] = 1;
    return d;
}

struct mgpu_dim mgpu_dim_lost(int64_t value, struct mgpu_dim a, struct mgpu_dim b)
{
    struct mgpu_dim d = mgpu_dim_const(value);
    for (int i = 0; i < MGPU_SYMBOLS; i++)
        d.power[i] = a.power[i] || b.power[i];
    d.opaque = !mgpu_dim_is_const(d);
    return d;
}

bool mgpu_dim_is_const(struct mgpu_dim a)
{
    for (int i = 0; i < MGPU_SYMBOLS; i++)
        if (a.power[i])
            return false;
    return true;
}

bool mgpu_dim_has(struct mgpu_dim a, int symbol)
{
    return a.power[symbol] > 0;
}

bool mgpu_dim_same(struct mgpu_dim a, struct mgpu_dim b)
{
    return a.value == b.value && a.factor == b.factor && a.opaque == b.opaque &&
           !memcmp(a.power, b.power, sizeof a.power);
}

/* Two's complement without undefined overflow: sizes from files may be anything. */
static int64_t times(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

struct mgpu_dim mgpu_dim_mul(struct mgpu_dim a, struct mgpu_dim b)
{
    int64_t value = times(a.value, b.value);
    if (value == 0 && (a.factor == 0 || b.factor == 0))
        return mgpu_dim_const(0);
    if (a.opaque || b.opaque)
        return mgpu_dim_lost(value, a, b);
    struct mgpu_dim d = {.value = value, .factor = times(a.factor, b.factor)};
    for (int i = 0; i < MGPU_SYMBOLS; i++)
        d.power[i] = (uint8_t)(a.power[i] + b.power[i]);
    return d;
}

static int64_t quotient(int64_t a, int64_t b)
{
    return b == -1 ? times(a, -1) : b ? a / b : 0;
}

static int64_t remainder_of(int64_t a, int64_t b)
{
    return b == -1 || b == 0 ? 0 : a % b;
}

struct mgpu_dim mgpu_dim_div(struct mgpu_dim a, struct mgpu_dim b)
{
    int64_t value = quotient(a.value, b.value);
    if (mgpu_dim_is_const(a) && mgpu_dim_is_const(b))
        return mgpu_dim_const(value);
    if (a.opaque || b.opaque || remainder_of(a.factor, b.factor))
        return mgpu_dim_lost(value, a, b);
    struct mgpu_dim d = {.value = value, .factor = quotient(a.factor, b.factor)};
    for (int i = 0; i < MGPU_SYMBOLS; i++) {
        if (b.power[i] > a.power[i])
            return mgpu_dim_lost(value, a, b);
        d.power[i] = (uint8_t)(a.power[i] - b.power[i]);
    }
    return d;
}

struct mgpu_dim mgpu_dim_add(struct mgpu_dim a, struct mgpu_dim b)
{
    int64_t value = (int64_t)((uint64_t)a.value + (uint64_t)b.value);
    if (mgpu_dim_is_const(a) && mgpu_dim_is_const(b))
        return mgpu_dim_const(value);
    if (mgpu_dim_is_const(a) && a.value == 0)
        return b;
    if (mgpu_dim_is_const(b) && b.value == 0)
        return a;
    if (a.opaque || b.opaque || memcmp(a.power, b.power, sizeof a.power))
        return mgpu_dim_lost(value, a, b);
    a.value = value;
    a.factor = (int64_t)((uint64_t)a.factor + (uint64_t)b.factor);
    return a.factor ? a : mgpu_dim_const(0);
}

struct mgpu_dim mgpu_dim_neg(struct mgpu_dim a)
{
    a.value = times(a.value, -1);
    a.factor = times(a.factor, -1);
    return a;
}

char *mgpu_dim_text(char text[MGPU_DIM_TEXT], struct mgpu_dim a, const char *const *names)
{
    if (a.opaque) {
        snprintf(text, MGPU_DIM_TEXT, "?%" PRId64, a.value);
        return text;
    }
    int used = 0;
    if (a.factor != 1 || mgpu_dim_is_const(a))
        used = snprintf(text, MGPU_DIM_TEXT, "%" PRId64, a.factor);
    for (int i = 0; i < MGPU_SYMBOLS; i++)
        for (int k = 0; k < a.power[i] && used < MGPU_DIM_TEXT; k++)
            used += snprintf(text + used, (size_t)(MGPU_DIM_TEXT - used), "%s%s", used ? "*" : "",
                             names && names[i] ? names[i]
                             : i == MGPU_BATCH ? "N"
                                               : "S");
    return text;
}
