/* The name that a person probably meant. */
#ifndef MGPU_BASE_NEAREST_H
#define MGPU_BASE_NEAREST_H

/* The name in `names` with the smallest edit distance (insert, delete, replace, swap of neighbours)
 * to `name`, or NULL when none is closer than about a third of its length. */
const char *mgpu_nearest(const char *name, const char *const *names, int count);

#endif
