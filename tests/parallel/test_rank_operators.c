/* Models with one uncommon operator each, trained on 1, 2 and 3 ranks in f64: the same numbers. One
 * that looks at the whole batch is refused, by name. */
#include "tests/support/tiny.h"
#include "tests/test.h"

/* x [N,...] through W (joined so that the gradient passes the operator) to y. */
static const struct {
    const char *text;
    int rank;
    int64_t dims[5]; /* of x, N in front */
    int64_t out;     /* elements of y a sample */
    int weights;     /* elements of W */
    const char *refused;
} rows[] = {
    {"input x float N 1 4 4\ninit W float 1 1 4 4 = normal 0.5\nh = Mul(x, W)\n"
     "p, i = MaxPool(h) kernel_shape=[2, 2] strides=[2, 2]\n"
     "u = MaxUnpool(p, i) kernel_shape=[2, 2] strides=[2, 2]\ny = Flatten(u)\noutput y float N "
     "16\n",
     4,
     {7, 1, 4, 4},
     16,
     16,
     NULL},
    {"opset 18\ninput x float N 8 2\ninit W float 1 8 2 = normal 0.5\nh = Mul(x, W)\n"
     "init i int64 2 = 2 3\ninit b int64 2 = 2 2\nc = Col2Im(h, i, b)\ny = Flatten(c)\n"
     "output y float N 12\n",
     3,
     {7, 8, 2},
     12,
     16,
     NULL},
    {"opset 19\ninput x float N 2 3 3\ninit W float 1 2 2 2 = normal 0.5\n"
     "init O float 1 8 2 2 = normal 0.3\ninit z float = 0\no = Mul(x, z)\nr = ReduceSum(o)"
     " keepdims=0\ninit s int64 4 = -1 1 1 1\ninit a int64 3 = 1 2 3\n"
     "q = ReduceSum(o, a)\noff = Add(q, O)\nc = DeformConv(x, W, off)\ny = Flatten(c)\n"
     "output y float N 4\n",
     4,
     {7, 2, 3, 3},
     4,
     8,
     NULL},
    {"input x float N 8 1\ninit W float 8 1 = normal 0.5\ninit s int64 = 2\ninit w float 4 = 0.5\n"
     "h = Mul(x, W)\nc = STFT(h, s, w)\ny = Flatten(c)\noutput y float N 18\n",
     3,
     {7, 8, 1},
     18,
     8,
     NULL},
    {"opset 20\ninput x float N 4 1\ninit W float 4 1 = normal 0.5\nh = Mul(x, W)\nc = DFT(h)\n"
     "y = Flatten(c)\noutput y float N 8\n",
     3,
     {7, 4, 1},
     8,
     4,
     NULL},
    {"opset 26\ninput x float N 5\ninit W float 1 5 = normal 0.5\nh = Mul(x, W)\n"
     "init a int64 = -1\ny = CumProd(h, a)\noutput y float N 5\n",
     2,
     {7, 5},
     5,
     5,
     NULL},
    {"input x float N 2 3 3\ninit W float 3 3 = normal 0.5\nh = MatMul(x, W)\ny = Det(h)\n"
     "output y float N 2\n",
     4,
     {7, 2, 3, 3},
     2,
     9,
     NULL},
    {"opset 24\ninput x float N 2 3\ninit W float 1 4 3 = normal 0.5\ninit z float 1 1 1 = 0\n"
     "init a int64 1 = 1\nr = ReduceSum(x, a)\nq = Mul(r, z)\np = Add(q, W)\n"
     "c = TensorScatter(p, x) axis=1\ny = Flatten(c)\noutput y float N 12\n",
     3,
     {7, 2, 3},
     12,
     12,
     NULL},
    {"input x float N 3\ninit W float 1 3 = normal 0.5\nh = Mul(x, W)\nu = RandomNormalLike(x)\n"
     "y = Mul(h, u)\noutput y float N 3\n",
     2,
     {7, 3},
     3,
     3,
     NULL},
    {"input x float N 1 2 3\ninit W float 1 1 2 3 = normal 0.5\nh = Mul(x, W)\n"
     "g = GlobalMaxPool(h)\ny = Flatten(g)\noutput y float N 1\n",
     4,
     {7, 1, 2, 3},
     1,
     6,
     NULL},
    {"input x float N 3\ninit W float 1 3 = normal 0.5\nh = Mul(x, W)\n"
     "m = ReduceMax(h) keepdims=0\ny = Sub(h, m)\noutput y float N 3\n",
     2,
     {7, 3},
     3,
     3,
     "mixes its samples"},
    {"input x float N 1 4\ninit W float 1 1 4 = normal 0.5\nh = Mul(x, W)\n"
     "p, i = MaxPool(h) kernel_shape=[2]\nf = Cast(i) to=1\ns = Add(p, f)\ny = Flatten(s)\n"
     "output y float N 3\n",
     3,
     {7, 1, 4},
     3,
     4,
     "MaxPool"},
};

static void train(struct tiny_result *r, int row, const char *devices)
{
    const int64_t label[] = {7, rows[row].out};
    struct tiny_weight w = {"W", rows[row].weights};
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = tiny_list(tiny_noise("x", 3, rows[row].rank, rows[row].dims),
                       tiny_noise("label", 4, 2, label), NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = "sgd,lr=0.1";
    o.precision = "f64";
    o.shuffle = false;
    o.batch = 5;
    o.steps = 3;
    o.devices = devices;
    o.strategy = "data";
    tiny_train(r, tiny_model(rows[row].text), &o, &w, 1);
}

static void check_row(int row)
{
    static const char *const devices[] = {"cpu:0,cpu:1", "cpu:0,cpu:1,cpu:2"};
    static struct tiny_result one, many;
    train(&one, row, "cpu:0");
    CHECK_(one.rc >= 0, "%s%s", rows[row].text, one.error);
    for (int d = 0; d < 2; d++) {
        train(&many, row, devices[d]);
        if (rows[row].refused)
            CHECK_(many.rc < 0 && strstr(many.error, rows[row].refused), "%s%s", rows[row].text,
                   many.error);
        else
            CHECK_(many.rc >= 0 && tiny_difference(&one, &many) < 1e-10, "%s%s: %g %s",
                   rows[row].text, devices[d], tiny_difference(&one, &many), many.error);
    }
}

int main(void)
{
    tiny_begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row((int)i);
    tiny_end();
    return test_end();
}
