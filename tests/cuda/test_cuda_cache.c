/* Compiled kernels come back from the folder of results; damaged files do not; which folder it is,
 * and what is said of one that cannot be used. Several are compiled
 * at a time, and nothing shows it. */
#include "runtime/cuda/cache.h"
#include "runtime/cuda/compile.h"
#include "runtime/mgpu_status.h"
#include "tests/test.h"

#include <dirent.h>
#include <omp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/mgpu-cache-XXXXXX";

/* The only file of the folder; false: there is none, or there are several. */
static bool only_file(char path[512])
{
    DIR *d = opendir(folder);
    int count = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(path, 512, "%s/%s", folder, e->d_name);
            count++;
        }
    closedir(d);
    return count == 1;
}

static void test_cache(void)
{
    char path[512];
    void *data = NULL;
    size_t size = 0;
    CHECK(!mgpu_cache_read("key", "text", &data, &size));
    mgpu_cache_write("key", "text", "contents", 8);
    CHECK(mgpu_cache_read("key", "text", &data, &size) && size == 8 &&
          !memcmp(data, "contents", 8));
    free(data);
    CHECK(!mgpu_cache_read("key", "texts", &data, &size));
    CHECK(only_file(path));
    CHECK(truncate(path, 35) == 0 && !mgpu_cache_read("key", "text", &data, &size) && !data);
    CHECK(truncate(path, 3) == 0 && !mgpu_cache_read("key", "text", &data, &size));
    unlink(path);
}

/* A pipe in a file's place is none: neither reading nor writing waits for its other end. */
static void test_pipe(void)
{
    char path[512], fresh[560];
    void *data = NULL;
    size_t size = 0;
    CHECK(mgpu_cache_write("key", "text", "contents", 8) && only_file(path));
    unlink(path);
    CHECK(mkfifo(path, 0600) == 0);
    alarm(20); /* ends a test that hangs */
    CHECK(!mgpu_cache_read("key", "text", &data, &size) && !data);
    snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    CHECK(mkfifo(fresh, 0600) == 0);
    CHECK(!mgpu_cache_write("key", "text", "contents", 8));
    alarm(0);
    unlink(fresh);
    unlink(path);
}

static const char kernel[] = "KERNEL(k_0)(const m_float *x0, m_float *y0)\n"
                             "{\n    y0[threadIdx.x] = block_addf(x0[threadIdx.x]);\n}\n";

static void test_compile(void)
{
    char path[512];
    struct mgpu_cubin first, second;
    struct mgpu_kernel_use use;
    CHECK_FAILS(mgpu_cuda_compile(&first, "KERNEL(k_0)(int x) { y = x; }\n", 90), "\"y\"");
    CHECK_FAILS(mgpu_cuda_compile(&first, kernel, 12), "NVRTC");
    CHECK_OK(mgpu_cuda_compile_cached(&first, kernel, 90));
    CHECK(mgpu_cubin_use(&first, "k_0", &use) == 0 && use.registers > 0 && use.shared == 128);
    CHECK(mgpu_cubin_use(&first, "k_1", &use) == -1);
    CHECK_OK(mgpu_cuda_compile_cached(&second, kernel, 90));
    CHECK(second.size == first.size && !memcmp(first.data, second.data, first.size));
    CHECK(!second.log); /* it was not compiled */
    CHECK(only_file(path));
    unlink(path);
    mgpu_cubin_free(&first);
    mgpu_cubin_free(&second);
}

/* A GPU that the compiler has never heard of gets what its driver compiles. */
static void test_newer_gpu(void)
{
    struct mgpu_cubin cubin;
    CHECK_OK(mgpu_cuda_compile(&cubin, kernel, 90));
    CHECK(cubin.size > 4 && !memcmp(cubin.data, "\177ELF", 4));
    mgpu_cubin_free(&cubin);
    CHECK_OK(mgpu_cuda_compile(&cubin, kernel, 999));
    const char *text = cubin.data;
    CHECK(text && strlen(text) + 1 == cubin.size && strstr(text, ".target sm_"));
    CHECK(text && strstr(text, ".entry k_0("));
    mgpu_cubin_free(&cubin);
}

