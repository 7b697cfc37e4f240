#include "runtime/data/images.h"

#include "runtime/base/memory.h"
#include "runtime/base/status.h"
#include "runtime/data/mapped.h"
#include "runtime/data/picture.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { THREADS_MOST = 64 };

struct images {
    struct mgpu_name_list classes, files;
    int64_t *label; /* by file */
    int labels;     /* how many of those are set */
    int left_out;
    bool shows; /* the array is the pictures, not their classes */
    struct mgpu_picture_form form;
    pthread_mutex_t lock; /* one reader at a time, with all its threads */
    struct mgpu_picture_scratch *scratch[THREADS_MOST];
    uint8_t *pixels[THREADS_MOST];
    int threads;
};

/* ---- The folder ------------------------------------------------------------------------------ */

static bool is_picture(const char *name)
{
    static const char *const ends[] = {".jpg", ".jpeg", ".png"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof ends / sizeof *ends; i++)
        if (!strcasecmp(dot, ends[i]))
            return true;
    return false;
}

static char *join(const char *folder, const char *name)
{
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = mgpu_xcalloc(n, 1);
    snprintf(path, n, "%s/%s", folder, name);
    return path;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names in alphabetical order, none that begin with a dot. */
static int list_names(struct mgpu_name_list *out, const char *folder)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, NULL);
    *out = (struct mgpu_name_list){0};
    if (n < 0)
        return mgpu_fail(MGPU_EIO, "%s: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.')
            mgpu_name_list_add(out, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    if (out->count)
        qsort(out->items, (size_t)out->count, sizeof *out->items, compare);
    return 0;
}

static void add_file(struct images *s, const char *path, int64_t label)
{
    mgpu_name_list_add(&s->files, path);
    s->label = mgpu_grow(s->label, (size_t)s->labels, sizeof *s->label);
    s->label[s->labels++] = label;
}

/* The pictures of one class, those in folders inside too. */
static int add_class(struct images *s, const char *folder, int64_t label, int depth)
{
    enum { DEPTH_MOST = 16 };
    struct mgpu_name_list names;
    if (depth > DEPTH_MOST)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%s: folders nested deeper than %d", folder,
                         DEPTH_MOST);
    MGPU_TRY(list_names(&names, folder));
    int rc = 0;
    for (int i = 0; i < names.count && rc == 0; i++) {
        char *path = join(folder, names.items[i]);
        if (is_folder(path))
            rc = add_class(s, path, label, depth + 1);
        else if (is_picture(path))
            add_file(s, path, label);
        else
            s->left_out++;
        free(path);
    }
    mgpu_name_list_free(&names);
    return rc;
}

/* Folders are classes; without any, the pictures of the folder itself have none. */
static int add_classes(struct images *s, const char *folder)
{
    struct mgpu_name_list names;
    MGPU_TRY(list_names(&names, folder));
    int rc = 0;
    for (int i = 0; i < names.count && rc == 0; i++) {
        char *path = join(folder, names.items[i]);
        if (is_folder(path)) {
            rc = add_class(s, path, s->classes.count, 1);
            mgpu_name_list_add(&s->classes, names.items[i]);
        }
        free(path);
    }
    mgpu_name_list_free(&names);
    return rc < 0 || s->classes.count ? rc : add_class(s, folder, -1, 1);
}

static bool probe(const uint8_t *head, size_t size)
{
    (void)head;
    (void)size;
    return false; /* a folder has no bytes: dataset.c knows it otherwise */
}

