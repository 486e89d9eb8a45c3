/* disabled.cl: never compiles: the source of kernels and files that TARN_OPENCL_DISABLE lists. */
#error "disabled by TARN_OPENCL_DISABLE"
