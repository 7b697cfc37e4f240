/* What no placement can beat: lower bounds of a step's time. */
#ifndef MGPU_PARTITIONER_BOUNDS_H
#define MGPU_PARTITIONER_BOUNDS_H

#include "partitioner/simulate.h"

struct mgpu_bounds { /* ms; but for `step`, from the first task on */
    double path; /* longest chain of tasks, each on its best device; pinned groups where they are */
    double work; /* all work spread over the devices: sum_v min_d(y_d t_vd) with sum(y) = 1, for y
                  * as the devices' speed, and for each device with pins alone */
    double group; /* the longest group, on its best device */
    double sums;  /* replicas: the path to a gradient, its sum and its update; and the sum of what
                   * the fullest device must hold */
    double step;  /* the largest of them, and what the host does before; INFINITY when parameters
                   * cannot fit the memory */
    double alone; /* all work on the best single device: alone / path is what placement may win */
};

/* Of one replica, for any assignment that obeys the pins, in any order of tasks. */
void mgpu_bound(struct mgpu_bounds *bounds, const struct mgpu_flow *flow,
                const struct mgpu_replica *replica);

#endif
