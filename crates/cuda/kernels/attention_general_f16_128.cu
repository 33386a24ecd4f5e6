#define ATTENTION_TYPE f16
#define HEAD_DIM 128
#include "attention_general.cuh"
