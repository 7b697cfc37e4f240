/* The optimizer's state out of files: which array belongs to which weight, in files that Keras 2.3
 * (grouped, by multi_gpu_model), tf.keras 2.15 (SGD) and Keras 3 (parameter by parameter) wrote
 * after two updates with a learning rate of 0, where v = 0.001999/0.19^2 m^2; and a run of ours
 * that goes on through npz, safetensors and its own checkpoint. */
#include "exporter/h5_out.h"
#include "exporter/model_write.h"
#include "exporter/run_state.h"
#include "exporter/slots.h"
#include "runtime/data/mapped.h"
#include "tests/convert/weights_check.h"
#include "tests/onnx_build.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#define FILES  "tests/convert/files/plain/"
#define STATES "tests/convert/files/state/"

static char told[1024];

static const struct mgpu_convert_options with_state = {.optimizer_state = true};

static char line[256];

static int find_slot(const struct mgpu_checkpoint *c, int weight, const char *slot)
{
    for (int i = 0; i < c->count; i++)
        if (c->tensor[i].slot && c->tensor[i].slot_of == weight && !strcmp(c->tensor[i].slot, slot))
            return i;
    return -1;
}

/* Each weight has its slots in the file, of its shape; Adam's two belong together by value. */
static void check_slots(const char *path, const char *first, const char *second)
{
    struct mgpu_checkpoint *c;
    int64_t updates = 0;
    int weights = 0;
    CHECK_OK(mgpu_checkpoint_open(&c, path, true));
    for (int i = 0; i < c->count; i++) {
        if (!c->tensor[i].weight)
            continue;
        int a = find_slot(c, i, first), b = second ? find_slot(c, i, second) : a;
        CHECK_(a >= 0 && b >= 0, "%s: %s", path, c->tensor[i].name);
        struct mgpu_array m, v;
        if (a < 0 || b < 0 || mgpu_checkpoint_load(c, a, &m) < 0)
            continue;
        CHECK_OK(mgpu_checkpoint_load(c, b, &v));
        CHECK(m.rank == c->tensor[i].rank);
        for (int64_t k = 0; second && k < mgpu_array_count(&m); k++) {
            double x = ((float *)m.data)[k], y = ((float *)v.data)[k];
            CHECK_NEAR(y / (x * x + 1e-30), x * x > 1e-25 ? 0.001999 / (0.19 * 0.19) : 0, 1e-4);
        }
        mgpu_array_free(&m);
        mgpu_array_free(&v);
        weights++;
    }
    CHECK(weights == 8);
    CHECK_OK(mgpu_checkpoint_updates(&updates, c));
    CHECK_(updates == 2, "%s: %lld updates", path, (long long)updates);
    mgpu_checkpoint_close(c);
}

static void test_keras(void)
{
    static const struct {
        const char *file, *first, *second;
    } files[] = {
        {FILES "keras2.3.1.parallel4_relocated.model.h5", "exp_avg", "exp_avg_sq"},
        {FILES "keras3_adam.model.h5", "exp_avg", "exp_avg_sq"},
        {FILES "keras3_adam.keras", "exp_avg", "exp_avg_sq"},
        {FILES "tfkeras2.15.sgd.model.h5", "velocity", NULL},
    };
    static const char *const to[] = {"state.npz", "state.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        check_slots(files[i].file, files[i].first, files[i].second);
        for (int k = 0; k < 2; k++) {
            CHECK_OK(weights_convert(line, files[i].file, build_path(to[k]), &with_state));
            check_slots(build_path(to[k]), files[i].first, files[i].second);
        }
    }
}

/* ---- Through a model ------------------------------------------------------------------------- */