static void empty_folder(void)
{
    char path[512];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            unlink(path);
        }
    closedir(d);
}

/* Whatever the number of threads: the same code, and of two wrong texts the first one's error. */
static void test_several(void)
{
    enum { TEXTS = 6 };
    static const char *const good[TEXTS] = {
        "KERNEL(k_0)(float *x) { *x = 0; }\n", "KERNEL(k_0)(float *x) { *x = 1; }\n",
        "KERNEL(k_0)(float *x) { *x = 2; }\n", "KERNEL(k_0)(float *x) { *x = 3; }\n",
        "KERNEL(k_0)(float *x) { *x = 4; }\n", "KERNEL(k_0)(float *x) { *x = 5; }\n"};
    const char *wrong[TEXTS];
    struct mgpu_cubin one[TEXTS], all[TEXTS];
    memcpy(wrong, good, sizeof wrong);
    wrong[2] = "KERNEL(k_0)(float *x) { *x = early; }\n";
    wrong[4] = "KERNEL(k_0)(float *x) { *x = late; }\n";
    for (int i = 0; i < TEXTS; i++)
        CHECK_OK(mgpu_cuda_compile(&one[i], good[i], 90));
    for (int threads = 1; threads <= 4; threads++) {
        omp_set_num_threads(threads);
        CHECK_FAILS(mgpu_cuda_compile_all(all, wrong, TEXTS, 90), "\"early\"");
        CHECK(!all[0].data);
        empty_folder();
        CHECK_OK(mgpu_cuda_compile_all(all, good, TEXTS, 90));
        for (int i = 0; i < TEXTS; i++) {
            CHECK(all[i].log && all[i].size == one[i].size &&
                  !memcmp(all[i].data, one[i].data, one[i].size));
            mgpu_cubin_free(&all[i]);
        }
        empty_folder();
    }
    for (int i = 0; i < TEXTS; i++)
        mgpu_cubin_free(&one[i]);
}

/* ---- Which folder ---------------------------------------------------------------------------- */

static int warnings;
static char warning[2048];

static void take_warning(void *context, const char *text)
{
    (void)context;
    warnings++;
    snprintf(warning, sizeof warning, "%s", text);
}

