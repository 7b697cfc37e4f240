/* One test case in the layout of the ONNX standard's backend tests:
 *
 *     FOLDER/model.onnx                        the model
 *     FOLDER/test_data_set_N/input_K.pb        TensorProto of the graph's input K
 *     FOLDER/test_data_set_N/output_K.pb       TensorProto that output K must be
 *
 * The model runs as it is (inference, every element type) through importer, compilation and
 * executor on one rank, as in training. Its inputs are fed when it runs; where an operator needs
 * one as a constant (a shape, a mask whose ones are counted) they are known when it compiles.
 * Of a model that draws random numbers types and shapes are compared; dropout is left out.
 */
#ifndef MGPU_TESTS_ONNX_CASE_H
#define MGPU_TESTS_ONNX_CASE_H

enum mgpu_onnx_outcome { MGPU_ONNX_PASS, MGPU_ONNX_FAIL, MGPU_ONNX_UNSUPPORTED };

struct mgpu_onnx_case {
    const char *folder;
    double rtol, atol; /* |got - want| <= atol + rtol * |want| */
    enum mgpu_onnx_outcome outcome;
    char reason[512]; /* of what did not pass; one line */
};

/* The tolerances of the standard's own runner. */
#define MGPU_ONNX_RTOL 1e-3
#define MGPU_ONNX_ATOL 1e-7

/* Fills outcome and reason. */
void mgpu_onnx_case_run(struct mgpu_onnx_case *c);

/* "PASS", "FAIL", "UNSUPPORTED". */
const char *mgpu_onnx_outcome_name(enum mgpu_onnx_outcome outcome);

/* The case folders in `root` (itself, or those below it), sorted; free each and the list. */
char **mgpu_onnx_case_folders(const char *root, int *count);

/* The last part of a path. */
const char *mgpu_onnx_case_name(const char *folder);

#endif
