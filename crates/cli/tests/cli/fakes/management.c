// The driver's own view of a card on which a Python process holds 12 GiB.
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process;

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    *device = (void *)1;
    return strcmp(id, "0000:3b:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *info) {
    memory all = {16ull << 30, 4ull << 30, 12ull << 30};
    *info = all;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *found) {
    process python = {4711, 12ull << 30, 0, 0};
    if (*count < 1) return 7;
    *count = 1;
    found[0] = python;
    return 0;
}
int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned len) { strncpy(name, "/usr/bin/python", len); return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned len) { strncpy(version, "580.65.06", len); return 0; }
