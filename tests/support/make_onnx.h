/* ONNX models for tests, written as text, one statement a line:
 *
 *     ir 9
 *     opset 17
 *     opset local 1
 *     producer pytorch
 *     input x float N 4
 *     init W float 4 2 = 1 2 3 4 5 6 7 8      one number is repeated; no dims: a scalar
 *     init W float 4 2 = normal 0.1           random, of this standard deviation
 *     y, z = Split(x, -) axis=1 num_outputs=2  "-" is an absent input or output
 *     h = local.inner(x) k=3.0
 *     output y float N 2
 *
 * Attributes: 3 (int), 3.0 (float), "text", [1, 2], [1.0, 2.0], ["a", "b"], @name (a graph that was
 * given before), <float 2 = 1 2> (a tensor), $k:float (in a function: its attribute k; int, ints,
 * floats, string, tensor too). name="..." is the node's name, scopes="..." and classes="..." what
 * dynamo writes as pkg.torch.onnx.name_scopes and .class_hierarchy.
 *
 *     graph then {                             a body, for then_branch=@then
 *         t = Mul(x, W1)
 *         output t
 *     }
 *     function local inner(x) k s=0.5 -> y {   attributes without and with a default
 *         opset 17
 *         y = Mul(x, x)
 *     }
 */
#ifndef MGPU_TESTS_MAKE_ONNX_H
#define MGPU_TESTS_MAKE_ONNX_H

#include "importer/onnx.pb-c.h"
#include "runtime/base/memory.h"

/* The model; aborts with the line where the text is wrong. Lives in the arena. IR 8 and opset 17
 * unless the text says otherwise. */
Onnx__ModelProto *make_onnx(struct mgpu_arena *arena, const char *text);

/* The same, written to `path`. */
void make_onnx_file(const char *path, const char *text);

#endif
