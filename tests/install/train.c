/* What a program that uses the installed library looks like: MODEL DATA OUT, six updates. */
#include <mgpu.h>

#include <stdlib.h>

static int fail(void)
{
    fprintf(stderr, "%s\n", mgpu_error());
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    char input[256], label[256];
    struct mgpu_options options = MGPU_OPTIONS;
    struct mgpu_trainer *trainer;
    struct mgpu_step_result step;
    double first = 0, last = 0;
    int rc;
    if (argc != 4)
        return 2;
    snprintf(input, sizeof input, "x=%s:inputs/0000", argv[2]);
    snprintf(label, sizeof label, "label=%s:labels/0000", argv[2]);
    options.data = (const char *const[]){input, label, NULL};
    options.loss = (const char *const[]){"cross_entropy", NULL};
    options.devices = "cpu:0,cpu:1";
    options.batch = 40;
    options.epochs = 6;
    if (mgpu_trainer_new(&trainer, argv[1], &options) < 0)
        return fail();
    while ((rc = mgpu_step(trainer, &step)) > 0) {
        printf("step %lld loss %g\n", (long long)step.step, step.loss);
        first = step.step == 1 ? step.loss : first;
        last = step.loss;
    }
    if (rc < 0 || mgpu_save(trainer, argv[3]) < 0)
        return fail();
    mgpu_trainer_free(trainer);
    return last < first ? EXIT_SUCCESS : EXIT_FAILURE;
}
