#define ATTENTION_TYPE bf16
#define HEAD_DIM 96
#include "attention.cuh"
