#include "runtime/cpu/rnn_cell.h"
#include "runtime/cpu/simd.h"

/* ---- Forward --------------------------------------------------------------------------------- */

MGPU_SIMD static void tanh_forward(int64_t H, const float *s, const float *u, const float *bias,
                                   float *h, float *reserve)
{
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++)
        h[j] = reserve[j] = mgpu_tanhf(s[j] + u[j] + bias[j]);
}

MGPU_SIMD static void relu_forward(int64_t H, const float *s, const float *u, const float *bias,
                                   float *h, float *reserve)
{
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++) {
        float sum = s[j] + u[j] + bias[j];
        h[j] = reserve[j] = sum < 0 ? 0 : sum;
    }
}

MGPU_SIMD static void gru_forward(int64_t H, const float *s, const float *u, const float *bias,
                                  const float *part_bias, float *h, float *reserve)
{
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++) {
        float z = mgpu_sigmoidf(s[j] + u[j] + bias[j]);
        float r = mgpu_sigmoidf(s[H + j] + u[H + j] + bias[H + j]);
        float part = u[2 * H + j] + part_bias[j];
        float n = mgpu_tanhf(s[2 * H + j] + bias[2 * H + j] + r * part);
        h[j] = (1 - z) * n + z * h[j];
        reserve[j] = z;
        reserve[H + j] = r;
        reserve[2 * H + j] = n;
        reserve[3 * H + j] = part;
    }
}

MGPU_SIMD static void lstm_forward(int64_t H, const float *s, const float *u, const float *bias,
                                   float *h, float *c, float *reserve)
{
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++) {
        float i = mgpu_sigmoidf(s[j] + u[j] + bias[j]);
        float o = mgpu_sigmoidf(s[H + j] + u[H + j] + bias[H + j]);
        float f = mgpu_sigmoidf(s[2 * H + j] + u[2 * H + j] + bias[2 * H + j]);
        float g = mgpu_tanhf(s[3 * H + j] + u[3 * H + j] + bias[3 * H + j]);
        float cell = f * c[j] + i * g;
        c[j] = cell;
        h[j] = o * mgpu_tanhf(cell);
        reserve[j] = i;
        reserve[H + j] = o;
        reserve[2 * H + j] = f;
        reserve[3 * H + j] = g;
        reserve[4 * H + j] = cell;
    }
}

void mgpu_cpu_cell_forward(enum mgpu_cpu_cell cell, int64_t hidden, const float *s, const float *u,
                           const float *bias, const float *part_bias, float *h, float *c,
                           float *reserve)
{
    switch (cell) {
    case MGPU_CELL_TANH:
        tanh_forward(hidden, s, u, bias, h, reserve);
        break;
    case MGPU_CELL_RELU:
        relu_forward(hidden, s, u, bias, h, reserve);
        break;
    case MGPU_CELL_GRU:
        gru_forward(hidden, s, u, bias, part_bias, h, reserve);
        break;
    case MGPU_CELL_LSTM:
        lstm_forward(hidden, s, u, bias, h, c, reserve);
        break;
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

MGPU_SIMD static void rnn_backward(int64_t H, bool relu, const float *reserve, float *dh, float *ds)
{
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++) {
        float h = reserve[j], slope = relu ? (h > 0 ? 1 : 0) : 1 - h * h;
        ds[j] = dh[j] * slope;
        dh[j] = 0;
    }
}

MGPU_SIMD static void gru_backward(int64_t H, const float *reserve, const float *old_h, float *dh,
                                   float *ds, float *du)
{
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++) {
        float z = reserve[j], r = reserve[H + j], n = reserve[2 * H + j];
        float part = reserve[3 * H + j], d = dh[j];
        float dn = d * (1 - z) * (1 - n * n);
        float dz = d * (old_h[j] - n) * z * (1 - z);
        float dr = dn * part * r * (1 - r);
        ds[j] = du[j] = dz;
        ds[H + j] = du[H + j] = dr;
        ds[2 * H + j] = dn;
        du[2 * H + j] = dn * r;
        dh[j] = d * z;
    }
}

MGPU_SIMD static void lstm_backward(int64_t H, const float *reserve, const float *old_c, float *dh,
                                    float *dc, float *ds)
{
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++) {
        float i = reserve[j], o = reserve[H + j], f = reserve[2 * H + j], g = reserve[3 * H + j];
        float out = mgpu_tanhf(reserve[4 * H + j]), d = dh[j];
        float cell = dc[j] + d * o * (1 - out * out);
        ds[j] = cell * g * i * (1 - i);
        ds[H + j] = d * out * o * (1 - o);
        ds[2 * H + j] = cell * old_c[j] * f * (1 - f);
        ds[3 * H + j] = cell * i * (1 - g * g);
        dc[j] = cell * f;
        dh[j] = 0;
    }
}

void mgpu_cpu_cell_backward(enum mgpu_cpu_cell cell, int64_t hidden, const float *reserve,
                            const float *old_h, const float *old_c, float *dh, float *dc, float *ds,
                            float *du)
{
    if (cell == MGPU_CELL_LSTM)
        lstm_backward(hidden, reserve, old_c, dh, dc, ds);
    else if (cell == MGPU_CELL_GRU)
        gru_backward(hidden, reserve, old_h, dh, ds, du);
    else
        rnn_backward(hidden, cell == MGPU_CELL_RELU, reserve, dh, ds);
}
