#define ATTENTION_TYPE bf16
#define HEAD_DIM 64
#include "attention_general.cuh"
