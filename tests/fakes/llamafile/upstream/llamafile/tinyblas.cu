#include "tinyblas.h"
int tinyblas_answer(void) { return 7; }
