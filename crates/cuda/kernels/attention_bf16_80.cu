#define ATTENTION_TYPE bf16
#define HEAD_DIM 80
#include "attention.cuh"
