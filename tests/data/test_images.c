/* Folders of pictures: classes and their order, every form of JPEG and PNG against Pillow's pixels
 * (make_pictures.py), resizing, layouts, damage, and training from them. */
#include "runtime/data/feed.h"
#include "runtime/data/images.h"
#include "tests/onnx_build.h"
#include "tests/support/tiny.h"
#include "tests/test.h"

#include <png.h>
#include <sys/stat.h>

#define FOLDER "tests/data/golden/pictures"

enum { PICTURES = 9, WIDTH = 26, HEIGHT = 19 };

/* Where Pillow's pixels of picture `i` of the folder stand: make_pictures.py has the bees first. */
static const int order[PICTURES] = {4, 5, 6, 7, 8, 0, 1, 2, 3};
static const struct {
    int width, height;
} sizes[] = {{8, 6}, {31, 23}, {3, 40}, {WIDTH, HEIGHT}};
enum { SIZES = 4, ALL = 3 * (8 * 6 + 31 * 23 + 3 * 40 + WIDTH * HEIGHT) };

static int apart(int a, int b)
{
    return a > b ? a - b : b - a;
}

static void check_picture(const uint8_t *got, const uint8_t *want, int pixels, bool planar,
                          int index, int size)
{
    int worst = 0;
    for (int p = 0; p < pixels; p++)
        for (int c = 0; c < 3; c++) {
            int off = apart(got[planar ? c * pixels + p : 3 * p + c], want[3 * p + c]);
            worst = off > worst ? off : worst;
        }
    CHECK_(worst <= 1, "picture %d, size %d: off by %d", index, size, worst);
}

static void test_pixels(void)
{
    struct mgpu_array golden;
    uint8_t got[3 * 31 * 23];
    CHECK_OK(mgpu_dataset_load(&golden, "tests/data/golden/pictures.npy", 1 << 20));
    CHECK(mgpu_array_count(&golden) == PICTURES * ALL);
    for (int s = 0, offset = 0; s < SIZES; s++) {
        int w = sizes[s].width, h = sizes[s].height;
        for (int planar = 0; planar < 2; planar++) {
            struct mgpu_dataset *d;
            CHECK_OK(mgpu_dataset_open(&d, FOLDER ":image"));
            CHECK_OK(planar ? mgpu_images_fit(d, 4, (int64_t[]){-1, 3, h, w})
                            : mgpu_images_fit(d, 4, (int64_t[]){-1, h, w, 3}));
            CHECK(d->dims[0] == PICTURES && d->dims[planar ? 2 : 1] == h);
            for (int64_t i = 0; i < PICTURES; i++) {
                CHECK_OK(mgpu_dataset_read(d, 0, &i, 1, got, MGPU_UINT8));
                check_picture(got, (uint8_t *)golden.data + order[i] * ALL + offset, w * h, planar,
                              (int)i, s);
            }
            mgpu_dataset_close(d);
        }
        offset += 3 * w * h;
    }
    mgpu_array_free(&golden);
}

/* One channel is the luminance; several rows at once are the same as one by one. */
static void test_rows(void)
{
    struct mgpu_dataset *d;
    int64_t rows[] = {8, 0, 3};
    float grey[3 * 8 * 6], one[8 * 6];
    uint8_t rgb[3 * 8 * 6];
    CHECK_OK(mgpu_dataset_open(&d, FOLDER));
    CHECK_OK(mgpu_images_fit(d, 4, (int64_t[]){-1, 1, 6, 8}));
    CHECK_OK(mgpu_dataset_read(d, 0, rows, 3, grey, MGPU_FLOAT));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(mgpu_dataset_read(d, 0, &rows[i], 1, one, MGPU_FLOAT));
        CHECK(!memcmp(one, grey + i * 48, sizeof one));
    }
    mgpu_dataset_close(d);
    CHECK_OK(mgpu_dataset_open(&d, FOLDER));
    CHECK_OK(mgpu_images_fit(d, 4, (int64_t[]){-1, 6, 8, 3}));
    CHECK_OK(mgpu_dataset_read(d, 0, rows, 1, rgb, MGPU_UINT8));
    for (int p = 0; p < 48; p++)
        CHECK_NEAR(grey[p], 0.299 * rgb[3 * p] + 0.587 * rgb[3 * p + 1] + 0.114 * rgb[3 * p + 2],
                   0.02);
    mgpu_dataset_close(d);
}

