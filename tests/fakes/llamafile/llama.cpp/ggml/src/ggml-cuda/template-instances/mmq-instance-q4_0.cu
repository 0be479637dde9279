#include "../common.cuh"
extern "C" int mmq_answer(void) { return 40; }
