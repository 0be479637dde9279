# The headers lie in the include folder of Vulkan; upstream only asks whether they are there.
