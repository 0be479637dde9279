#version 460
// Does this shader compiler know the extension? ggml has faster kernels that need it.
#extension GL_EXT_bfloat16 : require

void main() {}
