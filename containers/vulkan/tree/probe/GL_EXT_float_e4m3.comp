#version 460
// Does this shader compiler know the extension? ggml has faster kernels that need it.
#extension GL_EXT_float_e4m3 : require

void main() {}
