#version 450
// Compiled before the image is used: 16-bit storage is what ggml's shaders cannot do without.
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer Values { float16_t values[]; };
layout(binding = 1) writeonly buffer Sums { float sums[]; };

void main() {
    sums[gl_GlobalInvocationID.x] = float(values[gl_GlobalInvocationID.x]) * 2.0;
}
