// A driver with as much in it as a program meets before it gives up. What goes wrong is defined by the one who compiles it.
#include <string.h>

#ifndef VERSION
#define VERSION 13000
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef RETAIN
#define RETAIN 0
#endif

int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetPCIBusId(char *id, int len, int device) { strncpy(id, "0000:3b:00.0", len); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = 0; return RETAIN; }
int cuGetErrorName(int error, const char **text) {
    *text = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_NO_DEVICE";
    return 0;
}
int cuGetErrorString(int error, const char **text) {
    *text = error == 2 ? "out of memory" : "no CUDA-capable device is detected";
    return 0;
}
