/* --html: what the page says, and that nothing in it can be taken for a tag. */
#include "runtime/facade/facade.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

static const char *const text = "input x float N 2\n"
                                "init w&amp<b> float 2 2 = .5 -.3 .2 .1\n"
                                "y = MatMul(x, w&amp<b>)\n"
                                "output y float N 2\n";

static char *contents(const char *path)
{
    char *bytes = mgpu_xcalloc(1 << 20, 1);
    FILE *f = fopen(path, "rb");
    CHECK_(f && fread(bytes, 1, (1 << 20) - 1, f) > 0, "%s", path);
    if (f)
        fclose(f);
    return bytes;
}

static char *train(bool profile)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct mgpu_step_result step;
    struct mgpu_epoch_result end;
    const char *path = tiny_path("report.html");
    o.data = tiny_list(tiny_noise("x", 5, 2, (int64_t[]){8, 2}),
                       tiny_noise("label", 6, 2, (int64_t[]){8, 2}), NULL);
    o.loss = tiny_list("mse", NULL);
    o.metric = tiny_list("mae", NULL);
    o.batch = 2;
    o.epochs = 3;
    o.val_split = 0.25;
    o.devices = "cpu:0";
    o.profile = profile;
    CHECK_OK(mgpu_trainer_new(&t, tiny_model(text), &o));
    while (t && mgpu_step(t, &step) > 0)
        if (step.epoch_ends)
            CHECK_OK(mgpu_epoch_end(t, &end));
    CHECK_OK(mgpu_trainer_html(t, path));
    mgpu_trainer_free(t);
    return contents(path);
}

static void test_page(void)
{
    static const char *const parts[] = {"<!doctype html>",
                                        "9 steps done",
                                        "val_loss",
                                        "mae",
                                        "w&amp;amp&lt;b&gt;",
                                        "<td>trained</td>",
                                        "<h2>Plan and memory",
                                        "plan: single, 1 rank",
                                        "<td>--optimizer</td><td>adam</td>",
                                        "</html>"};
    char *page = train(false);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        CHECK_(strstr(page, parts[i]), "no '%s' in the page", parts[i]);
    CHECK(!strstr(page, "<b>") && !strstr(page, "http") && !strstr(page, "<script"));
    CHECK(!strstr(page, "nan") && !strstr(page, "inf"));
    CHECK(!strstr(page, "Time of a step"));
    free(page);
    page = train(true);
    CHECK(strstr(page, "Time of a step") && strstr(page, "matmul"));
    free(page);
}

/* Steps beyond the room become means of neighbours. */
static void test_history(void)
{
    static struct mgpu_history h;
    for (int i = 0; i < 3 * MGPU_HISTORY; i++)
        mgpu_history_add(&h, i);
    CHECK(h.each == 4 && h.steps == 3 * MGPU_HISTORY);
    CHECK_NEAR(h.mean[0], 1.5, 0);
    CHECK_NEAR(h.mean[1], 5.5, 0);
    CHECK_NEAR(h.mean[3 * MGPU_HISTORY / 4 - 1], 3 * MGPU_HISTORY - 2.5, 1e-12);
}

int main(void)
{
    tiny_begin();
    test_page();
    test_history();
    tiny_end();
    return test_end();
}
