/* A folder of pictures (JPEG, PNG) with one folder a class: two arrays.
 *
 *     image   uint8 [N,3,H,W] (or [N,H,W,3], or with one channel), 0 to 255, in the size of the
 * input that it is for (mgpu_images_fit); decoded when it is read label   int64 [N]: the class,
 * numbered by the folders' names in alphabetical order
 *
 * Pictures are in the order of their paths. Names that begin with a dot are left out; files that
 * are not called .jpg, .jpeg or .png too, which is said.
 */
#ifndef MGPU_DATA_IMAGES_H
#define MGPU_DATA_IMAGES_H

#include "runtime/data/dataset.h"

extern const struct mgpu_dataset_kind mgpu_dataset_images;

/* The shape that an input has, -1 where any size will do: then it is that of the first picture.
 * MGPU_EINVALID where no picture can be that. Does nothing for labels and other kinds. */
int mgpu_images_fit(struct mgpu_dataset *dataset, int rank, const int64_t *dims);

/* The classes by number, none where the pictures have none; NULL: another kind. */
const struct mgpu_name_list *mgpu_images_classes(const struct mgpu_dataset *dataset);

#endif
