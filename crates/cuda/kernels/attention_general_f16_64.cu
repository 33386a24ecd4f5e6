#define ATTENTION_TYPE f16
#define HEAD_DIM 64
#include "attention_general.cuh"