/* How many of Keras's optimizer arrays are, by name, the same in both. */
static int same_in_both(const char *a, const char *b)
{
    struct mgpu_checkpoint *x, *y;
    int same = 0;
    CHECK_OK(mgpu_checkpoint_open(&x, a, false));
    CHECK_OK(mgpu_checkpoint_open(&y, b, false));
    for (int i = 0; x && y && i < x->count; i++)
        for (int k = 0; k < y->count; k++) {
            struct mgpu_array p = {0}, q = {0};
            if (strncmp(x->tensor[i].name, "/optimizer/vars/", 16) ||
                strcmp(x->tensor[i].name, y->tensor[k].name))
                continue;
            CHECK_OK(mgpu_checkpoint_load(x, i, &p));
            CHECK_OK(mgpu_checkpoint_load(y, k, &q));
            int64_t n = mgpu_array_count(&p);
            bool equal = n == mgpu_array_count(&q);
            for (int64_t e = 0; equal && e < n; e++)
                equal = mgpu_get_double(p.data, p.type, e) == mgpu_get_double(q.data, q.type, e);
            same += equal;
            mgpu_array_free(&p);
            mgpu_array_free(&q);
        }
    mgpu_checkpoint_close(x);
    mgpu_checkpoint_close(y);
    return same;
}

static void listen(void *context, const char *text)
{
    size_t n = strlen(told);
    (void)context;
    snprintf(told + n, sizeof told - n, "%s\n", text);
}

/* Into the names and layouts of the model's framework; Keras 3's store has a count, the rate, then
 * two arrays for each of eight weights. */
static void test_through_model(void)
{
    struct mgpu_convert_options o = {.model = FILES "model.onnx", .optimizer_state = true};
    const char *keras = FILES "keras3_adam.keras", *store = build_text(build_path("s.weights.h5"));
    const char *named = build_text(build_path("named.safetensors"));
    CHECK_OK(weights_convert(line, keras, named, &o));
    check_slots(named, "exp_avg", "exp_avg_sq");
    told[0] = 0;
    o.verify = true; /* with the optimizer's arrays: none is left out */
    mgpu_set_note(listen, NULL);
    CHECK_OK(weights_convert(line, keras, named, &o));
    CHECK_OK(weights_convert(line, keras, store, &o));
    mgpu_set_note(NULL, NULL);
    CHECK_(!strstr(told, "left out"), "%s", told);
    CHECK_(same_in_both(keras, store) == 18, "%d", same_in_both(keras, store));
    CHECK_FAILS(weights_convert(line, named, store, &o), "Keras wants the learning rate");
    CHECK_OK(weights_convert(line, FILES "keras2.3.1.parallel4_relocated.model.h5", store, &o));
    o.like = keras;
    CHECK_OK(weights_convert(line, FILES "keras3_adam.model.h5", store, &o));
    CHECK_(same_in_both(keras, store) == 18, "%d", same_in_both(keras, store));
    o.like = FILES "keras3.weights.h5";
    CHECK_FAILS(weights_convert(line, keras, store, &o), "--like wants a .keras");
    o.like = "tests/convert/files/named/block/first.keras";
    CHECK_FAILS(weights_convert(line, keras, store, &o), "as a class of your own decides it");
    o.like = NULL;
    CHECK_FAILS(weights_convert(line, FILES "tfkeras2.15.sgd.model.h5", build_path("x.h5"), &o),
                "have a place for it");
}

/* ---- Into a run ------------------------------------------------------------------------------ */

