#define ATTENTION_TYPE f16
#define HEAD_DIM 96
#include "attention.cuh"
