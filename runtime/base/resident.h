/* How much memory this process is in. */
#ifndef MGPU_BASE_RESIDENT_H
#define MGPU_BASE_RESIDENT_H

#include <stdint.h>

/* Bytes that are in memory now; 0 where the system does not say. */
int64_t mgpu_resident_bytes(void);

#endif
