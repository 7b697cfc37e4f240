#include "runtime/emit/tiles.h"

enum { TILE = 64, DEPTH = 16, THREADS = 256, EACH = 4 }; /* EACH * EACH results of a thread */

void mgpu_write_tiles_begin(struct mgpu_writer *w, const struct mgpu_tiles *t)
{
    long long rows = (t->m + TILE - 1) / TILE, columns = (t->n + TILE - 1) / TILE;
    mgpu_write_kernel(w, rows * columns * t->batch, THREADS, true);
    mgpu_write(w, "    __shared__ %s tile_a[%d][%d], tile_b[%d][%d];\n", t->real, DEPTH, TILE + 1,
               DEPTH, TILE + 1);
    mgpu_write(w, "    const u32 x = threadIdx.x %% %d, y = threadIdx.x / %d;\n", TILE / EACH,
               TILE / EACH);
    mgpu_write(w,
               "    const i64 column = blockIdx.x %% %lld * %d, row = blockIdx.x / %lld %% %lld * "
               "%d;\n    const u32 batch = blockIdx.x / %lld;\n",
               columns, TILE, columns, rows, TILE, rows * columns);
}

/* Fills a tile [DEPTH][TILE]; neighbouring threads read what lies side by side. */
static void write_load(struct mgpu_writer *w, const struct mgpu_tiles *t, bool a)
{
    bool along_k = a ? t->a_along_k : t->b_along_k;
    mgpu_write(
        w,
        "        for (u32 t = threadIdx.x; t < %d; t += %d) {\n            const u32 depth = t %s "
        "%d, r = t %s %d;\n",
        TILE * DEPTH, THREADS, along_k ? "%" : "/", along_k ? DEPTH : TILE, along_k ? "/" : "%",
        along_k ? DEPTH : TILE);
    mgpu_write(w, "            const i64 k = from + depth, %s + r;\n",
               a ? "i = row" : "j = column");
    mgpu_write(w,
               "            tile_%c[depth][r] = %c < %lld && k < %lld ? (%s)(%s) : 0;\n        }\n",
               a ? 'a' : 'b', a ? 'i' : 'j', (long long)(a ? t->m : t->n), (long long)t->k, t->real,
               a ? t->a : t->b);
}

void mgpu_write_tiles_sum(struct mgpu_writer *w, const struct mgpu_tiles *t)
{
    mgpu_write(w,
               "    %s own[%d][%d] = {{0}};\n    for (i64 from = 0; from < %lld; from += %d) {\n",
               t->real, EACH, EACH, (long long)t->k, DEPTH);
    write_load(w, t, true);
    write_load(w, t, false);
    mgpu_write(
        w,
        "        __syncthreads();\n        UNROLL\n        for (int k = 0; k < %d; k++) {\n"
        "            UNROLL\n            for (int p = 0; p < %d; p++) {\n                UNROLL\n"
        "                for (int q = 0; q < %d; q++)\n                    own[p][q] += "
        "tile_a[k][y + %d * p] * tile_b[k][x + %d * q];\n            }\n        }\n        "
        "__syncthreads();\n    }\n",
        DEPTH, EACH, EACH, TILE / EACH, TILE / EACH);
    mgpu_write(w,
               "    UNROLL\n    for (int p = 0; p < %d; p++) {\n        UNROLL\n        for (int q "
               "= 0; q < %d; q++) {\n            const i64 i = row + y + %d * p, j = column + x + "
               "%d * q;\n            const %s sum = own[p][q];\n            if (i < %lld && j < "
               "%lld) {\n",
               EACH, EACH, TILE / EACH, TILE / EACH, t->real, (long long)t->m, (long long)t->n);
}

void mgpu_write_tiles_end(struct mgpu_writer *w)
{
    mgpu_write(w, "            }\n        }\n    }\n}\n");
}