static void test_labels(void)
{
    struct mgpu_dataset *d;
    int64_t rows[PICTURES], label[PICTURES];
    for (int i = 0; i < PICTURES; i++)
        rows[i] = i;
    CHECK_OK(mgpu_dataset_open(&d, FOLDER ":label"));
    CHECK(d->rank == 1 && d->dims[0] == PICTURES && d->type == MGPU_INT64);
    CHECK_OK(mgpu_dataset_read(d, 0, rows, PICTURES, label, MGPU_INT64));
    for (int i = 0; i < PICTURES; i++)
        CHECK(label[i] == (i >= 5));
    const struct mgpu_name_list *classes = mgpu_images_classes(d);
    CHECK(classes->count == 2 && !strcmp(classes->items[0], "ant") &&
          !strcmp(classes->items[1], "bee"));
    mgpu_dataset_close(d);
}

/* ---- What Pillow does not write -------------------------------------------------------------- */

static uint8_t sample(int x, int y, int c)
{
    return (uint8_t)(x * 11 + y * 17 + c * 50);
}

/* 16 bits a channel, interlaced. */
static void write_interlaced(const char *path)
{
    FILE *f = fopen(path, "wb");
    png_structp w = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(w);
    uint8_t pixels[HEIGHT][6 * WIDTH];
    png_bytep rows[HEIGHT];
    for (int y = 0; y < HEIGHT; y++) {
        rows[y] = pixels[y];
        for (int i = 0; i < 6 * WIDTH; i++)
            pixels[y][i] = i % 2 ? 77 : sample(i / 6, y, i / 2 % 3);
    }
    png_init_io(w, f);
    png_set_IHDR(w, info, WIDTH, HEIGHT, 16, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_ADAM7,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_rows(w, info, rows);
    png_write_png(w, info, PNG_TRANSFORM_IDENTITY, NULL);
    png_destroy_write_struct(&w, &info);
    fclose(f);
}

static void test_interlaced(void)
{
    struct mgpu_dataset *d;
    uint8_t got[3 * WIDTH * HEIGHT];
    int64_t row = 0;
    bool same = true;
    mkdir(build_path("one"), 0777);
    write_interlaced(build_path("one/i.png"));
    CHECK_OK(mgpu_dataset_open(&d, build_path("one")));
    CHECK_OK(mgpu_dataset_read(d, 0, &row, 1, got, MGPU_UINT8)); /* its own size, [N,3,H,W] */
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++)
            for (int c = 0; c < 3; c++)
                same = same && got[(c * HEIGHT + y) * WIDTH + x] == sample(x, y, c);
    CHECK(same);
    mgpu_dataset_close(d);
}

/* ---- What is wrong --------------------------------------------------------------------------- */

/* Cut anywhere, or with any byte changed: an error that names the file, or pixels; never a crash.
 */
static void check_damage(const char *from, const char *name)
{
    struct mgpu_dataset *d;
    uint8_t got[3 * WIDTH * HEIGHT];
    size_t size;
    int64_t row = 0;
    const char *path = build_text(build_path(name));
    uint8_t *bytes = build_load(from, &size);
    build_bytes(path, bytes, size);
    CHECK_OK(mgpu_dataset_open(&d, build_path("cut")));
    for (size_t n = 0; n < size; n++) {
        build_bytes(path, bytes, n);
        CHECK_(mgpu_dataset_read(d, 0, &row, 1, got, MGPU_UINT8) < 0 || n + 12 >= size,
               "%s cut at %zu", name, n);
        bytes[n] ^= 0x55;
        build_bytes(path, bytes, size);
        mgpu_dataset_read(d, 0, &row, 1, got, MGPU_UINT8);
        bytes[n] ^= 0x55;
    }
    build_bytes(path, "no picture", 10);
    CHECK_FAILS(mgpu_dataset_read(d, 0, &row, 1, got, MGPU_UINT8), "neither JPEG nor PNG");
    CHECK(strstr(mgpu_error(), name) && strstr(mgpu_error(), "sample 0"));
    mgpu_dataset_close(d);
    unlink(path);
    free(bytes);
}

