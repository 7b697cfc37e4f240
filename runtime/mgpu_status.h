/* What functions of mgpu return, and how to learn what went wrong. Part of mgpu.h. */
#ifndef MGPU_STATUS_H
#define MGPU_STATUS_H

enum mgpu_status {
    MGPU_OK = 0,
    MGPU_ENOMEM = -1,
    MGPU_EINVALID = -2,     /* a file or what is in it is wrong */
    MGPU_EUNSUPPORTED = -3, /* the input is right, but mgpu cannot do it */
    MGPU_EIO = -4,
    MGPU_EDEVICE = -5,
    MGPU_EINTERNAL = -6,
    MGPU_EUSAGE = -7, /* an option is unknown or malformed, contradicts another, or names what the
                       * model does not have: the programs exit with 2, on all else with 1 */
};

/* This thread's last error text; "" when there was none. Valid until the next error. */
const char *mgpu_error(void);

/* Who gets notes: what a person should know but need not act on. NULL: nobody. Here and below, any
 * thread calls the receiver. */
void mgpu_set_note(void (*receiver)(void *context, const char *text), void *context);

/* Who gets warnings: a run goes on, but slower or elsewhere than was asked for or could be. NULL:
 * who gets notes. */
void mgpu_set_warning(void (*receiver)(void *context, const char *text), void *context);

#endif