static struct mgpu_options plain_options(const char *init)
{
    struct mgpu_options o = MGPU_OPTIONS;
    o.data = tiny_list(tiny_noise("image", 1, 4, (int64_t[]){4, 10, 10, 2}),
                       tiny_noise("label", 2, 2, (int64_t[]){4, 3}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.init = init;
    o.optimizer_state = true;
    o.optimizer = "adam,style=keras3";
    o.batch = 4;
    o.steps = 1;
    o.devices = "cpu:0";
    return o;
}

static int rank_of(const char *path, const char *name)
{
    struct mgpu_checkpoint *c;
    int rank = -1;
    CHECK_OK(mgpu_checkpoint_open(&c, path, false));
    for (int i = 0; c && i < c->count; i++)
        if (!strcmp(c->tensor[i].name, name))
            rank = c->tensor[i].rank;
    mgpu_checkpoint_close(c);
    return rank;
}

/* Optimizers of Keras 3 with three arrays a weight and with none, and one whose rate is a schedule,
 * so that no rate stands beside the count. */
static void test_kinds(void)
{
    static const struct {
        const char *file;
        int arrays;
    } files[] = {{STATES "rmsprop.keras", 14},
                 {STATES "centered.keras", 10},
                 {STATES "sgd.keras", 2},
                 {STATES "schedule.keras", 9}};
    struct mgpu_convert_options o = {.model = STATES "model.onnx", .optimizer_state = true};
    const char *store = build_text(build_path("kinds.weights.h5"));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        CHECK_OK(weights_convert(line, files[i].file, store, &o));
        CHECK_(same_in_both(files[i].file, store) == files[i].arrays, "%s: %d", files[i].file,
               same_in_both(files[i].file, store));
    }
    CHECK_OK(weights_convert(line, STATES "centered.keras", build_path("kinds.npz"), &o));
    CHECK(rank_of(build_path("kinds.npz"), "dense/kernel:grad_avg") == 2);
    o.like = STATES "sgd.keras";
    CHECK_FAILS(weights_convert(line, STATES "schedule.keras", store, &o),
                "Keras wants the learning rate");
}

/* tf_keras's optimizers keep no learning rate: behind the count come the arrays. */
static void test_tf_keras(void)
{
    static const struct {
        const char *file;
        int arrays;
    } files[] = {{STATES "tf_adam.keras", 9}, {STATES "tf_sgd.keras", 5}};
    struct mgpu_convert_options o = {.model = STATES "model.onnx", .optimizer_state = true};
    const char *store = build_text(build_path("tf.weights.h5"));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        o.like = files[i].file;
        CHECK_OK(weights_convert(line, files[i].file, store, &o));
        CHECK_(same_in_both(files[i].file, store) == files[i].arrays, "%s: %d", files[i].file,
               same_in_both(files[i].file, store));
    }
    CHECK_OK(weights_convert(line, STATES "sgd.keras", store, &o)); /* it has no velocities */
    CHECK(rank_of(store, "/optimizer/vars/1") == 2 && rank_of(store, "/optimizer/vars/4") == 1);
}

/* A run with a schedule gives what Keras takes with one, unless a file says otherwise. */
static void test_scheduled(void)
{
    struct mgpu_options o = plain_options(NULL);
    struct mgpu_convert_options into = {.model = FILES "model.onnx", .optimizer_state = true};
    struct mgpu_trainer *t;
    struct mgpu_step_result s;
    const char *run = build_text(build_path("run.h5")),
               *store = build_text(build_path("s.weights.h5"));
    o.optimizer_state = false;
    o.lr_schedule = "exponential,gamma=0.9";
    CHECK_OK(mgpu_trainer_new(&t, FILES "model.onnx", &o));
    CHECK(mgpu_step(t, &s) == 1);
    CHECK_OK(mgpu_save_checkpoint(t, run));
    mgpu_trainer_free(t);
    told[0] = 0;
    mgpu_set_note(listen, NULL);
    CHECK_OK(weights_convert(line, run, store, &into));
    CHECK_(strstr(told, "compiled with a LearningRateSchedule"), "%s", told);
    CHECK(rank_of(store, "/optimizer/vars/1") > 0);
    into.like = FILES "keras3_adam.keras";
    CHECK_OK(weights_convert(line, run, store, &into));
    CHECK(rank_of(store, "/optimizer/vars/1") == 0);
    told[0] = 0;
    o = plain_options(STATES "schedule.keras");
    o.data = tiny_list(tiny_noise("keras_tensor", 1, 2, (int64_t[]){4, 2}),
                       tiny_noise("label", 2, 2, (int64_t[]){4, 2}), NULL);
    CHECK_OK(mgpu_trainer_new(&t, STATES "model.onnx", &o));
    mgpu_trainer_free(t);
    CHECK_(strstr(told, "followed a schedule"), "%s", told);
    o.init = STATES "sgd.keras";
    o.optimizer = "sgd,style=keras3";
    CHECK_OK(mgpu_trainer_new(&t, STATES "model.onnx", &o));
    mgpu_trainer_free(t);
    mgpu_set_note(NULL, NULL);
}

/* The state of a dense layer's weights is as Keras has it; a kernel [kh,kw,in,out] became
 * [out,in,kh,kw]. */
