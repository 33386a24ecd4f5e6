#define ATTENTION_TYPE f16
#define HEAD_DIM 80
#include "attention.cuh"
