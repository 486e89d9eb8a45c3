/* disabled.cl: does not compile: it stands for what TARN_OPENCL_WITHOUT names. */
#error "TARN_OPENCL_WITHOUT names it"
