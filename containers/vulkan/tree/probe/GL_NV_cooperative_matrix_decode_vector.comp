#version 460
// Does this shader compiler know the extension? ggml has faster kernels that need it.
#extension GL_NV_cooperative_matrix_decode_vector : require

void main() {}
