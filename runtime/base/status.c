#include "runtime/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT = 4096 };

static _Thread_local char text[TEXT];
static void (*note_receiver)(void *, const char *);
static void *note_context;

int mgpu_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(text, TEXT, format, args);
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
    int n = vsnprintf(text, TEXT, format, args);
    va_end(args);
    if (n < 0 || n >= TEXT - 3)
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

void mgpu_note(const char *format, ...)
{
    char line[TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(line, TEXT, format, args);
    va_end(args);
    if (note_receiver)
        note_receiver(note_context, line);
}

void mgpu_set_note(void (*receiver)(void *, const char *), void *context)
{
    note_receiver = receiver;
    note_context = context;
}
