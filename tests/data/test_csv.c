/* CSV: headers, separators, quotes, which columns, types, and what is refused. */
#include "runtime/data/dataset.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

static const char *const text = "label,\"pixel, 0\",pixel1,pixel2\r\n"
                                "3,0.5,1,2\r\n"
                                "0,\"1.5\", 3 ,4\r\n"
                                "\r\n";

static const char *spec(const char *text_, const char *columns)
{
    build_bytes(build_path("t.csv"), text_, strlen(text_));
    return mgpu_arena_format(build_arena, "%s%s", build_path("t.csv"), columns);
}

static void check(const char *text_, const char *columns, enum mgpu_dtype type, int rank,
                  int64_t rows, int64_t width, const double *want)
{
    struct mgpu_array a;
    const char *name = spec(text_, columns);
    int rc = mgpu_dataset_load(&a, name, 1 << 20);
    CHECK_(rc == 0, "%s: %s", columns, mgpu_error());
    if (rc < 0)
        return;
    CHECK_(a.type == type && a.rank == rank && a.dims[0] == rows, "%s: %s, rank %d, %d rows",
           columns, mgpu_dtype_name(a.type), a.rank, (int)a.dims[0]);
    CHECK(rank == 1 || a.dims[1] == width);
    for (int64_t i = 0; i < rows * width && mgpu_array_count(&a) == rows * width; i++)
        CHECK_NEAR(mgpu_get_double(a.data, a.type, i), want[i], 0);
    mgpu_array_free(&a);
}

#define WANT(...)                                                                                  \
    (double[])                                                                                     \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void test_columns(void)
{
    check(text, "", MGPU_DOUBLE, 2, 2, 4, WANT(3, .5, 1, 2, 0, 1.5, 3, 4));
    check(text, ":label", MGPU_INT64, 1, 2, 1, WANT(3, 0));
    check(text, ":pixel, 0", MGPU_DOUBLE, 1, 2, 1, WANT(.5, 1.5));
    check(text, ":pixel*", MGPU_DOUBLE, 2, 2, 3, WANT(.5, 1, 2, 1.5, 3, 4));
    check(text, ":pixel1..pixel2", MGPU_INT64, 2, 2, 2, WANT(1, 2, 3, 4));
    check(text, ":pixel2,label", MGPU_INT64, 2, 2, 2, WANT(3, 2, 0, 4)); /* in the file's order */
}

static void test_forms(void)
{
    check("1;2\n3;4", "", MGPU_INT64, 2, 2, 2, WANT(1, 2, 3, 4));
    check("a\tb\n1\t2.5\n", ":b", MGPU_DOUBLE, 1, 1, 1, WANT(2.5));
    check("\xef\xbb\xbf"
          "a,b\n1,2\n",
          ":a", MGPU_INT64, 1, 1, 1, WANT(1));
    check("1,2\n3,4\n", ":1", MGPU_INT64, 1, 2, 1, WANT(2, 4)); /* no header: by number */
    check("-1e3\n2\n", "", MGPU_INT64, 2, 2, 1, WANT(-1000, 2));
    check("1e20,1\n", "", MGPU_DOUBLE, 2, 1, 2, WANT(1e20, 1));
}

static void refused(const char *text_, const char *columns, const char *part)
{
    struct mgpu_array a;
    CHECK_FAILS(mgpu_dataset_load(&a, spec(text_, columns), 1 << 20), part);
}

static void test_refused(void)
{
    refused("a,b\n1,2\n3\n", "", "line 3 has 1 fields, the first line has 2");
    refused("a,b\n1,x\n", "", "line 2, column 'b': 'x' is no number");
    refused("a,b\n1,\n", ":b", "line 2, column 'b': '' is no number");
    refused("a,b\n1,2\n", ":c", "there is no column 'c'");
    refused("a,\"b\n1,2\n", "", "a quote is not closed");
    refused("a\x01,b\n1,2\n", "", "not a kind of data file");
    char *wide = mgpu_xcalloc(6000, 1);
    memset(wide, '1', 5000);
    refused(wide, "", "a field of more than");
    free(wide);
}

int main(void)
{
    build_begin();
    test_columns();
    test_forms();
    test_refused();
    build_end();
    return test_end();
}