/* NULL: not set. */
static void set_variable(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* What is kept comes to lie in `want`, a folder in `folder`, which goes then. */
static void check_place(const char *own, const char *xdg, const char *home, const char *want)
{
    char path[512], command[1024];
    void *data = NULL;
    size_t size;
    set_variable("MGPU_CACHE", own);
    set_variable("XDG_CACHE_HOME", xdg);
    set_variable("HOME", home);
    snprintf(path, sizeof path, "%s/%s", folder, want);
    CHECK_(mgpu_cache_write("key", "text", "contents", 8), "%s", want);
    CHECK_(mgpu_cache_read("key", "text", &data, &size) && access(path, F_OK) == 0, "%s", want);
    free(data);
    snprintf(command, sizeof command, "rm -r %s/*/ && test -z \"$(ls -A %s)\"", folder, folder);
    CHECK_(system(command) == 0, "%s: more than it", want);
}

/* Where the XDG base directory specification has it; a relative path there counts as none. */
static void test_place(void)
{
    char own[512], xdg[512], home[512];
    snprintf(own, sizeof own, "%s/own/two", folder);
    snprintf(xdg, sizeof xdg, "%s/xdg", folder);
    snprintf(home, sizeof home, "%s/home", folder);
    check_place(own, xdg, home, "own/two");
    check_place(NULL, xdg, home, "xdg/mgpu");
    check_place("", xdg, home, "xdg/mgpu");
    check_place(NULL, "relative", home, "home/.cache/mgpu");
    check_place(NULL, "", home, "home/.cache/mgpu");
    check_place(NULL, NULL, home, "home/.cache/mgpu");
}

/* Of a folder that cannot be used a warning says once what it costs; the run goes on. In a process
 * of its own, as it is once in a program. */
static int unusable(const char *own, const char *want)
{
    void *data;
    size_t size;
    set_variable("MGPU_CACHE", own);
    mgpu_set_warning(take_warning, NULL);
    for (int i = 0; i < 2; i++) {
        CHECK(!mgpu_cache_write("key", "text", "contents", 8));
        CHECK(!mgpu_cache_read("key", "text", &data, &size));
    }
    CHECK_(warnings == (want != NULL), "%s: %d warnings", own ? own : "no place", warnings);
    CHECK_(!want || (strstr(warning, want) && strstr(warning, "compiles the GPU's kernels again")),
           "'%s', not '%s'", warning, want);
    return test_failures;
}

static void check_unusable(const char *own, const char *want)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        _exit(unusable(own, want) ? 1 : 0);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Not by root, who may write everywhere. */
static void read_only(void)
{
    void *data = NULL;
    size_t size;
    if (geteuid() == 0)
        CHECK(setuid(65534) == 0);
    mgpu_set_warning(take_warning, NULL);
    CHECK(mgpu_cache_read("key", "text", &data, &size) && size == 8);
    CHECK(!mgpu_cache_write("key", "other", "contents", 8));
    CHECK_(warnings == 1 && strstr(warning, "cannot be written (Permission denied)"), "%s",
           warning);
    free(data);
    _exit(test_failures ? 1 : 0);
}

static void test_read_only(void)
{
    char path[512];
    int status = 0;
    set_variable("MGPU_CACHE", folder);
    CHECK(mgpu_cache_write("key", "text", "contents", 8) && only_file(path));
    CHECK(chmod(folder, 0555) == 0);
    pid_t pid = fork();
    if (pid == 0)
        read_only();
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(chmod(folder, 0700) == 0 && unlink(path) == 0);
}

static void test_unusable(void)
{
    char file[512], below[600], want[700], longer[5000];
    snprintf(file, sizeof file, "%s/file", folder);
    FILE *empty = fopen(file, "w");
    CHECK(empty && fclose(empty) == 0);
    snprintf(want, sizeof want, "the cache folder '%s' cannot be written (Not a directory)", file);
    check_unusable(file, want);
    snprintf(below, sizeof below, "%s/below/it", file);
    snprintf(want, sizeof want, "the cache folder '%s' cannot be written (Not a directory)", below);
    check_unusable(below, want);
    unlink(file);
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    check_unusable(longer, "(File name too long)");
    check_unusable("/proc/none", "the cache folder '/proc/none' cannot be written (");
    unsetenv("HOME");
    setenv("XDG_CACHE_HOME", "relative", 1);
    check_unusable(NULL, "no cache folder (none of MGPU_CACHE, XDG_CACHE_HOME");
    check_unusable("/dev/null", NULL); /* which asks for it */
}

int main(void)
{
    struct mgpu_cubin cubin;
    CHECK(mkdtemp(folder) != NULL);
    test_place();
    test_unusable();
    test_read_only();
    CHECK(setenv("MGPU_CACHE", folder, 1) == 0);
    test_cache();
    test_pipe();
    int rc = mgpu_cuda_compile(&cubin, kernel, 75);
    mgpu_cubin_free(&cubin);
    if (rc == MGPU_EDEVICE) {
        fprintf(stderr, "skipped: %s\n", mgpu_error());
        rmdir(folder);
        return test_failures ? EXIT_FAILURE : 77;
    }
    test_compile();
    test_newer_gpu();
    test_several();
    rmdir(folder);
    return test_end();
}
