#include "ggml.h"
int ggml_type_size(int type) { return type + ggml_alloc_answer(); }
