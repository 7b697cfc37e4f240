/* Who does something a second time for a person says nothing twice. */
#ifndef MGPU_BASE_NOTES_H
#define MGPU_BASE_NOTES_H

#include <stdbool.h>

/* This thread's notes (status.h) are dropped from now on, or no more. */
void mgpu_drop_notes(bool drop);

#endif
