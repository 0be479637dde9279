#version 460
// Does this shader compiler know the extension? ggml has faster kernels that need it.
#extension GL_EXT_float_e2m1 : require

void main() {}
