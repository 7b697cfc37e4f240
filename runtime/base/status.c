#include "runtime/base/notes.h"
#include "runtime/base/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { TEXT = 4096 };

static _Thread_local char text[TEXT];
struct receiver {
    void (*call)(void *, const char *);
    void *context;
};
static struct receiver note_receiver, warning_receiver;
static _Thread_local bool notes_dropped;

/* Names of strangers must not steer a terminal, nor make two lines of one message: what would is
 * written as \n, \x1b. Also UTF-8's second set of control characters. */
static bool is_control(const unsigned char *c)
{
    return *c < 0x20 || *c == 0x7f || (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0);
}

void mgpu_plain_text(char *to, size_t size, const char *from)
{
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)from; *c && n + 5 < size; c++) {
        if (!is_control(c))
            to[n++] = (char)*c;
        else if (*c == '\n' || *c == '\t')
            n += (size_t)snprintf(to + n, size - n, *c == '\n' ? "\\n" : "\\t");
        else
            n += (size_t)snprintf(to + n, size - n, "\\x%02x", *c == 0xc2 ? *++c : *c);
    }
    to[n] = 0;
}

static void write_plain(char *to, const char *format, va_list args)
{
    char raw[TEXT];
    vsnprintf(raw, TEXT, format, args);
    mgpu_plain_text(to, TEXT, raw);
}

int mgpu_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_plain(text, format, args);
    va_end(args);
    return code;
}

int mgpu_prefix(int code, const char *format, ...)
{
    if (code >= 0)
        return code;
    char old[TEXT];
    memcpy(old, text, TEXT);
    va_list args;
    va_start(args, format);
    write_plain(text, format, args);
    va_end(args);
    int n = (int)strlen(text);
    if (n >= TEXT - 3)
        return code;
    size_t room = (size_t)(TEXT - n - 3), length = strnlen(old, room);
    memcpy(text + n, ": ", 2);
    memcpy(text + n + 2, old, length);
    text[n + 2 + (int)length] = 0;
    return code;
}

int mgpu_fail_text(int code, const char *from)
{
    return mgpu_fail(code, "%s", from);
}

const char *mgpu_error(void)
{
    return text;
}

static void tell(const struct receiver *to, const char *format, va_list args)
{
    char line[TEXT];
    write_plain(line, format, args);
    if (to->call && !notes_dropped)
        to->call(to->context, line);
}

void mgpu_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(&note_receiver, format, args);
    va_end(args);
}

void mgpu_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(warning_receiver.call ? &warning_receiver : &note_receiver, format, args);
    va_end(args);
}

void mgpu_drop_notes(bool drop)
{
    notes_dropped = drop;
}

void mgpu_set_note(void (*receiver)(void *, const char *), void *context)
{
    note_receiver = (struct receiver){receiver, context};
}

void mgpu_set_warning(void (*receiver)(void *, const char *), void *context)
{
    warning_receiver = (struct receiver){receiver, context};
}
