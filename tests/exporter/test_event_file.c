/* Event files: the check sums of RFC 3720, and records that read back as they were written. What is
 * expected of the bytes was read with TensorFlow 2's TFRecordDataset and event_pb2, too. */
#include "exporter/event_file.h"
#include "exporter/tensorboard.pb-c.h"
#include "tests/onnx_build.h"
#include "tests/test.h"

static void test_crc(void)
{
    uint8_t bytes[32] = {0};
    CHECK(mgpu_crc32c("123456789", 9) == 0xe3069283);
    CHECK(mgpu_crc32c(bytes, 32) == 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    CHECK(mgpu_crc32c(bytes, 32) == 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    CHECK(mgpu_crc32c(bytes, 32) == 0x46dd794e);
}

static uint64_t number(const uint8_t *from, int bytes)
{
    uint64_t n = 0;
    for (int i = bytes - 1; i >= 0; i--)
        n = n << 8 | from[i];
    return n;
}

/* A masked sum back to what it was. */
static uint32_t unmasked(const uint8_t *from)
{
    uint32_t sum = (uint32_t)number(from, 4) - 0xa282ead8u;
    return sum << 15 | sum >> 17;
}

/* The only file of a folder. */
static uint8_t *load(const char *folder, size_t *size)
{
    uint8_t *bytes = NULL;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[1024];
        if (e->d_name[0] == '.')
            continue;
        CHECK_(!strncmp(e->d_name, "events.out.tfevents.", 20), "%s", e->d_name);
        CHECK(!bytes);
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        bytes = build_load(path, size);
    }
    if (dir)
        closedir(dir);
    return bytes;
}

static Tensorboard__Event *next(const uint8_t *bytes, size_t size, size_t *at)
{
    uint64_t n = size - *at >= 16 ? number(bytes + *at, 8) : UINT64_MAX;
    CHECK(n <= size - *at - 16);
    if (n > size)
        return NULL;
    CHECK(unmasked(bytes + *at + 8) == mgpu_crc32c(bytes + *at, 8));
    CHECK(unmasked(bytes + *at + 12 + n) == mgpu_crc32c(bytes + *at + 12, n));
    Tensorboard__Event *event = tensorboard__event__unpack(NULL, n, bytes + *at + 12);
    *at += n + 16;
    CHECK(event && event->wall_time > 1e9);
    return event;
}

static void check_scalar(const uint8_t *bytes, size_t size, size_t *at, const char *tag,
                         int64_t step, float value)
{
    Tensorboard__Event *e = next(bytes, size, at);
    if (!e)
        return;
    CHECK(e->step == step && e->summary && e->summary->n_value == 1);
    CHECK(!strcmp(e->summary->value[0]->tag, tag) && e->summary->value[0]->simple_value == value);
    tensorboard__event__free_unpacked(e, NULL);
}

static void test_events(void)
{
    struct mgpu_event_file *f;
    size_t size = 0, at = 0;
    char longest[2001], cut[1001] = "";
    memset(longest, 'a', 2000);
    longest[2000] = 0;
    memcpy(cut, longest, 1000);
    CHECK_OK(mgpu_event_file_open(&f, build_path("logs"), "train", 3));
    CHECK_OK(mgpu_event_file_scalar(f, "epoch_loss", 3, 0.25));
    CHECK_OK(mgpu_event_file_scalar(f, longest, INT64_C(1) << 40, -1.5));
    uint8_t *bytes = load(build_path("logs/train"), &size); /* readable while it grows */
    Tensorboard__Event *version = next(bytes, size, &at), *restart = next(bytes, size, &at);
    CHECK(!strcmp(version->file_version, "brain.Event:2"));
    CHECK(restart->step == 3 &&
          restart->session_log->status == TENSORBOARD__SESSION_LOG__SESSION_STATUS__START);
    check_scalar(bytes, size, &at, "epoch_loss", 3, 0.25f);
    check_scalar(bytes, size, &at, cut, INT64_C(1) << 40, -1.5f);
    CHECK(at == size);
    tensorboard__event__free_unpacked(version, NULL);
    tensorboard__event__free_unpacked(restart, NULL);
    free(bytes);
    mgpu_event_file_close(f);
    build_bytes(build_path("file"), "x", 1);
    CHECK_FAILS(mgpu_event_file_open(&f, build_path("file"), "train", 0), "Not a directory");
}

int main(void)
{
    build_begin();
    test_crc();
    test_events();
    build_end();
    return test_end();
}