static void test_init(void)
{
    const char *file = FILES "keras3_adam.model.h5", *run = build_text(build_path("run.h5"));
    struct mgpu_options o = plain_options(file);
    struct mgpu_trainer *t;
    struct mgpu_run_state s;
    CHECK_OK(mgpu_trainer_new(&t, FILES "model.onnx", &o));
    if (!t)
        return;
    CHECK_OK(mgpu_save_checkpoint(t, run));
    mgpu_trainer_free(t);
    mgpu_run_state_init(&s);
    CHECK_OK(mgpu_run_state_read(&s, run));
    CHECK(s.list[MGPU_RUN_STATE].count == 16);
    mgpu_run_state_free(&s);
    check_slots(run, "exp_avg", "exp_avg_sq");
    o.optimizer = "sgd,momentum=0.9,style=keras3";
    CHECK_FAILS(mgpu_trainer_new(&t, FILES "model.onnx", &o), "--optimizer sgd");
    o.init = FILES "tfkeras2.15.sgd.model.h5";
    CHECK_OK(mgpu_trainer_new(&t, FILES "model.onnx", &o));
    mgpu_trainer_free(t);
    o.optimizer = "sgd,momentum=0.9"; /* PyTorch's is another number */
    CHECK_FAILS(mgpu_trainer_new(&t, FILES "model.onnx", &o), "velocity', which --optimizer sgd");
    o.init = FILES "keras2.1.0.weights.h5";
    CHECK_FAILS(mgpu_trainer_new(&t, FILES "model.onnx", &o), "holds no optimizer state");
}

/* ---- Of a run -------------------------------------------------------------------------------- */

static void take_losses(struct mgpu_trainer *t, double *losses)
{
    struct mgpu_step_result s;
    while (t && mgpu_step(t, &s) > 0)
        *losses++ = s.loss;
}

/* As a program of PyTorch's writes it: without our count of updates. */
static void drop_updates(const char *from, const char *to)
{
    struct mgpu_named_array a[16] = {0};
    struct mgpu_checkpoint *c;
    int n = 0;
    CHECK_OK(mgpu_checkpoint_open(&c, from, false));
    for (int i = 0; i < c->count; i++)
        if (strcmp(c->tensor[i].name, MGPU_SLOT_UPDATES)) {
            a[n].name = (char *)c->tensor[i].name;
            CHECK_OK(mgpu_checkpoint_load(c, i, &a[n++].array));
        }
    CHECK_OK(mgpu_arrays_write(to, MGPU_TARGET_SAFETENSORS, a, n));
    for (int i = 0; i < n; i++)
        mgpu_array_free(&a[i].array);
    mgpu_checkpoint_close(c);
}

static bool holds(const char *path, const char *name)
{
    struct mgpu_checkpoint *c;
    bool found = false;
    CHECK_OK(mgpu_checkpoint_open(&c, path, false));
    for (int i = 0; i < c->count; i++)
        found |= !strcmp(c->tensor[i].name, name);
    mgpu_checkpoint_close(c);
    return found;
}