static void test_damage(void)
{
    mkdir(build_path("cut"), 0777);
    check_damage(FOLDER "/bee/a.jpg", "cut/a.jpg");
    check_damage(FOLDER "/bee/c.JPG", "cut/c.jpg");
    check_damage(FOLDER "/ant/b.png", "cut/b.png");
    check_damage(build_text(build_path("one/i.png")), "cut/i.png");
}

static void test_refused(void)
{
    struct mgpu_dataset *d;
    CHECK_FAILS(mgpu_dataset_open(&d, build_path("cut")), "there are no .jpg, .jpeg or .png files");
    CHECK_FAILS(mgpu_dataset_open(&d, FOLDER ":nothing"), "holds 'image' and 'label'");
    CHECK_OK(mgpu_dataset_open(&d, FOLDER));
    CHECK_FAILS(mgpu_images_fit(d, 2, (int64_t[]){-1, 784}), "the input is not so");
    CHECK_FAILS(mgpu_images_fit(d, 4, (int64_t[]){-1, 3, 1 << 20, 4}), "pixels a side");
    mgpu_dataset_close(d);
    CHECK_FAILS(mgpu_dataset_open(&d, mgpu_arena_format(build_arena, "%s/one:label", build_folder)),
                "the pictures have no classes");
}

/* ---- Training -------------------------------------------------------------------------------- */

static const char *const text = "input x float N 3 6 8\n"
                                "init w float 144 2 = normal 0.05\n"
                                "f = Flatten(x)\n"
                                "y = MatMul(f, w)\n"
                                "output y float N 2\n";

static void test_training(void)
{
    struct mgpu_options o = MGPU_OPTIONS;
    struct mgpu_trainer *t;
    struct tiny_result one, two;
    struct tiny_weight w = {"w", 288};
    const char *model = tiny_model(text);
    o.data = tiny_list("x=" FOLDER, NULL);
    o.scale = tiny_list("x=1/255", NULL);
    o.loss = tiny_list("cross_entropy", NULL);
    o.optimizer = "sgd,lr=0.01";
    o.batch = 4;
    o.epochs = 12;
    o.precision = "f64";
    o.devices = "cpu:0";
    tiny_train(&one, model, &o, &w, 1);
    o.devices = "cpu:0,cpu:1";
    o.strategy = "data";
    tiny_train(&two, model, &o, &w, 1);
    CHECK_(one.rc >= 0 && two.rc >= 0, "%s %s", one.error, two.error);
    CHECK(one.steps == 36 && isfinite(one.loss[35]) && one.loss[35] != one.loss[0]);
    CHECK(tiny_difference(&one, &two) < 1e-10);
    mkdir(build_path("val"), 0777);
    mkdir(build_path("val/bee"), 0777);
    write_interlaced(build_path("val/bee/i.png"));
    o.val = tiny_list(mgpu_arena_format(build_arena, "x=%s/val", build_folder), NULL);
    CHECK_FAILS(mgpu_trainer_new(&t, model, &o), "number 0 is 'bee', not 'ant'");
}

int main(void)
{
    build_begin();
    tiny_begin();
    test_pixels();
    test_rows();
    test_labels();
    test_interlaced();
    test_damage();
    test_refused();
    test_training();
    tiny_end();
    build_end();
    CHECK(mgpu_alloc_bytes() == 0);
    return test_end();
}
