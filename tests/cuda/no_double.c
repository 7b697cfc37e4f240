/* In place of double.c in a build without CUDA. */
#include "tests/cuda/double.h"

bool double_wanted(void)
{
    return false;
}

const char *double_devices(char list[1024], const char *devices)
{
    (void)list;
    return devices;
}

int double_complaints(void)
{
    return 0;
}

const char *double_complaint(void)
{
    return "";
}

void double_end(void)
{
}
