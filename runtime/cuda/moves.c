#include "runtime/cuda/moves.h"

#include "runtime/base/status.h"
#include "runtime/cuda/compile.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/error.h"

#include <assert.h>

enum { THREADS = 256, MOST_SHARE = 128 };

/* In the order of struct mgpu_moves. `i` goes over all units of a move, rows one after the other.
 */
const char mgpu_moves_text[] =
    "struct move { char *to; const char *from; i64 to_row, from_row, to_block, from_block;\n"
    "    i64 width, rows, blocks; u32 value, unit; };\n"
    "struct moves { int count, share; struct move move[40]; };\n"
    "#define MOVE(type, ...) \\\n"
    "    for (i64 i = first; i < units * m.rows * m.blocks; i += step) { \\\n"
    "        const i64 line = i / units, row = line % m.rows, block = line / m.rows; \\\n"
    "        const i64 at = i % units * (i64)sizeof(type); \\\n"
    "        char *to = m.to + block * m.to_block + row * m.to_row + at; \\\n"
    "        const char *from = m.from + block * m.from_block + row * m.from_row + at; \\\n"
    "        const type filler = __VA_ARGS__; \\\n"
    "        VECTOR_AT(type, to) = m.from ? VECTOR_AT(const type, from) : filler; \\\n"
    "    }\n"
    "KERNEL(move)(const struct moves all)\n"
    "{\n"
    "    const struct move m = all.move[blockIdx.x / all.share];\n"
    "    const i64 first = (i64)(blockIdx.x % all.share) * blockDim.x + threadIdx.x;\n"
    "    const i64 step = (i64)all.share * blockDim.x, units = m.width / m.unit;\n"
    "    if (m.unit == 16)\n"
    "        MOVE(vec_uint32_4, {{m.value, m.value, m.value, m.value}})\n"
    "    else if (m.unit == 4)\n"
    "        MOVE(u32, m.value)\n"
    "    else\n"
    "        MOVE(u16, (u16)m.value)\n"
    "}\n";

static_assert(sizeof(struct mgpu_moves) <= 4096, "a kernel's parameters");
static_assert(MGPU_MOST_MOVES == 40, "what the text says");

static uint32_t unit_of(const struct mgpu_move *m)
{
    int64_t all = (int64_t)(uintptr_t)m->to | (int64_t)(uintptr_t)m->from | m->to_row |
                  m->from_row | m->to_block | m->from_block | m->width;
    return !(all & 15) ? 16 : !(all & 3) ? 4 : 2;
}

void mgpu_moves_add(struct mgpu_moves *moves, struct mgpu_move move)
{
    assert(moves->count < MGPU_MOST_MOVES);
    move.rows += !move.rows;
    move.blocks += !move.blocks;
    move.unit = unit_of(&move);
    if (move.width > 0)
        moves->move[moves->count++] = move;
}

int mgpu_moves_load(CUmodule *module, CUfunction *mover, const struct mgpu_cuda_driver *driver,
                    int sm)
{
    struct mgpu_cubin cubin;
    MGPU_TRY(mgpu_cuda_compile_cached(&cubin, mgpu_moves_text, sm));
    int rc =
        mgpu_cuda_status(driver, driver->cuModuleLoadData(module, cubin.data), "cuModuleLoadData");
    mgpu_cubin_free(&cubin);
    MGPU_TRY(rc);
    rc = mgpu_cuda_status(driver, driver->cuModuleGetFunction(mover, *module, "move"),
                          "cuModuleGetFunction");
    if (rc < 0) {
        driver->cuModuleUnload(*module);
        *module = NULL;
    }
    return rc;
}

/* As many blocks as the largest move has work for. */
static int32_t share_of(const struct mgpu_moves *moves)
{
    int64_t most = 1;
    for (int i = 0; i < moves->count; i++) {
        const struct mgpu_move *m = &moves->move[i];
        int64_t blocks = (m->width / m->unit * m->rows * m->blocks + THREADS - 1) / THREADS;
        most = blocks > most ? blocks : most;
    }
    return (int32_t)(most < MOST_SHARE ? most : MOST_SHARE);
}

int mgpu_moves_run(CUfunction mover, const struct mgpu_cuda_driver *driver,
                   struct mgpu_moves *moves, CUstream stream)
{
    void *parameter[] = {moves};
    if (!moves->count)
        return 0;
    moves->share = share_of(moves);
    unsigned blocks = (unsigned)(moves->count * moves->share);
    return mgpu_cuda_status(
        driver,
        driver->cuLaunchKernel(mover, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameter, NULL),
        "cuLaunchKernel");
}