/* Three updates, then three more in another run: the losses are those of six in one. */
static void test_goes_on(const char *optimizer)
{
    static const char *const files[] = {"run.h5", "state.npz", "state.safetensors", "torch.npz",
                                        "torch.safetensors"};
    enum { FILES_READ = sizeof files / sizeof *files };
    const char *model = tiny_model("input x float N 4\n"
                                   "init w float 4 3 = normal 0.5\n"
                                   "init b float 3 = .1 .2 .3\n"
                                   "y = Gemm(x, w, b)\n"
                                   "output y float N 3\n");
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    double whole[6], parts[6];
    o.data = tiny_list(tiny_noise("x", 1, 2, (int64_t[]){6, 4}),
                       tiny_noise("label", 2, 2, (int64_t[]){6, 3}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.optimizer = optimizer;
    o.batch = 6;
    o.shuffle = false;
    o.steps = 6;
    o.devices = "cpu:0";
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    take_losses(t, whole);
    mgpu_trainer_free(t);
    o.steps = 3;
    CHECK_OK(mgpu_trainer_new(&t, model, &o));
    take_losses(t, parts);
    CHECK_OK(mgpu_save_checkpoint(t, build_path("run.h5")));
    mgpu_trainer_free(t);
    CHECK_OK(weights_convert(line, build_path("run.h5"), build_path("state.npz"), &with_state));
    CHECK_OK(weights_convert(line, build_path("state.npz"), build_path("state.safetensors"),
                             &with_state));
    const struct mgpu_convert_options named = {
        .model = model, .optimizer_state = true, .verify = true};
    CHECK_OK(weights_convert(line, build_path("run.h5"), build_path("torch.npz"), &named));
    drop_updates(build_path("torch.npz"), build_path("torch.safetensors"));
    bool momentum = strstr(optimizer, ",momentum") && !strstr(optimizer, "keras");
    CHECK(holds(build_path("torch.safetensors"), "w:momentum_buffer") == momentum);
    CHECK(holds(build_path("torch.safetensors"), "w:step") == !strstr(optimizer, "sgd"));
    o.optimizer_state = true;
    for (int k = 0; k < FILES_READ; k++) {
        o.init = build_path(files[k]);
        CHECK_OK(mgpu_trainer_new(&t, model, &o));
        take_losses(t, parts + 3);
        mgpu_trainer_free(t);
        for (int i = 0; i < 6; i++)
            CHECK_(parts[i] == whole[i], "%s, %s, step %d: %.17g, not %.17g", optimizer, files[k],
                   i + 1, parts[i], whole[i]);
    }
}

/* A copy without what the link leads to, or with this layer alone. */
static void damage(const char *run, const char *lost, const char *layers)
{
    struct mgpu_mapped whole;
    CHECK_OK(mgpu_mapped_open(&whole, run));
    CHECK_OK(mgpu_atomic_save(build_path("damaged.h5"), whole.data, (size_t)whole.size));
    mgpu_mapped_close(&whole);
    mgpu_h5_lock();
    hid_t file = H5Fopen(build_path("damaged.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    if (lost)
        CHECK(H5Ldelete(file, lost, H5P_DEFAULT) >= 0);
    if (layers) {
        CHECK(H5Adelete(file, "layer_names") >= 0);
        CHECK_OK(mgpu_h5_out_strings(file, "layer_names", &layers, 1));
    }
    H5Fclose(file);
    mgpu_h5_unlock();
}

/* What a damaged file has lost of a run is told when it is asked for. */
static void test_damaged(void)
{
    const char *run = build_text(build_path("run.h5")), *bad = build_text(build_path("damaged.h5"));
    const char *out = build_text(build_path("damaged.npz"));
    const struct mgpu_convert_options alone = {0};
    int64_t other = 4;
    damage(run, MGPU_RUN_GROUP "/state/1", NULL);
    CHECK_FAILS(weights_convert(line, bad, out, &with_state), "which the run wrote, is lost");
    CHECK_OK(weights_convert(line, bad, out, &alone));
    damage(run, MGPU_RUN_GROUP "/state", NULL);
    CHECK_FAILS(weights_convert(line, bad, out, &with_state), "which the run wrote, is lost");
    damage(run, NULL, "w");
    CHECK_FAILS(weights_convert(line, bad, out, &alone), "'b', which the run wrote, is lost");
    damage(run, NULL, NULL);
    mgpu_h5_lock();
    hid_t file = H5Fopen(bad, H5F_ACC_RDWR, H5P_DEFAULT),
          set = H5Dopen2(file, MGPU_RUN_GROUP "/updates", H5P_DEFAULT);
    CHECK(H5Dwrite(set, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, &other) >= 0);
    H5Dclose(set);
    H5Fclose(file);
    mgpu_h5_unlock();
    CHECK_FAILS(weights_convert(line, bad, out, &with_state), "did not write this number");
}

int main(void)
{
    tiny_begin();
    build_begin();
    test_keras();
    test_through_model();
    test_init();
    test_kinds();
    test_tf_keras();
    test_scheduled();
    test_goes_on("adam,lr=0.1");
    test_damaged();
    test_goes_on("adam,lr=0.1,amsgrad,decay=0.1,style=keras2");
    test_goes_on("sgd,lr=0.1,momentum=0.9");
    test_goes_on("sgd,lr=0.1,momentum=0.9,style=keras3");
    test_goes_on("rmsprop,lr=0.01,momentum=0.5,centered");
    test_goes_on("adagrad,lr=0.1");
    build_end();
    tiny_end();
    return test_end();
}
