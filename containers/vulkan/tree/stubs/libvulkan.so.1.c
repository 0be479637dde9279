/* Link-time stand-in for libvulkan.so.1: the functions that ggml-vulkan calls by name. */
void vkCmdCopyBuffer(void) {}
void vkGetPhysicalDeviceFeatures2(void) {}
void vkGetInstanceProcAddr(void) {}
void vkGetDeviceProcAddr(void) {}
