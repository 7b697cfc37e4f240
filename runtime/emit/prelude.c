#include "runtime/emit/emit.h"

#include "runtime/emit/prelude_text.h" /* made by CMake from the .cu files here */

const char *mgpu_emit_prelude(bool device)
{
    return device ? prelude_device : prelude_host;
}