static int list(struct mgpu_name_list *out, const char *path)
{
    (void)path;
    mgpu_name_list_add(out, "image");
    mgpu_name_list_add(out, "label");
    return 0;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static int size_of(struct mgpu_picture_size *out, const char *path)
{
    struct mgpu_mapped file;
    MGPU_TRY(mgpu_mapped_open(&file, path));
    int rc = mgpu_prefix(mgpu_picture_size(out, file.data, file.size), "%s", path);
    mgpu_mapped_close(&file);
    return rc;
}

static void set_form(struct mgpu_dataset *d, const struct mgpu_picture_form *form)
{
    struct images *s = d->state;
    s->form = *form;
    d->dims[form->planar ? 1 : 3] = form->channels;
    d->dims[form->planar ? 2 : 1] = form->height;
    d->dims[form->planar ? 3 : 2] = form->width;
}

static int open_images(struct mgpu_dataset *d)
{
    struct images *s = d->state = mgpu_xcalloc(1, sizeof *s);
    struct mgpu_picture_size size;
    pthread_mutex_init(&s->lock, NULL);
    s->shows = strcmp(d->name, "label") != 0;
    if (s->shows && *d->name && strcmp(d->name, "image"))
        return mgpu_fail(MGPU_EINVALID, "a folder of pictures holds 'image' and 'label'");
    MGPU_TRY(add_classes(s, d->path));
    if (!s->files.count)
        return mgpu_fail(MGPU_EINVALID, "there are no .jpg, .jpeg or .png files in it");
    if (!s->shows && !s->classes.count)
        return mgpu_fail(MGPU_EINVALID, "there are no folders in it: the pictures have no classes");
    if (s->left_out && s->shows)
        mgpu_note("%s: %d files that are not .jpg, .jpeg or .png are left out", d->path,
                  s->left_out);
    d->type = s->shows ? MGPU_UINT8 : MGPU_INT64;
    d->rank = s->shows ? 4 : 1;
    d->dims[0] = s->files.count;
    if (!s->shows)
        return 0;
    MGPU_TRY(size_of(&size, s->files.items[0]));
    set_form(d, &(struct mgpu_picture_form){size.width, size.height, 3, true});
    return 0;
}

static bool fits(const int64_t *dims, int at)
{
    return dims[at] == 3 || dims[at] == 1;
}

int mgpu_images_fit(struct mgpu_dataset *d, int rank, const int64_t *dims)
{
    enum { SIDE_MOST = 1 << 14 };
    if (d->kind != &mgpu_dataset_images || d->rank == 1)
        return 0;
    struct images *s = d->state;
    bool planar = rank == 4 && fits(dims, 1);
    if (rank != 4 || (!planar && !fits(dims, 3)))
        return mgpu_fail(MGPU_EINVALID,
                         "%s: pictures are [N,3,H,W] or [N,H,W,3], or have one channel; the input "
                         "is not so",
                         d->title);
    const int64_t *height = &dims[planar ? 2 : 1], *width = &dims[planar ? 3 : 2];
    if (*height > SIDE_MOST || *width > SIDE_MOST)
        return mgpu_fail(MGPU_EUNSUPPORTED, "%s: pictures of more than %d pixels a side", d->title,
                         SIDE_MOST);
    set_form(d, &(struct mgpu_picture_form){
                    .width = *width > 0 ? (int)*width : s->form.width,
                    .height = *height > 0 ? (int)*height : s->form.height,
                    .channels = (int)dims[planar ? 1 : 3],
                    .planar = planar,
                });
    return 0;
}

const struct mgpu_name_list *mgpu_images_classes(const struct mgpu_dataset *d)
{
    const struct images *s = d->state;
    return d->kind == &mgpu_dataset_images ? &s->classes : NULL;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static int prepare(struct mgpu_dataset *d, int axis, uint64_t budget)
{
    struct images *s = d->state;
    (void)budget;
    if (axis != 0)
        return mgpu_fail(MGPU_EUNSUPPORTED, "pictures are counted on axis 0");
    if (!s->shows || s->threads)
        return 0;
    int threads = omp_get_max_threads();
    s->threads = threads > THREADS_MOST ? THREADS_MOST : threads;
    for (int i = 0; i < s->threads; i++) {
        void *pixels;
        MGPU_TRY(mgpu_picture_scratch_new(&s->scratch[i], &s->form));
        MGPU_TRY(mgpu_alloc(&pixels,
                            (uint64_t)s->form.channels * (uint64_t)s->form.width *
                                (uint64_t)s->form.height,
                            "a picture"));
        s->pixels[i] = pixels;
    }
    return 0;
}

/* Picture `row` into row `at` of `to`, by thread `i`. */
static int read_picture(struct mgpu_dataset *d, int i, int64_t row, const struct mgpu_rows *to,
                        int64_t at)
{
    struct images *s = d->state;
    struct mgpu_mapped file;
    MGPU_TRY(mgpu_mapped_open(&file, s->files.items[row]));
    int rc = mgpu_prefix(mgpu_picture_decode(s->pixels[i], s->scratch[i], file.data, file.size),
                         "%s", s->files.items[row]);
    mgpu_mapped_close(&file);
    struct mgpu_rows from = mgpu_rows_of(s->pixels[i], d->type, d->rank, d->dims, 0, 1);
    return rc < 0 ? rc : mgpu_rows_copy(to, at, &from, 0);
}

/* The first of the rows that fails is read again on this thread, whose error text counts. */
static int read_pictures(struct mgpu_dataset *d, const int64_t *rows, const struct mgpu_rows *to)
{
    struct images *s = d->state;
    int64_t bad = to->rows;
#pragma omp parallel for schedule(dynamic) num_threads(s->threads) reduction(min : bad)
    for (int64_t k = 0; k < to->rows; k++)
        if (read_picture(d, omp_get_thread_num(), rows[k], to, k) < 0 && k < bad)
            bad = k;
    return bad < to->rows
               ? mgpu_prefix(read_picture(d, 0, rows[bad], to, bad), "sample %" PRId64, rows[bad])
               : 0;
}

static int read_images(struct mgpu_dataset *d, int axis, const int64_t *rows,
                       const struct mgpu_rows *to)
{
    struct images *s = d->state;
    MGPU_TRY(prepare(d, axis, 0));
    if (s->shows) {
        pthread_mutex_lock(&s->lock);
        int rc = read_pictures(d, rows, to);
        pthread_mutex_unlock(&s->lock);
        return rc;
    }
    struct mgpu_rows from = mgpu_rows_of(s->label, d->type, d->rank, d->dims, 0, s->labels);
    for (int64_t k = 0; k < to->rows; k++)
        MGPU_TRY(mgpu_prefix(mgpu_rows_copy(to, k, &from, rows[k]), "sample %" PRId64, rows[k]));
    return 0;
}

static void close_images(struct mgpu_dataset *d)
{
    struct images *s = d->state;
    if (!s)
        return;
    for (int i = 0; i < THREADS_MOST; i++) {
        mgpu_picture_scratch_free(s->scratch[i]);
        mgpu_free(s->pixels[i]);
    }
    pthread_mutex_destroy(&s->lock);
    mgpu_name_list_free(&s->classes);
    mgpu_name_list_free(&s->files);
    free(s->label);
    free(s);
}

const struct mgpu_dataset_kind mgpu_dataset_images = {
    .name = "folder of pictures",
    .whole = true,
    .probe = probe,
    .list = list,
    .open = open_images,
    .prepare = prepare,
    .read = read_images,
    .close = close_images,
};
