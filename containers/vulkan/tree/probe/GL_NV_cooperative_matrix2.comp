#version 460
// Does this shader compiler know the extension? ggml has faster kernels that need it.
#extension GL_NV_cooperative_matrix2 : require

void main() {}
