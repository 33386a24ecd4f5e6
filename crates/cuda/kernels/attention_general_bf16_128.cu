#define ATTENTION_TYPE bf16
#define HEAD_DIM 128
#include "attention_general.cuh"
