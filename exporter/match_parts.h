/* What the files of match.h pass to one another. */
#ifndef MGPU_EXPORTER_MATCH_PARTS_H
#define MGPU_EXPORTER_MATCH_PARTS_H

#include "exporter/match.h"
#include "runtime/base/names.h"

struct mgpu_file_layer { /* tensors of a file that belong together */
    const char *path;    /* "" where the file has no names */
    const char *inner;   /* without the nested model's name; NULL: none */
    const char *outer;   /* of a direction: the layer around both; NULL: none */
    const char *group, *class_name;
    enum mgpu_direction direction;
    bool by_attribute; /* as in mgpu_checkpoint_tensor */
    int tensors, *tensor;
    int of; /* the model's layer; -1: none yet */
};

struct mgpu_layers {
    int count;
    struct mgpu_file_layer *layer;
};

/* match.c */
void mgpu_match_pair(struct mgpu_match *m, int tensor, int variable);
void mgpu_match_whole(struct mgpu_match *m, int tensor, int variable); /* as ONNX has it */
void mgpu_match_exact(struct mgpu_match *m);
/* When the names of m->file have changed: by equal names, and the layers anew. */
void mgpu_match_list_again(struct mgpu_match *m, struct mgpu_layers *layers);
void mgpu_match_layer(struct mgpu_match *m, struct mgpu_file_layer *l, int layer);
bool mgpu_match_looks_like(const struct mgpu_match *m, const struct mgpu_file_layer *l, int layer);
/* As many tensors as variables, each with a place by shape and, where both have one, by name. */
bool mgpu_match_fits_layer(const struct mgpu_match *m, const struct mgpu_file_layer *l, int layer);

/* match_names.c */
/* Whether the last parts of `path` are `end`. */
bool mgpu_match_is_end(const char *end, const char *path);
/* `counted`: numbers that Keras gave may be others, too. */
void mgpu_match_names(struct mgpu_match *m, struct mgpu_layers *file, bool counted);

/* match_counters.c: gives the file's layers that Keras named itself the model's numbers; false:
 * they had them. */
bool mgpu_match_recount(struct mgpu_match *m, struct mgpu_layers *file);

/* match_structure.c */
void mgpu_match_structure(struct mgpu_match *m, struct mgpu_layers *file);
void mgpu_match_order(struct mgpu_match *m, struct mgpu_layers *file);

/* match_rules.c: the user's */
int mgpu_match_rules(struct mgpu_match *m, const char *path);

/* match_copies.c: tensors without a place that are copies of one that has it get its variable. */
void mgpu_match_copies(struct mgpu_match *m);

/* match_constants.c: tensors that are constants in the graph, and whether it has the same numbers.
 */
void mgpu_match_constants(struct mgpu_match *m, const struct mgpu_layers *file);
/* Whether it is no layer in the graph: all that it has is such a constant or of no use there. */
bool mgpu_match_is_beside(const struct mgpu_match *m, const struct mgpu_file_layer *l);

/* match_buffers.c: whether the graph has, as a constant, what the tensor's numbers give. */
bool mgpu_match_is_in_graph(const struct mgpu_match *m, int tensor);

/* match_judge.c: counts, faults, and whether they are allowed. */
int mgpu_match_judge(struct mgpu_match *m, const struct mgpu_layers *file,
                     const struct mgpu_match_options *options);

#endif
