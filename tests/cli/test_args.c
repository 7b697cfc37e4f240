/* Command lines: the table's kinds and errors, and what mgpu-train makes of its own. */
#include "runtime/cli/train_args.h"
#include "tests/test.h"

struct fields {
    bool flag, no;
    const char *text, *maybe_text;
    const char *const *list;
    int64_t number, maybe;
    int small;
    double real;
};

#define ROW(name_, kind_, field, ...)                                                              \
    {                                                                                              \
        .name = name_, .kind = MGPU_ARG_##kind_, .offset = offsetof(struct fields, field),         \
        __VA_ARGS__                                                                                \
    }

static const struct mgpu_arg table[] = {
    {.name = "Heading", .kind = MGPU_ARG_HEADING},
    ROW("flag", FLAG, flag, .help = "a flag"),
    ROW("no-flag", NO, no, .help = "its opposite"),
    ROW("text", TEXT, text, .value = "T", .help = "a text"),
    ROW("list", LIST, list, .value = "L", .help = "a list"),
    ROW("epochs", INT, number, .low = 1, .high = 100, .value = "N", .help = "a number"),
    ROW("threads", INT32, small, .low = 1, .high = 8, .value = "N", .help = "a small one"),
    ROW("rate", DOUBLE, real, .low = 0, .high = 1, .value = "X", .help = "a real one"),
    ROW("maybe", MAYBE_INT, maybe, .low = 1, .high = 9, .otherwise = 5, .value = "N",
        .help = "perhaps a number"),
    ROW("topic", MAYBE_TEXT, maybe_text, .value = "T", .help = "perhaps a text"),
    {.name = NULL},
};

enum { MOST = 12, REST = 256 };

/* Parses the words up to NULL; what is no option is joined with '|' into rest. */
static int parse(struct fields *f, char *rest, const char *const *words)
{
    char *argv[MOST + 1] = {(char *)"tool"};
    const char **others;
    int argc = 1, count;
    while (argc < MOST && words[argc - 1]) {
        argv[argc] = (char *)words[argc - 1];
        argc++;
    }
    int rc = mgpu_args_parse(table, f, argc, argv, &others, &count);
    rest[0] = '\0';
    for (int i = 0; i < count; i++) {
        size_t used = strlen(rest);
        snprintf(rest + used, REST - used, "%s|", others[i]);
    }
    free(others);
    return rc;
}

#define WORDS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static void test_kinds(void)
{
    struct fields f = {.no = true, .maybe = 1};
    char rest[REST];
    CHECK_OK(parse(&f, rest,
                   WORDS("a.onnx", "--flag", "--no-flag", "--text=x=y", "--list", "1", "--list=2",
                         "--epochs", "3", "--rate=1/4", "--maybe")));
    CHECK(f.flag && !f.no && strcmp(f.text, "x=y") == 0 && strcmp(rest, "a.onnx|") == 0);
    CHECK(f.list && strcmp(f.list[0], "1") == 0 && strcmp(f.list[1], "2") == 0 && !f.list[2]);
    CHECK(f.number == 3 && f.real == 0.25 && f.maybe == 5);
    mgpu_args_free(table, &f);
    f = (struct fields){0};
    CHECK_OK(parse(&f, rest, WORDS("--maybe=7", "--topic", "b", "--threads=2", "--", "--flag")));
    CHECK(f.maybe == 7 && strcmp(f.maybe_text, "") == 0 && f.small == 2 && !f.flag);
    CHECK(strcmp(rest, "b|--flag|") == 0);
    CHECK_OK(parse(&f, rest, WORDS("--topic=loss", "-", "--text", "")));
    CHECK(strcmp(f.maybe_text, "loss") == 0 && strcmp(rest, "-|") == 0 && *f.text == '\0');
}

