#include "runtime/base/nearest.h"

#include <stddef.h>
#include <string.h>

enum { LENGTH = 64 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Damerau's distance, row by row; longer names are not compared. */
static int distance(const char *a, const char *b)
{
    int rows[3][LENGTH + 1] = {{0}}, n = (int)strlen(a), m = (int)strlen(b);
    for (int j = 0; j <= m; j++)
        rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            now[j] = least(least(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], before[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

const char *mgpu_nearest(const char *name, const char *const *names, int count)
{
    const char *out = NULL;
    if (strlen(name) > LENGTH)
        return NULL;
    int best = (int)strlen(name) / 3 + 2;
    for (int i = 0; i < count; i++) {
        if (strlen(names[i]) > LENGTH)
            continue;
        int d = distance(name, names[i]);
        if (d < best) {
            best = d;
            out = names[i];
        }
    }
    return out;
}
