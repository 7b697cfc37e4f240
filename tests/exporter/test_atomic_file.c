/* What becomes of a target: a link stays and what it leads to is written; a write-protected file is
 * refused, whoever runs us; nothing is left behind. All writers of the project go through here. */
#include "exporter/atomic_file.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

static bool holds(const char *path, const char *text)
{
    size_t size;
    uint8_t *bytes = build_load(path, &size);
    bool same = bytes && size == strlen(text) && !memcmp(bytes, text, size);
    free(bytes);
    return same;
}

static bool leads_to(const char *path, const char *where)
{
    char text[512] = "";
    return readlink(path, text, sizeof text - 1) > 0 && !strcmp(text, where);
}

static int save(const char *path, const char *text)
{
    return mgpu_atomic_save(path, text, strlen(text));
}

static int files(void)
{
    int n = 0;
    DIR *dir = opendir(build_folder);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static void test_links(void)
{
    const char *file = build_text(build_path("file")), *link = build_text(build_path("link"));
    const char *deep = build_text(build_path("deep")), *new = build_text(build_path("new"));
    mkdir(build_path("folder"), 0777);
    CHECK_OK(save(file, "old"));
    CHECK(symlink("file", link) == 0 && symlink("folder/../link", deep) == 0);
    CHECK_OK(save(link, "through a link"));
    CHECK(leads_to(link, "file") && holds(file, "through a link"));
    CHECK_OK(save(deep, "through two"));
    CHECK(leads_to(deep, "folder/../link") && leads_to(link, "file") && holds(file, "through two"));
    CHECK(symlink("folder/made", new) == 0);
    CHECK_OK(save(new, "made"));
    CHECK(leads_to(new, "folder/made") && holds(build_path("folder/made"), "made"));
}

static void test_bad_links(void)
{
    const char *a = build_text(build_path("a")), *b = build_text(build_path("b"));
    CHECK(symlink("b", a) == 0 && symlink("a", b) == 0);
    CHECK_FAILS(save(a, "text"), "Too many levels of symbolic links");
    CHECK(symlink("nowhere/x", build_path("c")) == 0);
    CHECK_FAILS(save(build_path("c"), "text"), "/c: cannot write: No such file or directory");
    CHECK(symlink("folder", build_path("d")) == 0);
    CHECK_FAILS(save(build_path("d"), "text"), "not a regular file");
    int ends[2]; /* as /dev/stdout in a pipe: a link to no name */
    char pipe_link[64];
    CHECK(pipe(ends) == 0);
    snprintf(pipe_link, sizeof pipe_link, "/proc/self/fd/%d", ends[1]);
    CHECK_FAILS(save(pipe_link, "text"), "cannot be written: not a regular file");
    close(ends[0]);
    close(ends[1]);
}

static void test_protected(void)
{
    const char *file = build_text(build_path("protected"));
    const char *link = build_text(build_path("to-protected"));
    CHECK_OK(save(file, "old"));
    CHECK(chmod(file, 0444) == 0 && symlink("protected", link) == 0);
    int before = files();
    CHECK_FAILS(save(file, "new"), "/protected: cannot write: the file is write-protected");
    CHECK_FAILS(save(link, "new"), "/to-protected: cannot write: the file is write-protected");
    CHECK(holds(file, "old") && files() == before);
    CHECK(chmod(file, 0640) == 0);
    CHECK_OK(save(file, "new"));
    struct stat st;
    CHECK(stat(file, &st) == 0 && (st.st_mode & 0777) == 0640 && holds(file, "new"));
}

/* A name may be as long as the file system lets it. */
static void test_long_name(void)
{
    char name[256];
    memset(name, 'n', 255);
    name[255] = 0;
    const char *file = build_text(build_path(name));
    int before = files();
    CHECK_OK(save(file, "old"));
    CHECK_OK(save(file, "new"));
    CHECK(holds(file, "new") && files() == before + 1);
}

int main(void)
{
    build_begin();
    test_links();
    test_bad_links();
    test_protected();
    test_long_name();
    build_end();
    return test_end();
}