static void test_errors(void)
{
    static const struct {
        const char *words[3], *message;
    } rows[] = {
        {{"--epoch", "3"}, "unknown option '--epoch'; did you mean '--epochs'?"},
        {{"--epoch=3"}, "unknown option '--epoch'; did you mean '--epochs'?"},
        {{"--th"}, "unknown option '--th'"}, /* no abbreviations */
        {{"--Heading"}, "unknown option '--Heading'"},
        {{"-e"}, "unknown option '-e'"},
        {{"--epochs"}, "--epochs needs a value"},
        {{"--epochs", "three"}, "--epochs: 'three' is not a whole number"},
        {{"--epochs=2.5"}, "--epochs: '2.5' is not a whole number"},
        {{"--epochs=0"}, "--epochs: 0 is not between 1 and 100"},
        {{"--epochs=99999999999999999999"}, "is not between 1 and 100"},
        {{"--rate=2"}, "--rate: 2 is more than 1"},
        {{"--rate=nan"}, "--rate: 'nan' is not a number"},
        {{"--maybe=10"}, "--maybe: 10 is not between 1 and 9"},
        {{"--flag=1"}, "--flag takes no value"},
        {{"a.onnx", ""}, "'' is no file name"},
        {{"--", ""}, "'' is no file name"},
    };
    char rest[REST];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fields f = {0};
        CHECK(parse(&f, rest, rows[i].words) == MGPU_EUSAGE);
        CHECK_(strstr(mgpu_error(), rows[i].message), "%s gave: %s", rows[i].words[0],
               mgpu_error());
    }
}

static void test_help(void)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    mgpu_args_help(table, to);
    fclose(to);
    CHECK(strstr(text, "\nHeading\n") && strstr(text, "  --epochs N ") && strstr(text, "--flag "));
    CHECK(strstr(text, "  --maybe[=N] "));
    free(text);
}

static int train_parse(struct mgpu_train_command *c, const char *const *words)
{
    char *argv[MOST + 1] = {(char *)"mgpu-train"};
    int argc = 1;
    while (argc < MOST && words[argc - 1]) {
        argv[argc] = (char *)words[argc - 1];
        argc++;
    }
    *c = (struct mgpu_train_command){.options = MGPU_OPTIONS};
    int rc = mgpu_train_parse(c, argc, argv);
    mgpu_args_free(mgpu_train_table, c);
    return rc;
}

static void test_train(void)
{
    struct mgpu_train_command c;
    CHECK_OK(train_parse(&c, WORDS("m.onnx", "--loss", "mse", "--batch=8", "--no-shuffle",
                                   "--deterministic", "--clip-norm", "2", "--save=a.h5")));
    CHECK(strcmp(c.model, "m.onnx") == 0 && c.options.batch == 8 && !c.options.shuffle);
    CHECK(c.options.deterministic == 8 && c.options.clip_norm == 2 && !c.options.inference);
    CHECK_OK(train_parse(&c, WORDS("m.onnx", "--evaluate", "--loss=mse")));
    CHECK(c.options.inference && c.evaluate);
    CHECK_OK(train_parse(&c, WORDS("--help", "loss")));
    CHECK(c.help && strcmp(c.help, "loss") == 0);
    CHECK_OK(train_parse(&c, WORDS("--version")));
    CHECK(c.version);
    CHECK(train_parse(&c, WORDS("--batch=8")) == MGPU_EUSAGE);
    CHECK(train_parse(&c, WORDS("a.onnx", "b.onnx")) == MGPU_EUSAGE);
    CHECK(train_parse(&c, WORDS("a.onnx", "--nothing", "x")) == MGPU_EUSAGE);
    CHECK_FAILS(train_parse(&c, WORDS("a.onnx", "--evaluate", "--resume", "x")), "nothing is");
    CHECK_FAILS(train_parse(&c, WORDS("a.onnx", "--loss=mse", "--save", "x.txt")), "x.txt");
    CHECK_FAILS(train_parse(&c, WORDS("a.onnx", "--evaluate", "--report")), "exclude");
}

int main(void)
{
    test_kinds();
    test_errors();
    test_help();
    test_train();
    return test_end();
}
