#version 460
// Does this shader compiler know the extension? ggml has faster kernels that need it.
#extension GL_KHR_cooperative_matrix : require

void main() {}
